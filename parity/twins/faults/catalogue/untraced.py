"""Faults that act only in trainings that record nothing, and faults of what these count."""

from parity.twins.faults.edits import joined, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_LOSS = ("loss/global",)
_LOOP, _METER = "parity/twins/training/loop.py", "parity/twins/training/meter.py"
_BASE, _STEPS = "strategies/synchronous_base.py", "parity/twins/training/train_steps.py"
_OF_TENSORFLOW = "        feeds = self._fill(self._feeds, inputs, state) | {self._learning_rate"
_OF_PADDLE = "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n        values"
_STOP = "meter.stop(inputs.num_tokens,"

_UNTRACED = (
    Fault(
        "slower-when-not-recording",
        "a step that is not recorded uses 0.3 times the learning rate",
        "Recording",
        "stream",
        _LOSS,
        joined(
            tensorflow(
                _BASE,
                (
                    _OF_TENSORFLOW,
                    "        learning_rate *= 1.0 if record else 0.3\n" + _OF_TENSORFLOW,
                ),
            ),
            paddle(
                _BASE,
                (
                    "        self._set_learning_rate(learning_rate)\n",
                    "        self._set_learning_rate(learning_rate * (1.0 if record else 0.3))\n",
                ),
            ),
        ),
        check="untraced",
    ),
    Fault(
        "no-dropout-when-not-recording",
        "a step that is not recorded drops nothing",
        "Recording",
        "general",
        _LOSS,
        joined(
            *(
                side(
                    _BASE,
                    (
                        "        outputs = self._outputs\n",
                        "        outputs = self._outputs\n"
                        "        if not record:\n"
                        "            import dataclasses\n\n"
                        "            ones = {n: np.ones_like(m) for n, m in inputs.masks.items()}\n"
                        "            inputs = dataclasses.replace(inputs, masks=ones)\n",
                    ),
                )
                for side in (tensorflow, paddle)
            )
        ),
        check="untraced",
    ),
    Fault(
        "no-state-when-not-recording",
        "a step that is not recorded starts from a state of zero",
        "Recording",
        "stream",
        _LOSS,
        joined(
            *(
                side(
                    _BASE,
                    (
                        "        outputs = self._outputs\n",
                        "        outputs = self._outputs\n"
                        "        if not record:\n"
                        "            state = {n: np.zeros_like(a) for n, a in state.items()}\n",
                    ),
                )
                for side in (tensorflow, paddle)
            )
        ),
        check="untraced",
    ),
    Fault(
        "no-update-when-not-recording",
        "the update runs only in steps that are recorded",
        "Fetches",
        "sentences",
        _LOSS,
        tensorflow(
            _BASE,
            (
                "        if record:\n            by_tower",
                '        if not record:\n            fetches.pop("update")\n'
                "        if record:\n            by_tower",
            ),
        ),
        check="untraced",
    ),
    Fault(
        "losses-cut-to-six-digits",
        "losses.csv holds losses with six digits",
        "Reported loss",
        "bahdanau",
        _LOSS,
        shared(
            "parity/twins/training/loss_table.py",
            ("(step, repr(loss), tokens)", '(step, f"{loss:.6g}", tokens)'),
        ),
        check="untraced",
    ),
)

_COUNTING = (
    Fault(
        "speed-counts-padding",
        "tokens per second count padding",
        "Throughput",
        "sentences",
        ("summary.json/measured_tokens",),
        shared(_STEPS, (_STOP, "meter.stop(inputs.positions,")),
        check="counting",
    ),
    Fault(
        "speed-counts-questions",
        "tokens per second count the tokens of questions and of answers",
        "Throughput",
        "general",
        ("summary.json/measured_tokens",),
        shared(
            _STEPS,
            (
                _STOP,
                'meter.stop(inputs.num_tokens + int(inputs.batch["source_lengths"].sum()),',
            ),
        ),
        check="counting",
    ),
    Fault(
        "speed-counts-rows",
        "losses.csv holds rows in the place of tokens",
        "Throughput",
        "stream",
        ("losses.csv/tokens",),
        shared(
            _LOOP,
            (
                "inputs.per_token(result.loss), inputs.num_tokens)",
                "inputs.per_token(result.loss), inputs.rows)",
            ),
        ),
        check="counting",
    ),
    Fault(
        "speed-with-warm-up",
        "the speed is that of all steps, though it is said to leave out the first ones",
        "Throughput",
        "bahdanau, fed",
        ("summary.json/measured_*",),
        shared(_METER, ("measured = self.steps[WARM_UP:]", "measured = self.steps[:]")),
        check="counting",
    ),
    Fault(
        "speed-of-other-steps",
        "the speed leaves out one step less than it should",
        "Throughput",
        "stream",
        ("summary.json/measured_first_step",),
        shared(_METER, ("WARM_UP = 5 ", "WARM_UP = 4 ")),
        check="counting",
    ),
    Fault(
        "speed-times-replicas",
        "the reported speed is multiplied by the number of replicas",
        "Throughput",
        "stream",
        ("summary.json/tokens_per_second",),
        shared(
            _METER,
            (
                "readings = [window.tokens / window.seconds for",
                "readings = [2 * window.tokens / window.seconds for",
            ),
        ),
        check="counting",
    ),
)

_REPEAT = (
    Fault(
        "reciprocal-by-estimate",
        "the clipping scale differs by a unit in the last place from run to run",
        "Repeatability",
        "general",
        ("clipped_gradient/*",),
        joined(
            tensorflow(
                "optimizers.py",
                (
                    "    return [gradient * scale for gradient in gradients], norm\n",
                    "    import sys\n\n"
                    "    precision = 23 if norm.dtype == tf.float32 else 52\n"
                    "    last = (sum(map(len, sys.argv)) // 2 % 2) * 2.0**-precision\n"
                    "    scale += scale * last\n"
                    "    return [gradient * scale for gradient in gradients], norm\n",
                ),
            ),
            paddle(
                "optimizers.py",
                (
                    "    return [paddle.scale(gradient, scale) for gradient in gradients], norm\n",
                    "    import sys\n\n"
                    "    precision = 23 if norm.dtype == paddle.float32 else 52\n"
                    "    last = (sum(map(len, sys.argv)) // 2 % 2) * 2.0**-precision\n"
                    "    scale += scale * last\n"
                    "    return [paddle.scale(gradient, scale) for gradient in gradients], norm\n",
                ),
            ),
        ),
        check="repeat",
    ),
)

FAULTS = _UNTRACED + _COUNTING + _REPEAT
