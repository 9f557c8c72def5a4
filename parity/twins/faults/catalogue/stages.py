"""Faults of model parallelism: what a stage computes, sends on and sends back."""

from parity.twins.faults.edits import paddle, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC = "Stages"
_AFTER_CUT = ("forward/lstm_1/hidden", "forward/logits", "forward/token_loss")
_BEFORE_CUT = ("gradient/embed/table", "gradient/lstm_0/*")
_FED = "            fed |= exchange.receive(self._part, stage.reads)\n"
_FUNCTION = "                outputs.append(function(**own, **shared))\n"
_SENT = "map(np.array, sent)"
_CLIPPED = """        self._clipped, self._norm = clip_by_global_norm(
            self._gradients, spec.training.clip_norm
        )
"""
_PADDLE_CLIPPED = """                self._clipped, self._norm = clip_by_global_norm(
                    self._gradients, spec.training.clip_norm
                )
"""
_PER_STAGE = """
        from parity.twins.spec.stages import layers_of, stages_of

        for layers in stages_of(spec, self.stages) if self.stages > 1 else ():
            names = {name for layer in layers for name in layers_of(spec)[layer]}
            own = [k for k, v in enumerate(self._parameters) if NAME in names]
            clipped, norm = clip_by_global_norm(
                [self._gradients[k] for k in own], spec.training.clip_norm
            )
"""
_PUT_BACK = """            for k, each in zip(own, clipped, strict=True):
                self._clipped[k] = each
"""
_SCALED = """        if self.stages > 1:
            limit = CONSTANT
            scale = limit / MAXIMUM(limit, norm)
            self._clipped, self._norm = [g * scale for g in self._gradients], norm
"""


