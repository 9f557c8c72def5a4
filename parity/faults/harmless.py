"""Rewrites of one side's training code that change no result but in its rounding.

Each computes the same by another formula, or sums in another order, as another engineer or
another version of a framework might. None may raise an alarm, in either precision: a harness
that takes rounding for a mistake is of no use. They are planted like faults, in the same small
runs.
"""

from collections.abc import Mapping

from parity.faults.edits import mirrored, paddle, tensorflow
from parity.faults.fault import Edit, Fault

_LANGUAGE_MODEL_LOSS = """    loss = tf.reduce_sum(losses) * inputs.scale
    return Outputs(loss, join_state(states), tap.activations)
"""
_SEQ2SEQ_LOSS = """    loss = tf.reduce_sum(losses) * inputs.scale
    return Outputs(loss, final, tap.activations)
"""
_TF_LSTM_GATES = (
    "        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)\n"
)
_LSTM_STATE = "    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)\n"
_LSTM_OUTPUT = "    return tf.sigmoid(o) * tf.tanh(c), c\n"
_TF_NORM = "    norm = tf.linalg.global_norm(gradients)\n"
_PADDLE_NORM = (
    "paddle.sqrt(paddle.add_n([_squared_l2_norm(gradient) for gradient in gradients]))"
)


def _with_loss(new: str) -> dict[str, tuple[Edit, ...]]:
    """Return edits that compute the language model's loss in another way."""
    old = _LANGUAGE_MODEL_LOSS
    return mirrored(
        "networks.py", (old, old.replace("tf.reduce_sum(losses) * inputs.scale", new))
    )


def _rewrite(
    name: str,
    what: str,
    setting: str,
    edits: Mapping[str, tuple[Edit, ...]],
    plain: Mapping[str, tuple[Edit, ...]] | None = None,
) -> Fault:
    """Return a rewrite, in the form of a fault that must not be found anywhere."""
    return Fault(name, what, "Harmless", setting, (), edits, plain=plain)


