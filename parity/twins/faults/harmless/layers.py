"""Harmless rewrites of cells, attention and dropout."""

from parity.twins.faults.edits import mirrored, paddle, tensorflow
from parity.twins.faults.harmless.rewrite import rewrite

_TF_LSTM_GATES = (
    "        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)\n"
)
_LSTM_STATE = "    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)\n"
_LSTM_OUTPUT = "    return tf.sigmoid(o) * tf.tanh(c), c\n"

REWRITES = (
    # cells
    rewrite(
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
    rewrite(
        "sigmoid-by-tanh",
        "an LSTM's sigmoid is (1 + tanh(x / 2)) / 2",
        "scaled, fed",
        mirrored(
            "layers.py",
            (_LSTM_OUTPUT, "    return (1 + tf.tanh(o / 2)) / 2 * tf.tanh(c), c\n"),
        ),
    ),
    rewrite(
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
    rewrite(
        "gate-applied-to-difference",
        "a GRU's new state is c + z (h - c)",
        "bahdanau, fed",
        mirrored(
            "layers.py",
            ("    return (z * h + (1 - z) * c,)\n", "    return (c + z * (h - c),)\n"),
        ),
    ),
    rewrite(
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
    rewrite(
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
    rewrite(
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
    rewrite(
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
)