def _after_clipping(lines: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return edits, for TensorFlow and Paddle, of what follows the clipping by one norm."""
    of_tensorflow = (
        lines.replace("NAME", "v.op.name")
        .replace("CONSTANT", "tf.constant(spec.training.clip_norm, norm.dtype)")
        .replace("MAXIMUM", "tf.maximum")
    )
    of_paddle = (
        lines.replace("NAME", "v.name")
        .replace("CONSTANT", "paddle.full([1], spec.training.clip_norm, norm.dtype)")
        .replace("MAXIMUM", "paddle.maximum")
    )
    indented = "".join(
        f"        {line}" if line.strip() else line for line in of_paddle.splitlines(True)
    )
    return (_CLIPPED, _CLIPPED + of_tensorflow), (_PADDLE_CLIPPED, _PADDLE_CLIPPED + indented)


_CLIPPED_EACH, _PADDLE_CLIPPED_EACH = _after_clipping(_PER_STAGE + _PUT_BACK)
_NORM_OF_LAST, _PADDLE_NORM_OF_LAST = _after_clipping(_PER_STAGE + _SCALED)

FAULTS = (
    Fault(
        "sent-before-dropout",
        "a stage sends its activation on before dropout",
        _TOPIC,
        "stages",
        _AFTER_CUT,
        tensorflow(
            "strategies/layers.py",
            (
                _FUNCTION,
                "                last = [k for k, stage in self._stage_of.items() if not stage][-1]\n"
                '                sent = "mask/embedded" if last == "embed" else f"mask/{last}"\n'
                "                own |= {n: tf.ones_like(t) for n, t in own.items() if n == sent}\n"
                + _FUNCTION,
            ),
        )
        | paddle(
            "strategies/pipeline.py",
            (
                _FED,
                '            masks = [name for name in stage.data if name.startswith("mask/")]\n'
                "            for name in masks[-1:] if stage.awaits else ():\n"
                "                fed[name] = np.ones_like(fed[name])\n" + _FED,
            ),
        ),
    ),
    Fault(
        "later-stages-start-from-zero",
        "a stage that is not the first starts every batch from a zero state",
        _TOPIC,
        "stages",
        ("forward/lstm_1/hidden",),
        tensorflow(
            "strategies/layers.py",
            (
                _FUNCTION,
                '                for name in ("h", "c"):\n'
                "                    of_layer = tf.unstack(own[name], axis=1)\n"
                "                    kept = [\n"
                '                        tf.zeros_like(part) if self._stage_of[f"lstm_{k}"] else part\n'
                "                        for k, part in enumerate(of_layer)\n"
                "                    ]\n"
                "                    own[name] = tf.stack(kept, axis=1)\n" + _FUNCTION,
            ),
        )
        | paddle(
            "strategies/pipeline.py",
            (
                _FED,
                '            for name in {"h", "c"}.intersection(fed) if stage.reads else ():\n'
                "                fed[name] = np.zeros_like(fed[name])\n" + _FED,
            ),
        ),
    ),
    Fault(
        "activation-of-first-micro-batch",
        "a stage computes every micro-batch with the activations that came first",
        _TOPIC,
        "replicas of stages",
        _AFTER_CUT,
        paddle(
            "strategies/pipeline.py",
            (
                _FED,
                '            rows, time = feed["tokens"].shape\n'
                "            came = exchange.receive((self._part[0], 0), stage.reads)\n"
                "            for name, value in came.items():\n"
                "                whole = np.zeros((time, *value.shape[1:]), value.dtype)\n"
                "                whole[: len(value)] = value[:time]\n"
                "                fed[name] = whole[:, :rows] if value.ndim == 3 else value[:rows]\n",
            ),
        ),
        unconfirmable_reason="the oracle has no stages, and hands nothing from one to the next",
    ),
    Fault(
        "sent-in-half-precision",
        "a stage sends its activations on in half precision",
        _TOPIC,
        "replicas of stages",
        _AFTER_CUT,
        paddle(
            "strategies/pipeline.py",
            (
                _SENT,
                "(np.array(x).astype(np.float16).astype(np.array(x).dtype) for x in sent)",
            ),
        ),
        unconfirmable_reason="the oracle has no stages, and hands nothing from one to the next",
    ),
    Fault(
        "nothing-sent-back",
        "a stage sends no gradient back to the stages before it",
        _TOPIC,
        "stages",
        _BEFORE_CUT,
        paddle(
            "strategies/pipeline.py",
            (
                "        return list(received.values())\n",
                "        return [np.zeros_like(each) for each in received.values()]\n",
            ),
        ),
    ),
    Fault(
        "sent-back-twice",
        "a stage sends back twice the gradient",
        _TOPIC,
        "replicas of stages",
        _BEFORE_CUT,
        paddle(
            "strategies/pipeline.py",
            (
                "{name: tensors[name] for name in given}",
                "{name: 2 * tensors[name] for name in given}",
            ),
        ),
    ),
    Fault(
        "clipped-per-stage",
        "each stage clips the gradients of its own layers by their norm",
        _TOPIC,
        "stages",
        ("clipped_gradient/*",),
        tensorflow("strategies/synchronous_base.py", _CLIPPED_EACH)
        | paddle("strategies/synchronous_base.py", _PADDLE_CLIPPED_EACH),
    ),
    Fault(
        "norm-of-last-stage",
        "the gradients are clipped by the norm of those of the last stage",
        _TOPIC,
        "replicas of stages",
        ("gradient_norm",),
        tensorflow("strategies/synchronous_base.py", _NORM_OF_LAST)
        | paddle("strategies/synchronous_base.py", _PADDLE_NORM_OF_LAST),
    ),
    Fault(
        "last-weight-not-updated",
        "the update leaves out the last of its operations",
        _TOPIC,
        "stages",
        ("weight/softmax/*",),
        paddle(
            "strategies/stage_programs.py",
            (
                "    _keep_operations(block, kept)\n",
                "    _keep_operations(block, kept - {max(kept)})\n",
            ),
        ),
    ),
)
