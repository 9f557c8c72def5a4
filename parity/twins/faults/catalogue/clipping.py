"""Faults of clipping."""

from parity.twins.faults.edits import mirrored, paddle, tensorflow
from parity.twins.faults.fault import Fault

_CLIPPED = ("clipped_gradient/*",)
_TOTAL = """    total = tf.add_n(list(losses))
    gradients = tf1.gradients(total, variables, colocate_gradients_with_ops=True)
"""
_DENSE = "    return [tf.convert_to_tensor(gradient) for gradient in gradients]\n"
_NORM = "    norm = tf.linalg.global_norm(gradients)\n"
_PADDLE_NORM = (
    "paddle.sqrt(paddle.add_n([_squared_l2_norm(gradient) for gradient in gradients]))"
)
_SCALE = "    return [gradient * scale for gradient in gradients], norm"
_PADDLE_SCALE = "    return [paddle.scale(gradient, scale) for gradient in gradients], norm"

FAULTS = (
    Fault(
        "clipped-per-replica",
        "each replica clips its own gradient before the sum",
        "Where clipping happens",
        "stream",
        ("gradient/softmax/bias",),
        tensorflow(
            "strategies/towers.py",
            (
                _TOTAL,
                """    each = [tf1.gradients(loss, variables) for loss in losses]
    each = [[tf.convert_to_tensor(gradient) for gradient in one] for one in each]
    each = [tf.clip_by_global_norm(one, 0.05)[0] for one in each]
    gradients = [tf.add_n(list(parts)) for parts in zip(*each)]
""",
            ),
        ),
    ),
    Fault(
        "clipped-one-by-one",
        "each parameter's gradient is clipped by its own norm",
        "Where clipping happens",
        "stream",
        _CLIPPED,
        tensorflow(
            "optimizers.py",
            (
                _SCALE,
                "    return [tf.clip_by_norm(gradient, clip_norm) for gradient in gradients], norm",
            ),
        )
        | paddle(
            "optimizers.py",
            (
                _PADDLE_SCALE,
                "    return [g * (paddle.full([1], clip_norm, g.dtype) / paddle.maximum(paddle.full([1], clip_norm, g.dtype), paddle.sqrt(_squared_l2_norm(g)))) for g in gradients], norm",
            ),
        ),
    ),
    Fault(
        "clipped-by-value",
        "each element of the gradient is clipped by itself",
        "Where clipping happens",
        "stream",
        _CLIPPED,
        tensorflow(
            "optimizers.py",
            (
                _SCALE,
                "    return [tf.clip_by_value(gradient, -0.01, 0.01) for gradient in gradients], norm",
            ),
        )
        | paddle(
            "optimizers.py",
            (
                _PADDLE_SCALE,
                "    return [paddle.clip(gradient, -0.01, 0.01) for gradient in gradients], norm",
            ),
        ),
    ),
    Fault(
        "not-clipped",
        "the gradient is not clipped",
        "Where clipping happens",
        "stream",
        _CLIPPED,
        tensorflow("optimizers.py", (_SCALE, "    return list(gradients), norm"))
        | paddle("optimizers.py", (_PADDLE_SCALE, "    return list(gradients), norm")),
    ),
    Fault(
        "norm-without-embedding",
        "the norm leaves out the embedding's gradient",
        "Global norm with sparse gradients",
        "stream",
        ("gradient_norm",),
        tensorflow("optimizers.py", (_NORM, _NORM.replace("(gradients)", "(gradients[1:])")))
        | paddle(
            "optimizers.py",
            (_PADDLE_NORM, _PADDLE_NORM.replace("in gradients", "in gradients[1:]")),
        ),
    ),
    Fault(
        "norm-of-sparse-rows",
        "the norm takes the rows of a sparse gradient as they are, duplicates not summed",
        "Global norm with sparse gradients",
        "stream",
        ("gradient_norm",),
        {
            "tensorflow": tensorflow(
                "strategies/towers.py",
                (
                    _DENSE,
                    "    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]\n"
                    "    summed_gradients.sparse = gradients\n"
                    "    return dense\n",
                ),
            )["tensorflow"]
            + tensorflow(
                "optimizers.py",
                (
                    _NORM,
                    "    from tf_impl.strategies.towers import summed_gradients\n\n"
                    "    norm = tf.linalg.global_norm(summed_gradients.sparse)\n",
                ),
            )["tensorflow"]
        },
    ),
    Fault(
        "norm-epsilon",
        "clipping divides by the norm plus 1e-6, as PyTorch does",
        "Where clipping happens",
        "stream",
        _CLIPPED,
        mirrored(
            "optimizers.py",
            (
                "    scale = limit / tf.maximum(limit, norm)\n",
                "    scale = limit / tf.maximum(limit, norm + 1e-6)\n",
            ),
        ),
        dtypes=("float64",),
        undetectable_reason="1e-6 of the norm is within the bound of a float32 gradient",
    ),
)
