"""Faults of the attention and of what is fed back into the decoder."""

from parity.twins.faults.edits import mirrored, paddle, tensorflow
from parity.twins.faults.fault import Fault

_WEIGHTS = ("forward/attention/weights",)
_CONTEXT = ("forward/attention/context",)
_SOFTMAX = "    return tf.nn.softmax(scores + (1 - real) * -1e30, axis=2)\n"
_PADDLE_SOFTMAX = "    return F.softmax(scores + (1 - real) * -1e30, axis=2) * real\n"
_NOT_MASKED = tensorflow(
    "attention.py", (_SOFTMAX, "    return tf.nn.softmax(scores, axis=2)\n")
) | paddle("attention.py", (_PADDLE_SOFTMAX, "    return F.softmax(scores, axis=2)\n"))
_ADDITIVE = "fit = tf.tanh(tf.expand_dims(queries, 2) + tf.expand_dims(keys, 1))\n"
_LUONG_END = "        return (state, output), [output, *map(recorded, seen)]\n"

FAULTS = (
    Fault(
        "attention-axis",
        "the attention's softmax runs over the queries, not over the source",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow("attention.py", (_SOFTMAX, _SOFTMAX.replace("axis=2", "axis=1")))
        | paddle(
            "attention.py", (_PADDLE_SOFTMAX, _PADDLE_SOFTMAX.replace("axis=2", "axis=1"))
        ),
        unconfirmable_reason="the oracle's decoder attends with one query at a time",
    ),
    Fault(
        "attention-not-masked",
        "attention also looks at the padding of the source",
        "Attention",
        "general",
        _WEIGHTS,
        _NOT_MASKED,
    ),
    Fault(
        "attention-not-masked-fed",
        "attention inside the decoder's loop also looks at the padding of the source",
        "Attention",
        "scaled, fed",
        _WEIGHTS,
        _NOT_MASKED
        | tensorflow(
            "kernels.py",
            ("found = tf.nn.softmax(scores + beyond)", "found = tf.nn.softmax(scores)"),
        ),
        plain=_NOT_MASKED,
    ),
    Fault(
        "attention-mask-weak",
        "scores of padding are lowered by 10 only, and keep a little weight",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow("attention.py", (_SOFTMAX, _SOFTMAX.replace("-1e30", "-10.0")))
        | paddle(
            "attention.py",
            (_PADDLE_SOFTMAX, "    return F.softmax(scores + (1 - real) * -10.0, axis=2)\n"),
        ),
    ),
    Fault(
        "attention-mask-short",
        "attention does not look at the last word of the source",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow(
            "attention.py",
            (
                "< tf.expand_dims(lengths, 1)\n",
                "< tf.expand_dims(tf.maximum(lengths - 1, 1), 1)\n",
            ),
        )
        | paddle(
            "attention.py",
            (
                "< paddle.unsqueeze(lengths, 1)\n",
                "< paddle.unsqueeze(paddle.clip(lengths - 1, 1, 99), 1)\n",
            ),
        ),
    ),
    Fault(
        "attention-scale-left-out",
        "the scores are not multiplied by the trained scale",
        "Attention",
        "scaled, fed",
        _WEIGHTS,
        mirrored(
            "attention.py",
            (
                'return keys * parameter("attention/scale", [1], dtype)',
                'return keys * (1 + 0 * parameter("attention/scale", [1], dtype))',
            ),
        ),
    ),
    Fault(
        "attention-root",
        "the scores are divided by the root of the width, as a transformer's are",
        "Attention",
        "general",
        _WEIGHTS,
        mirrored(
            "attention.py",
            (
                '    if kind == "scaled":\n        return keys *',
                '    keys = keys / size**0.5\n    if kind == "scaled":\n        return keys *',
            ),
        ),
    ),
    Fault(
        "memory-kernel-transposed",
        "a square kernel of the attention was carried over transposed",
        "Layout of kernels",
        "general",
        _WEIGHTS,
        mirrored(
            "attention.py",
            (
                'product(memory, parameter("attention/memory_kernel", [size, size], dtype))',
                'product(memory, tf.transpose(parameter("attention/memory_kernel", [size, size], dtype), [1, 0]))',
            ),
        ),
    ),
    Fault(
        "query-kernel-transposed",
        "the query's square kernel was carried over transposed",
        "Layout of kernels",
        "bahdanau",
        _WEIGHTS,
        mirrored(
            "attention.py",
            (
                "product(queries, query_kernel)",
                "product(queries, tf.transpose(query_kernel, [1, 0]))",
            ),
        ),
    ),
    Fault(
        "additive-no-tanh",
        "Bahdanau's score has no tanh",
        "Attention",
        "bahdanau",
        _WEIGHTS,
        tensorflow("kernels.py", ("fit = tf.tanh(queries + keys)", "fit = queries + keys"))
        | paddle("kernels.py", ("    fit = paddle.tanh(\n", "    fit = paddle.assign(\n")),
        plain=mirrored("attention.py", (_ADDITIVE, _ADDITIVE.replace("tf.tanh", ""))),
    ),
    Fault(
        "query-late",
        "each query is the decoder's output of the step before",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow(
            "networks.py",
            (
                "        context, weights = attend(\n            hidden[-1], keys",
                "        context, weights = attend(\n"
                "            tf.concat([hidden[-1][:1], hidden[-1][:-1]], axis=0), keys",
            ),
        )
        | paddle(
            "networks.py",
            (
                "        context, weights = attend(\n            hidden[-1], keys",
                "        context, weights = attend(\n"
                "            paddle.concat([hidden[-1][:1], hidden[-1][:-1]], axis=0), keys",
            ),
        ),
    ),
    Fault(
        "context-late",
        "what is fed into the decoder is one step too old",
        "Attention",
        "scaled, fed",
        ("forward/decoder/lstm_0/hidden",),
        tensorflow(
            "kernels.py",
            ("        state, fed = state\n", "        state, (fed, waiting) = state\n"),
            (
                '        fed = tf.tanh(product("output", tf.concat([context, query], axis=1)))\n'
                "        return (state, fed), [",
                "        late = waiting\n"
                '        fed = tf.tanh(product("output", tf.concat([context, query], axis=1)))\n'
                "        return (state, (late, fed)), [",
            ),
            (
                "luong_step, (state, fed), from_inputs",
                "luong_step, (state, (fed, fed)), from_inputs",
            ),
        ),
        plain=mirrored(
            "attention.py",
            ("        state, fed = held\n", "        state, (fed, waiting) = held\n"),
            (_LUONG_END, _LUONG_END.replace("(state, output)", "(state, (waiting, output))")),
            ("sequences, (state, fed), widths", "sequences, (state, (fed, fed)), widths"),
        ),
    ),
    Fault(
        "feeds-context",
        "the context is fed into the decoder in place of the attentional output",
        "Attention",
        "scaled, fed",
        ("forward/decoder/lstm_0/hidden",),
        tensorflow(
            "kernels.py",
            (
                "        return (state, fed), [*(each[0]",
                "        return (state, context), [*(each[0]",
            ),
        ),
        plain=mirrored(
            "attention.py",
            (_LUONG_END, _LUONG_END.replace("(state, output)", "(state, context)")),
        ),
    ),
    Fault(
        "context-and-output-swapped",
        "context and decoder output are joined in the other order",
        "Attention",
        "general",
        ("forward/attention/output",),
        mirrored(
            "attention.py",
            ("tf.concat([context, hidden], axis=-1)", "tf.concat([hidden, context], axis=-1)"),
        ),
    ),
    Fault(
        "attentional-sigmoid",
        "the attentional output goes through a sigmoid in place of tanh",
        "Attention",
        "general",
        ("forward/attention/output",),
        mirrored(
            "attention.py",
            (
                "return tf.tanh(product(tf.concat([context",
                "return tf.sigmoid(product(tf.concat([context",
            ),
        ),
    ),
    Fault(
        "context-without-weights",
        "the context is the plain mean of the source",
        "Attention",
        "general",
        _CONTEXT,
        tensorflow(
            "attention.py",
            (
                "        return tf.matmul(weights, memory), weights\n",
                "        mean = 0 * weights + tf.reduce_mean(weights, 2, keepdims=True)\n"
                "        return tf.matmul(mean, memory), weights\n",
            ),
        )
        | paddle(
            "attention.py",
            (
                "        return paddle.matmul(weights, memory), weights\n",
                "        mean = 0 * weights + paddle.mean(weights, 2, keepdim=True)\n"
                "        return paddle.matmul(mean, memory), weights\n",
            ),
        ),
    ),
)
