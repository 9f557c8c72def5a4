"""Faults of the attention and of what is fed back into the decoder."""

from parity.faults.catalogue.edits import mirrored, paddle, tensorflow
from parity.faults.fault import Fault

_WEIGHTS = ("forward/attention/weights",)
_CONTEXT = ("forward/attention/context",)
_TF_SOFTMAX = "weights = tf.nn.softmax(scores + _beyond(memory, lengths)[:, None])"
_PADDLE_SOFTMAX = "weights = F.softmax(scores + (1 - real) * -1e30, axis=2) * real"
_TF_FED_SOFTMAX = "found = tf.nn.softmax(scores + beyond)"

FAULTS = (
    Fault(
        "attention-axis",
        "the attention's softmax runs over the queries, not over the source",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow("layers.py", (_TF_SOFTMAX, _TF_SOFTMAX[:-1] + ", axis=1)"))
        | paddle("layers.py", (_PADDLE_SOFTMAX, _PADDLE_SOFTMAX.replace("axis=2", "axis=1"))),
    ),
    Fault(
        "attention-not-masked",
        "attention also looks at the padding of the source",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow("layers.py", (_TF_SOFTMAX, "weights = tf.nn.softmax(scores)"))
        | paddle("layers.py", (_PADDLE_SOFTMAX, "weights = F.softmax(scores, axis=2)")),
    ),
    Fault(
        "attention-not-masked-fed",
        "attention inside the decoder's loop also looks at the padding of the source",
        "Attention",
        "scaled, fed",
        _WEIGHTS,
        tensorflow("layers.py", (_TF_FED_SOFTMAX, "found = tf.nn.softmax(scores)"))
        | paddle("layers.py", (_PADDLE_SOFTMAX, "weights = F.softmax(scores, axis=2)")),
    ),
    Fault(
        "attention-mask-weak",
        "scores of padding are lowered by 10 only, and keep a little weight",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow(
            "layers.py",
            ("tf.constant(-1e30, memory.dtype)", "tf.constant(-10.0, memory.dtype)"),
        )
        | paddle(
            "layers.py",
            (_PADDLE_SOFTMAX, "weights = F.softmax(scores + (1 - real) * -10.0, axis=2)"),
        ),
    ),
    Fault(
        "attention-mask-short",
        "attention does not look at the last word of the source",
        "Attention",
        "general",
        _WEIGHTS,
        tensorflow(
            "layers.py",
            (
                "tf.sequence_mask(lengths, tf.shape(memory)[1])",
                "tf.sequence_mask(tf.maximum(lengths - 1, 1), tf.shape(memory)[1])",
            ),
        )
        | paddle(
            "layers.py",
            (
                'real = paddle.arange(paddle.shape(memory)[1], dtype="int64") < lengths.unsqueeze(1)',
                'real = paddle.arange(paddle.shape(memory)[1], dtype="int64") < paddle.clip(lengths - 1, 1, 99).unsqueeze(1)',
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
            "layers.py",
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
            "layers.py",
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
        tensorflow(
            "layers.py",
            (
                'keys = _product(memory, parameter("attention/memory_kernel", [size, size], dtype))',
                'keys = _product(memory, tf.transpose(parameter("attention/memory_kernel", [size, size], dtype)))',
            ),
        )
        | paddle(
            "layers.py",
            (
                'keys = _product(memory, parameter("attention/memory_kernel", [size, size], dtype))',
                'keys = _product(memory, parameter("attention/memory_kernel", [size, size], dtype), True)',
            ),
        ),
    ),
    Fault(
        "query-kernel-transposed",
        "the query's square kernel was carried over transposed",
        "Layout of kernels",
        "bahdanau",
        _WEIGHTS,
        tensorflow(
            "layers.py",
            (
                "queries = tf.transpose(_product(queries, query_kernel), [1, 0, 2])",
                "queries = tf.transpose(_product(queries, tf.transpose(query_kernel)), [1, 0, 2])",
            ),
        )
        | paddle(
            "layers.py",
            (
                "queries = paddle.transpose(_product(queries, query_kernel), [1, 0, 2])",
                "queries = paddle.transpose(_product(queries, query_kernel, True), [1, 0, 2])",
            ),
        ),
    ),
    Fault(
        "additive-no-tanh",
        "Bahdanau's score has no tanh",
        "Attention",
        "bahdanau",
        _WEIGHTS,
        tensorflow("layers.py", ("fit = tf.tanh(queries + keys)", "fit = queries + keys"))
        | paddle("layers.py", ("    fit = paddle.tanh(\n", "    fit = paddle.assign(\n")),
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
            "layers.py",
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
    ),
    Fault(
        "feeds-context",
        "the context is fed into the decoder in place of the attentional output",
        "Attention",
        "scaled, fed",
        ("forward/decoder/lstm_0/hidden",),
        tensorflow(
            "layers.py",
            (
                "        return (state, fed), [*(each[0]",
                "        return (state, context), [*(each[0]",
            ),
        ),
    ),
    Fault(
        "context-and-output-swapped",
        "context and decoder output are joined in the other order",
        "Attention",
        "general",
        ("forward/attention/output",),
        tensorflow(
            "layers.py",
            (
                "tf.tanh(_product(tf.concat([context, hidden], axis=-1), kernel))",
                "tf.tanh(_product(tf.concat([hidden, context], axis=-1), kernel))",
            ),
        )
        | paddle(
            "layers.py",
            (
                "paddle.concat([context, hidden], axis=-1)",
                "paddle.concat([hidden, context], axis=-1)",
            ),
        ),
    ),
    Fault(
        "attentional-sigmoid",
        "the attentional output goes through a sigmoid in place of tanh",
        "Attention",
        "general",
        ("forward/attention/output",),
        tensorflow(
            "layers.py",
            (
                "return tf.tanh(_product(tf.concat([context",
                "return tf.sigmoid(_product(tf.concat([context",
            ),
        )
        | paddle(
            "layers.py",
            (
                "return paddle.tanh(_product(paddle.concat([context",
                "return F.sigmoid(_product(paddle.concat([context",
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
            "layers.py",
            (
                "    context = tf.matmul(weights, memory)\n    return",
                "    context = tf.matmul(0 * weights + tf.reduce_mean(weights, 2, keepdims=True), memory)\n    return",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    context = paddle.matmul(weights, memory)\n",
                "    context = paddle.matmul(0 * weights + paddle.mean(weights, 2, keepdim=True), memory)\n",
            ),
        ),
    ),
)
