"""Faults of weights and embeddings: initial values, layout, precision, sharing, look-up."""

from parity.twins.faults.edits import mirrored, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_EMBEDDED = ("forward/embedded",)
_VALUES = "        values = generator.random(parameter.shape)\n"
_TO_FRAMEWORK = (
    """    return np.asarray(swap_layout("{}", _parameter(name), array), order="C")"""
)

FAULTS = (
    Fault(
        "bias-from-zero",
        "biases start at zero, as a framework's own initialiser has them",
        "Initial values",
        "stream",
        ("forward/lstm_0/hidden",),
        shared(
            "parity/twins/spec/initial.py",
            (
                _VALUES,
                _VALUES
                + '        if parameter.name.endswith("/bias"):\n            values = values * 0 + 0.5\n',
            ),
        ),
    ),
    Fault(
        "glorot",
        "kernels start from a framework's own distribution (Glorot uniform)",
        "Initial values",
        "stream",
        ("forward/lstm_0/hidden",),
        shared(
            "parity/twins/spec/initial.py",
            (
                _VALUES,
                _VALUES
                + '        if parameter.name.endswith("kernel"):\n'
                + "            values = 0.5 + (values - 0.5) * (6 / sum(parameter.shape)) ** 0.5 / scale\n",
            ),
        ),
    ),
    Fault(
        "table-not-loaded",
        "the embedding keeps its own initial values",
        "Initial values",
        "stream",
        _EMBEDDED,
        shared(
            "parity/twins/spec/initial.py",
            ("PCG64([spec.training.seed, index])", "PCG64([spec.training.seed, index or 99])"),
        ),
    ),
    Fault(
        "half-precision-weight",
        "one kernel passed through float16 on its way",
        "Precision",
        "stream",
        ("forward/logits",),
        {
            side: shared(
                f"{folder}/weights.py",
                (
                    _TO_FRAMEWORK.format(side),
                    '    if name.endswith("softmax/kernel"):\n'
                    "        array = np.asarray(array, np.float16).astype(array.dtype)\n"
                    + _TO_FRAMEWORK.format(side),
                ),
            )[side]
            for side, folder in (("tensorflow", "tf_impl"), ("paddle", "paddle_impl"))
        },
    ),
    Fault(
        "half-precision-product",
        "the projection to the vocabulary is computed in bfloat16",
        "Precision",
        "stream",
        ("forward/logits",),
        tensorflow(
            "layers.py",
            (
                "    return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)\n",
                "    half = tf.matmul(tf.cast(inputs, tf.bfloat16), tf.cast(kernel, tf.bfloat16))\n"
                "    return tf.cast(half, inputs.dtype) + bias\n",
            ),
        ),
        unconfirmable_reason="in bfloat16 the order of a sum decides digits that the comparison sees",
    ),
    Fault(
        "single-precision-layer",
        "in a float64 run one layer's output passes through float32",
        "Precision",
        "stream",
        ("forward/lstm_0/hidden",),
        tensorflow(
            "networks.py",
            (
                '        hidden = tap(f"{name}/hidden", hidden)\n        hidden = dropout(hidden, masks.get(name))',
                "        hidden = tf.cast(tf.cast(hidden, tf.float32), hidden.dtype)\n"
                '        hidden = tap(f"{name}/hidden", hidden)\n        hidden = dropout(hidden, masks.get(name))',
            ),
        )
        | paddle(
            "networks.py",
            (
                '        hidden = tap(f"{name}/hidden", hidden)\n        hidden = dropout(hidden, masks.get(name))',
                '        hidden = paddle.cast(paddle.cast(hidden, "float32"), hidden.dtype)\n'
                '        hidden = tap(f"{name}/hidden", hidden)\n        hidden = dropout(hidden, masks.get(name))',
            ),
        ),
        dtypes=("float64",),
        undetectable_reason="a float32 run is in float32",
    ),
    Fault(
        "table-shifted",
        "the embedding's rows are shifted by one: the other side has no row for padding",
        "Embedding",
        "stream",
        _EMBEDDED,
        tensorflow(
            "layers.py",
            (
                "return tf.gather(table, tokens)",
                "return tf.gather(table, (tokens + 1) % vocabulary_size)",
            ),
        )
        | paddle(
            "layers.py",
            (
                "return F.embedding(tokens, table)",
                "return F.embedding((tokens + 1) % vocabulary_size, table)",
            ),
        ),
    ),
    Fault(
        "padding-index",
        "padding_idx names a real token, whose row reads as zero",
        "padding_idx",
        "stream",
        _EMBEDDED,
        tensorflow(
            "layers.py",
            (
                "return tf.gather(table, tokens)",
                "return tf.gather(table, tokens) * tf.cast(tf.not_equal(tokens, 1), dtype)[:, :, None]",
            ),
        )
        | paddle(
            "layers.py",
            (
                "return F.embedding(tokens, table)",
                "return F.embedding(tokens, table, padding_idx=1)",
            ),
        ),
    ),
    Fault(
        "embedding-root",
        "the embedding is multiplied by the root of its width, as a transformer's is",
        "Embedding",
        "general",
        ("forward/encoder/embedded",),
        mirrored(
            "layers.py",
            (
                '    table = parameter(f"{name}/table", [vocabulary_size, embedding_size], dtype)\n',
                '    table = parameter(f"{name}/table", [vocabulary_size, embedding_size], dtype)\n    table = table * embedding_size**0.5\n',
            ),
        ),
    ),
    Fault(
        "embeddings-shared",
        "source and target are looked up in one table",
        "Embedding",
        "general",
        ("forward/decoder/embedded",),
        mirrored(
            "networks.py",
            (
                '        tokens, "decoder/embed", model.target_vocabulary_size, model.embedding_size, fed.dtype\n    )\n',
                '        tokens, "decoder/embed", model.target_vocabulary_size, model.embedding_size, fed.dtype\n    )\n'
                "    embedded = 0 * embedded + embedding(\n"
                '        tokens, "encoder/embed", model.source_vocabulary_size, model.embedding_size, fed.dtype\n    )\n',
            ),
        ),
    ),
    Fault(
        "towers-do-not-share",
        "the second replica has a bias of its own, which starts at zero",
        "AUTO_REUSE",
        "stream",
        ("forward/logits",),
        tensorflow(
            "layers.py",
            (
                '    bias = parameter(f"{name}/bias", [size], inputs.dtype)\n',
                '    bias = parameter(f"{name}/bias", [size], inputs.dtype)\n'
                '    if "replica_1" in tf1.get_default_graph().get_name_scope():\n'
                "        bias = tf.zeros_like(bias)\n",
            ),
        ),
    ),
    Fault(
        "replicas-start-apart",
        "the weights are loaded into the first replica only",
        "Optimiser state",
        "stream",
        ("forward/embedded",),
        paddle(
            "weights.py",
            (
                "    for scope, place in zip(executor_scopes, places, strict=True):\n",
                "    for scope, place in zip(executor_scopes[:1], places[:1], strict=True):\n",
            ),
        ),
        unconfirmable_reason="the weights of the other replicas are not in the trace",
    ),
)