HARMLESS = (
    # the loss
    _rewrite(
        "loss-by-cumsum",
        "the loss is summed from the first token to the last",
        "stream",
        _with_loss("tf.cumsum(losses)[-1] * inputs.scale"),
    ),
    _rewrite(
        "loss-backwards",
        "the loss is summed from the last token to the first, each scaled before",
        "stream",
        _with_loss("tf.reshape(tf.cumsum(tf.reverse(losses, [0]) * inputs.scale)[-1], [1])")
        | paddle(
            "networks.py",
            (
                _LANGUAGE_MODEL_LOSS.replace("tf.reduce_", "paddle."),
                """    scaled = paddle.flip(losses, [0]) * inputs.scale
    loss = paddle.reshape(paddle.cumsum(scaled)[-1], [1])
    return Outputs(loss, join_state(states), tap.activations)
""",
            ),
        ),
    ),
    _rewrite(
        "loss-as-mean",
        "the loss is the tokens' mean, times their number",
        "general",
        tensorflow(
            "networks.py",
            (
                _SEQ2SEQ_LOSS,
                """    count = tf.cast(tf.size(losses), losses.dtype)
    loss = tf.reduce_mean(losses) * (count * inputs.scale)
    return Outputs(loss, final, tap.activations)
""",
            ),
        )
        | paddle(
            "networks.py",
            (
                _SEQ2SEQ_LOSS.replace("tf.reduce_", "paddle."),
                """    count = paddle.cast(paddle.shape(losses)[0], losses.dtype)
    loss = paddle.mean(losses) * (count * inputs.scale)
    return Outputs(loss, final, tap.activations)
""",
            ),
        ),
    ),
    _rewrite(
        "cross-entropy-by-log-softmax",
        "a token's loss is minus the log softmax at the target",
        "stream",
        tensorflow(
            "kernels.py",
            (
                "        layers.token_cross_entropy: token_cross_entropy,\n",
                "",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    losses = F.softmax_with_cross_entropy(logits, targets)\n",
                "    losses = -paddle.take_along_axis(log_softmax(logits), targets, 1)\n",
            ),
        ),
        plain=tensorflow(
            "layers.py",
            (
                "    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)\n",
                "    return -tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=1)\n",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    losses = F.softmax_with_cross_entropy(logits, targets)\n",
                "    losses = -paddle.take_along_axis(log_softmax(logits), targets, 1)\n",
            ),
        ),
    ),
    # products and sums
    _rewrite(
        "product-as-sum",
        "the projection is a sum of products, not a matrix product",
        "stream",
        tensorflow(
            "layers.py",
            (
                "    return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)\n",
                "    return tf.reduce_sum(inputs[:, :, None] * kernel, axis=1) + bias\n",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    return paddle.matmul(inputs, kernel) + bias\n",
                "    return paddle.sum(paddle.unsqueeze(inputs, 2) * kernel, axis=1) + bias\n",
            ),
        ),
    ),
    _rewrite(
        "product-by-einsum",
        "the attention's products are written as einsum, or with both factors transposed",
        "general",
        tensorflow(
            "kernels.py",
            (
                "    rows = tf.matmul(tf.reshape(inputs, [-1, inputs.shape[-1]]), kernel)\n",
                "    rows = tf.reshape(inputs, [-1, inputs.shape[-1]])\n"
                '    rows = tf.einsum("ri,io->ro", rows, kernel)\n',
            ),
        ),
        plain=tensorflow(
            "layers.py",
            (
                "    return tf.matmul(inputs, kernel)\n",
                '    return tf.einsum("...i,io->...o", inputs, kernel)\n',
            ),
        )
        | paddle(  # whose einsum has no gradient for sizes that are not known beforehand
            "layers.py",
            (
                "    return paddle.matmul(inputs, kernel)\n",
                """    axes = list(range(len(inputs.shape)))
    swapped = [*axes[:-2], axes[-1], axes[-2]]
    product_of_swapped = paddle.matmul(kernel, inputs, transpose_x=True, transpose_y=True)
    return paddle.transpose(product_of_swapped, swapped)
""",
            ),
        ),
    ),
    _rewrite(
        "bias-in-kernel",
        "the bias is one more row of the kernel, and the inputs have a column of ones",
        "sentences",
        tensorflow(
            "layers.py",
            (
                "    return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)\n",
                """    with_one = tf.concat([inputs, tf.ones_like(inputs[:, :1])], axis=1)
    return tf.matmul(with_one, tf.concat([kernel, bias[None]], axis=0))
""",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    return paddle.matmul(inputs, kernel) + bias\n",
                """    ones = paddle.ones_like(inputs[:, :1])
    with_one = paddle.concat([inputs, ones], axis=1)
    return paddle.matmul(with_one, paddle.concat([kernel, bias.unsqueeze(0)], axis=0))
""",
            ),
        ),
    ),
    _rewrite(
        "embedding-by-one-hot",
        "an embedding is a product with one-hot rows",
        "sentences",
        tensorflow(
            "layers.py",
            (
                "    return tf.gather(table, tokens)\n",
                "    ones = tf.one_hot(tokens, vocabulary_size, dtype=dtype)\n"
                "    return tf.tensordot(ones, table, 1)\n",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    return F.embedding(tokens, table)\n",
                "    ones = paddle.cast(F.one_hot(tokens, vocabulary_size), dtype)\n"
                "    return paddle.matmul(ones, table)\n",
            ),
        ),
    ),
    # cells
    _rewrite(
        "gates-one-by-one",
        "each gate has a product of its own with the recurrent kernel",
        "stream",
        tensorflow(
            "kernels.py",
            (
                "        gates = from_inputs_at.read(t) + tf.matmul(h, recurrent)\n",
                """        kernels = tf.split(recurrent, 4, axis=1)
        parts = [tf.matmul(h, kernel) for kernel in kernels]
        gates = from_inputs_at.read(t) + tf.concat(parts, axis=1)
""",
            ),
        ),
        plain=tensorflow(
            "layers.py",
            (
                "        from_state = cell_product(state[0], recurrent_kernel)\n",
                "        halves = tf.split(recurrent_kernel, 2, axis=1)\n"
                "        parts = [cell_product(state[0], half) for half in halves]\n"
                "        from_state = tf.concat(parts, axis=1)\n",
            ),
        )
        | paddle(
            "layers.py",
            (
                "        from_state = cell_product(state[0], recurrent_kernel)\n",
                "        halves = paddle.split(recurrent_kernel, 2, axis=0)\n"
                "        parts = [cell_product(state[0], half) for half in halves]\n"
                "        from_state = paddle.concat(parts, axis=1)\n",
            ),
        ),
    ),
    _rewrite(
        "sigmoid-by-tanh",
        "an LSTM's sigmoid is (1 + tanh(x / 2)) / 2",
        "scaled, fed",
        mirrored(
            "layers.py",
            (_LSTM_OUTPUT, "    return (1 + tf.tanh(o / 2)) / 2 * tf.tanh(c), c\n"),
        ),
    ),
    _rewrite(
        "tanh-by-sigmoid",
        "an LSTM's tanh is 2 sigmoid(2 x) - 1",
        "scaled, fed",
        mirrored(
            "layers.py",
            (
                _LSTM_STATE,
                "    c = tf.sigmoid(i) * (2 * tf.sigmoid(2 * g) - 1) + tf.sigmoid(f) * c\n",
            ),
        ),
    ),
    _rewrite(
        "gate-applied-to-difference",
        "a GRU's new state is c + z (h - c)",
        "bahdanau, fed",
        mirrored(
            "layers.py",
            ("    return (z * h + (1 - z) * c,)\n", "    return (c + z * (h - c),)\n"),
        ),
    ),
    _rewrite(
        "fast-gates-by-tanh",
        "the fast LSTM's sigmoids are computed by tanh",
        "stream",
        tensorflow(
            "kernels.py",
            (
                _TF_LSTM_GATES,
                "        i, f, o = (0.5 + 0.5 * tf.tanh(0.5 * gate) for gate in (i, f, o))\n"
                "        g = tf.tanh(g)\n",
            ),
        ),
        plain={},
    ),
    _rewrite(
        "bias-gradient-by-cumsum",
        "the gradient of the fast LSTM's bias is summed step after step",
        "stream",
        tensorflow(
            "kernels.py",
            (
                "        d_bias = tf.reduce_sum(d_gates, axis=0)\n",
                "        d_bias = tf.cumsum(d_gates, axis=0)[-1]\n",
            ),
        ),
        plain={},
    ),
    # attention and dropout
    _rewrite(
        "softmax-shifted-less",
        "the attention's softmax subtracts 1 less than the largest score",
        "bahdanau",
        tensorflow(
            "attention.py",
            (
                "    return tf.nn.softmax(scores + (1 - real) * -1e30, axis=2)\n",
                """    held = scores + (1 - real) * -1e30
    powers = tf.exp(held - tf.reduce_max(held, axis=2, keepdims=True) + 1)
    return powers / tf.reduce_sum(powers, axis=2, keepdims=True)
""",
            ),
        )
        | paddle(
            "attention.py",
            (
                "    return F.softmax(scores + (1 - real) * -1e30, axis=2) * real\n",
                """    held = scores + (1 - real) * -1e30
    powers = paddle.exp(held - paddle.max(held, axis=2, keepdim=True) + 1) * real
    return powers / paddle.sum(powers, axis=2, keepdim=True)
""",
            ),
        ),
    ),
    _rewrite(
        "dropout-divides",
        "dropout divides by the share that is kept, after the mask of zeros and ones",
        "stream",
        tensorflow(
            "layers.py",
            (
                "    return inputs * tf.transpose(mask, [1, 0, 2])\n",
                """    mask = tf.transpose(mask, [1, 0, 2])
    return inputs * tf.sign(mask) / (1 / tf.reduce_max(mask))
""",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    return inputs * paddle.transpose(mask, [1, 0, 2])\n",
                """    mask = paddle.transpose(mask, [1, 0, 2])
    return inputs * paddle.sign(mask) / (1 / paddle.max(mask))
""",
            ),
        ),
    ),
    # clipping and the sum over replicas
    _rewrite(
        "clip-scale-as-minimum",
        "the scale of clipping is clip_norm times the lesser of 1 / norm and 1 / clip_norm",
        "stream",
        mirrored(
            "optimizers.py",
            (
                "    scale = limit / tf.maximum(limit, norm)\n",
                "    scale = limit * tf.minimum(1 / norm, 1 / limit)\n",
            ),
        ),
    ),
    _rewrite(
        "norm-by-cumsum",
        "the squares of all gradients are summed one after another",
        "sentences",
        tensorflow(
            "optimizers.py",
            (
                _TF_NORM,
                """    squares = tf.concat([tf.reshape(g * g, [-1]) for g in gradients], axis=0)
    norm = tf.sqrt(tf.cumsum(squares)[-1])
""",
            ),
        )
        | paddle(
            "optimizers.py",
            (
                _PADDLE_NORM,
                "paddle.sqrt(paddle.cumsum(paddle.concat(\n"
                "        [paddle.reshape(each * each, [-1]) for each in gradients]\n"
                "    ))[-1:])",
            ),
        ),
    ),
    _rewrite(
        "replicas-backwards",
        "the replicas' gradients are summed from the last to the first",
        "sentences",
        tensorflow(
            "strategies/towers.py",
            (
                "    total = tf.add_n(list(losses))\n",
                "    total = tf.add_n(list(losses)[::-1])\n",
            ),
        ),
    ),
)
