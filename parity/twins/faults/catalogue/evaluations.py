"""Faults of evaluation: validation and test perplexity after the last recorded step."""

from parity.twins.faults.edits import joined, mirrored, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_FILE = "parity/twins/training/evaluate.py"
_BATCHES = ("evaluate/*/batch/*",)
_LOSSES = ("evaluate/*/losses",)
_PERPLEXITY = ("evaluate/*/perplexity",)
_MEAN = "    reported = perplexity(total / counted)\n"
_STATE = "        if state is None or not inputs.carry:\n"

FAULTS = (
    Fault(
        "evaluation-counts-padding",
        "the perplexity is per position, padding included",
        "Evaluation",
        "sentences",
        _PERPLEXITY,
        shared(_FILE, ("counted += inputs.num_tokens", "counted += inputs.positions")),
        check="evaluation",
    ),
    Fault(
        "mean-of-batch-means",
        "the perplexity is that of the mean of the batches' losses, whatever their sizes",
        "Evaluation",
        "sentences",
        _PERPLEXITY,
        shared(_FILE, (_MEAN, "    reported = perplexity(float(np.mean(losses)))\n")),
        check="evaluation",
    ),
    Fault(
        "exponential-of-the-sum",
        "the perplexity is the exponential of a sum over batches, not of a mean over tokens",
        "Evaluation",
        "general",
        _PERPLEXITY,
        shared(_FILE, (_MEAN, "    reported = perplexity(float(np.sum(losses)))\n")),
        check="evaluation",
    ),
    Fault(
        "perplexity-of-base-two",
        "the perplexity is a power of two, though the loss is in nats",
        "Evaluation",
        "stream",
        _PERPLEXITY,
        shared(_FILE, ("        return math.exp(loss)\n", "        return 2.0**loss\n")),
        check="evaluation",
    ),
    Fault(
        "evaluated-tokens-are-rows",
        "each batch of the evaluation counts its rows as tokens",
        "Evaluation",
        "bahdanau",
        ("evaluate/*/tokens_per_batch",),
        shared(_FILE, ("tokens.append(inputs.num_tokens)", "tokens.append(inputs.rows)")),
        check="evaluation",
    ),
    Fault(
        "evaluation-loss-per-row",
        "the loss of an evaluated batch is divided by its rows",
        "Evaluation",
        "stream",
        _LOSSES,
        shared(
            "parity/twins/spec/step_arrays.py",
            (
                'masks, loss_per = {}, "token"',
                'masks, loss_per = {}, "row"',
            ),
        ),
        check="evaluation",
    ),
    Fault(
        "evaluation-forgets-its-state",
        "each evaluated batch starts from a state of zero",
        "Evaluation",
        "stream",
        _LOSSES,
        shared(_FILE, (_STATE, "        if True:\n")),
        check="evaluation",
    ),
    Fault(
        "evaluation-keeps-its-state",
        "the test text continues with the state at the end of the validation text",
        "Evaluation",
        "stream",
        ("evaluate/test/losses",),
        shared(
            _FILE,
            (
                "    state: Mapping[str, np.ndarray] | None = None\n",
                '    state = _LEFT.get("")\n',
            ),
            (_STATE, "        if state is None:\n"),
            ("        state = result.state\n", '        state = _LEFT[""] = result.state\n'),
            ("def perplexity(", "_LEFT: dict = {}\n\n\ndef perplexity("),
        ),
        check="evaluation",
    ),
    Fault(
        "last-evaluated-batch-left-out",
        "the last batch of the validation and test text, a partial one, is not evaluated",
        "Evaluation",
        "sentences",
        _BATCHES,
        shared(
            _FILE,
            (
                "in batches_to_evaluate(batches.batches_per_epoch, most):",
                "in batches_to_evaluate(batches.batches_per_epoch, most)[:-1]:",
            ),
        ),
        check="evaluation",
    ),
    Fault(
        "validated-on-test-text",
        "the validation perplexity is that of the test text",
        "Evaluation",
        "bahdanau, fed",
        ("evaluate/valid/batch/*",),
        shared(_FILE, ("getattr(text, split), strategy.spec", "text.test, strategy.spec")),
        check="evaluation",
    ),
    Fault(
        "evaluation-scaled-by-keep",
        "without dropout, activations are scaled by the share that training keeps",
        "Dropout",
        "stream",
        _LOSSES,
        mirrored(
            "layers.py",
            ("        return inputs\n    return", "        return 0.7 * inputs\n    return"),
        ),
        check="evaluation",
    ),
    Fault(
        "evaluation-of-first-replica",
        "the loss of an evaluated batch is that of the first replica's rows",
        "Evaluation",
        "sentences",
        _LOSSES,
        joined(
            tensorflow(
                "strategies/synchronous_base.py",
                (
                    "return self._result(self._run_evaluation(inputs, state), {})",
                    "values = self._run_evaluation(inputs, state)\n"
                    '        return self._result(values | {"losses": values["losses"][:1]}, {})',
                ),
            ),
            paddle(
                "strategies/synchronous_base.py",
                ("StepResult(self._losses(losses),", "StepResult(self._losses(losses)[:1],"),
            ),
        ),
        check="evaluation",
    ),
    Fault(
        "evaluation-keeps-initial-weights",
        "the replicas that evaluate have a copy of the weights that is never updated",
        "Evaluation",
        "stream",
        _LOSSES,
        paddle(
            "strategies/synchronous_base.py",
            (
                "self._executor(evaluation, None, share_variables_from=self._train)",
                "self._executor(evaluation, None)",
            ),
        ),
        check="evaluation",
    ),
)
