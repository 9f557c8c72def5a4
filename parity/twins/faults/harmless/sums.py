"""Harmless rewrites of the loss, of products and other sums, and of clipping."""

from parity.twins.faults.edits import mirrored, paddle, tensorflow
from parity.twins.faults.fault import Edit
from parity.twins.faults.harmless.rewrite import rewrite

_LANGUAGE_MODEL_LOSS = """    loss = tf.reduce_sum(losses) * inputs.scale
    return Outputs(loss, join_state(states), tap.activations)
"""
_SEQ2SEQ_LOSS = """    loss = tf.reduce_sum(losses) * inputs.scale
    return Outputs(loss, final, tap.activations)
"""
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


REWRITES = (
    # the loss
    rewrite(
        "loss-by-cumsum",
        "the loss is summed from the first token to the last",
        "stream",
        _with_loss("tf.cumsum(losses)[-1] * inputs.scale"),
    ),
    rewrite(
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
    rewrite(
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
    rewrite(
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
    rewrite(
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
    rewrite(
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
    rewrite(
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
    rewrite(
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
    # clipping and the sum over replicas
    rewrite(
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
    rewrite(
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
    rewrite(
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
