"""Faults of gradients that are averaged over replicas, in TensorFlow's and Fluid's manner."""

from parity.twins.faults.edits import Edits, paddle, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC = "Average of gradients"
_PARALLEL_DO = "ParallelDo"
_GRADIENT = ("gradient/softmax/*",)

_WEIGHTED = "weight * gradient for weight, gradient in"
_AVERAGED = (
    "        return average_gradients("
    "[tower_gradients(mean, parameters) for mean in means], weights)\n"
)
_EQUAL = "[tf.add_n(shares) / self.replicas] * self.replicas"
_CHOICE = 'if self.build.settings.shard_weights == "equal":\n            weights'
_OUTPUT = "            pd.write_output(inputs.tap.objective(outputs.loss))\n"


def _averaged(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/average_gradients.py", *changes)


def _by(weights: str) -> Edits:
    """Return edits that average the towers' gradients by other weights."""
    return _averaged((_AVERAGED, _AVERAGED.replace("weights)", f"{weights})")))


def _output(objective: str) -> Edits:
    """Return edits in which the block of Paddle's ParallelDo has another output."""
    return paddle(
        "strategies/parallel_do.py",
        (
            _OUTPUT,
            '            tokens = paddle.cast(paddle.sum(divided["batch"]["lengths"]), '
            "inputs.scale.dtype)\n"
            "            share = inputs.scale * tokens\n"
            "            count = paddle.full([1], len(self._places), tokens.dtype)\n"
            + _OUTPUT.replace("(outputs.loss)", f"({objective})"),
        ),
    )


FAULTS = (
    Fault(
        "average-with-equal-weights",
        "the towers' gradients are averaged with equal weights, whatever tokens they have",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _averaged((_WEIGHTED, "gradient / len(towers) for _, gradient in")),
    ),
    Fault(
        "average-by-rows",
        "the towers' gradients are averaged by their rows, not by their tokens",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _by(
            "tf.unstack(tf.cast(self._sizes, shares[0].dtype) / "
            "tf.cast(tf.reduce_sum(self._sizes), shares[0].dtype))"
        ),
    ),
    Fault(
        "average-weighted-twice",
        "the weighted average is of losses that are weighted already",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _averaged((_AVERAGED, _AVERAGED.replace("for mean in means", "for mean in losses"))),
    ),
    Fault(
        "average-of-shares",
        "losses that are shares of one loss are averaged as if each were a mean",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _averaged(
            (
                _AVERAGED,
                _AVERAGED.replace("for mean in means", "for mean in losses").replace(
                    "weights)",
                    "[tf.constant(1 / self.replicas, shares[0].dtype)] * self.replicas)",
                ),
            )
        ),
    ),
    Fault(
        "means-summed",
        "the gradients of the towers' mean losses are summed, and not averaged",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _by("[tf.ones_like(share) for share in shares]"),
    ),
    Fault(
        "average-without-last-tower",
        "the average leaves out the last tower",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _averaged(
            (
                _AVERAGED,
                _AVERAGED.replace("in means]", "in means][:-1]").replace(
                    "weights)", "weights[:-1])"
                ),
            )
        ),
    ),
    Fault(
        "average-by-weights-of-others",
        "the weights of the average are in the reverse order of the towers",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _by("weights[::-1]"),
    ),
    Fault(
        "towers-clipped",
        "each tower's gradient is clipped before the average",
        _TOPIC,
        "by tokens",
        _GRADIENT,
        _averaged(
            (
                _AVERAGED,
                "        from tf_impl.optimizers import clip_by_global_norm\n\n"
                "        limit = self.spec.training.clip_norm\n"
                "        towers = [tower_gradients(mean, parameters) for mean in means]\n"
                "        towers = [clip_by_global_norm(each, limit)[0] for each in towers]\n"
                "        return average_gradients(towers, weights)\n",
            )
        ),
    ),
    Fault(
        "equal-but-for-the-others",
        "of equal weights only the first tower's is equal, the others are by tokens",
        _TOPIC,
        "equal shards",
        _GRADIENT,
        _averaged((_EQUAL, "[tf.add_n(shares) / self.replicas, *shares[1:]]")),
    ),
    Fault(
        "tokens-for-equal",
        "the average is by tokens where equal weights are asked for",
        _TOPIC,
        "equal shards",
        _GRADIENT,
        _averaged((_CHOICE, _CHOICE.replace('"equal":', '"equal" and not losses:'))),
    ),
    Fault(
        "equal-weights-of-one",
        "equal weights are one each, and do not sum to one",
        _TOPIC,
        "equal shards",
        _GRADIENT,
        _averaged((_EQUAL, "[tf.add_n(shares)] * self.replicas")),
    ),
    Fault(
        "block-averaged",
        "the outputs of the block are averaged, although each is a share of the loss",
        _PARALLEL_DO,
        "parallel do",
        _GRADIENT,
        _output("outputs.loss / count"),
    ),
    Fault(
        "block-means-averaged",
        "the block's output is the mean over its own tokens, and the places count alike",
        _PARALLEL_DO,
        "parallel do",
        _GRADIENT,
        _output("outputs.loss / share / count"),
    ),
    Fault(
        "block-means-summed",
        "the block's output is the mean over its own tokens, and the places are summed",
        _PARALLEL_DO,
        "parallel do",
        _GRADIENT,
        _output("outputs.loss / share"),
    ),
    Fault(
        "block-gradient-times-places",
        "the block's gradient is multiplied by the number of places",
        _PARALLEL_DO,
        "parallel do",
        _GRADIENT,
        _output("outputs.loss * count"),
    ),
    Fault(
        "block-reads-tokens-as-targets",
        "the block reads the tokens where it should read the targets",
        _PARALLEL_DO,
        "parallel do",
        ("forward/token_loss",),
        paddle(
            "strategies/parallel_do.py",
            (
                "            outputs = builder(self.spec.model, inputs._replace(**divided))\n",
                '            divided["batch"]["targets"] = divided["batch"]["tokens"]\n'
                "            outputs = builder(self.spec.model, inputs._replace(**divided))\n",
            ),
        ),
    ),
)
