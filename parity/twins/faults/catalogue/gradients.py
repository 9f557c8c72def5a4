"""Faults of the backward pass, and of the sum over replicas."""

from parity.twins.faults.edits import mirrored, paddle, tensorflow
from parity.twins.faults.fault import Fault

_TOTAL = """    total = tf.add_n(list(losses))
    gradients = tf1.gradients(total, variables, colocate_gradients_with_ops=True)
"""
_DENSE = "    return [tf.convert_to_tensor(gradient) for gradient in gradients]\n"

FAULTS = (
    Fault(
        "block-lstm-v2",
        "TensorFlow 2.21 differentiates BlockLSTMV2 (gates i, f, c, o) by the gradient of "
        "BlockLSTM (i, c, f, o)",
        "LSTM gates",
        "stream",
        ("gradient/lstm_1/*",),
        tensorflow(
            "kernels.py",
            (
                "    return _lstm(inputs, real_steps(inputs, lengths), h, c, *weights)\n",
                """    kernel, recurrent_kernel, bias = weights
    none = tf.zeros([hidden_size], inputs.dtype)
    _, cells, _, _, _, _, hidden = tf.raw_ops.BlockLSTMV2(
        seq_len_max=tf.shape(inputs, tf.int64)[0],
        x=inputs,
        cs_prev=c,
        h_prev=h,
        w=tf.concat([kernel, recurrent_kernel], axis=0),
        wci=none,
        wcf=none,
        wco=none,
        b=bias,
        cell_clip=0.0,
        use_peephole=False,
    )

    def last(steps, before):
        steps = tf.concat([before[None], steps], axis=0)
        rows = tf.range(tf.shape(lengths, tf.int64)[0], dtype=tf.int64)
        return tf.gather_nd(steps, tf.stack([lengths, rows], axis=1))

    return hidden * real_steps(inputs, lengths), last(hidden, h), last(cells, c)
""",
            ),
        ),
        plain={},  # there no operation is an LSTM
        dtypes=("float32",),
        undetectable_reason="the operation has no float64 kernel",
    ),
    Fault(
        "tanh-derivative",
        "an LSTM's own gradient leaves out the derivative of the output's tanh",
        "LSTM gates",
        "stream",
        ("gradient/lstm_1/*",),
        tensorflow("kernels.py", ("of_c = o * (1 - tanh_c * tanh_c)", "of_c = o")),
        plain={},  # the framework's own gradient
    ),
    Fault(
        "gradient-of-inputs",
        "an LSTM's own gradient sends nothing of one gate down to its inputs",
        "LSTM gates",
        "stream",
        ("gradient/lstm_0/*",),
        tensorflow(
            "kernels.py",
            (
                "d_inputs = tf.reshape(tf.matmul(d_gates, kernel, transpose_b=True), tf.shape(inputs))",
                "d_inputs = tf.reshape(tf.matmul(d_gates[:, size:], kernel[:, size:], transpose_b=True), tf.shape(inputs))",
            ),
        ),
        plain={},  # the framework's own gradient
    ),
    Fault(
        "loop-bias-averaged",
        "a bias's gradient, taken once after a decoder's loop, is the steps' mean, not their sum",
        "Loops over time",
        "scaled, fed",
        ("gradient/decoder/*bias",),
        paddle(
            "loop_gradients.py",
            ('return "reduce_sum", {"X": [rows]}', 'return "reduce_mean", {"X": [rows]}'),
        ),
        unconfirmable_reason="the oracle adds up within its own loop",
        plain={},  # the framework's own gradient
    ),
    Fault(
        "loop-matrix-transposed",
        "a decoder's loop hands the query's gradient back through the matrix itself, not transposed",
        "Loops over time",
        "bahdanau, fed",
        ("gradient/attention/*",),
        paddle(
            "loop_reads.py",
            ('"Y": [block.var(copy)]', '"Y": [block.var(matrix)]'),
        ),
        unconfirmable_reason="the oracle has a gradient of its own for the query",
        plain={},  # the framework's own gradient
    ),
    Fault(
        "cut-in-time",
        "back-propagation in time stops after every step",
        "State from batch to batch",
        "stream",
        ("gradient/lstm_1/*",),
        tensorflow(
            "kernels.py",
            (
                "            tf.where(on > 0, d_before, d_h),\n",
                "            tf.where(on > 0, 0 * d_before, d_h),\n",
            ),
        ),
        plain=mirrored(
            "layers.py",
            (
                "from_state = cell_product(state[0], recurrent_kernel)",
                "from_state = cell_product(recorded(state[0]), recurrent_kernel)",
            ),
        ),
    ),
    Fault(
        "encoder-cut-off",
        "no gradient flows from the decoder's first state into the encoder",
        "Beyond a row's length",
        "general",
        ("gradient/encoder/*",),
        tensorflow(
            "networks.py",
            (
                "    outputs, _, _ = decode(model, batch, states, fed,",
                "    states = [tuple(map(tf.stop_gradient, each)) for each in states]\n"
                "    outputs, _, _ = decode(model, batch, states, fed,",
            ),
        )
        | paddle(
            "networks.py",
            (
                "    outputs, _, _ = decode(model, batch, states, fed,",
                "    states = [tuple(part.detach() for part in each) for each in states]\n"
                "    outputs, _, _ = decode(model, batch, states, fed,",
            ),
        ),
    ),
    Fault(
        "memory-cut-off",
        "no gradient flows from the attention's keys into the encoder",
        "Attention",
        "general",
        ("gradient/encoder/*",),
        tensorflow(
            "networks.py",
            (
                "    keys = attention_keys(memory, model.attention)\n",
                "    keys = attention_keys(tf.stop_gradient(memory), model.attention)\n",
            ),
        )
        | paddle(
            "networks.py",
            (
                "    keys = attention_keys(memory, model.attention)\n",
                "    keys = attention_keys(memory.detach() + 0 * memory, model.attention)\n",
            ),
        ),
    ),
    Fault(
        "rows-overwrite",
        "of a token that occurs twice, the embedding's gradient keeps one occurrence",
        "Global norm with sparse gradients",
        "stream",
        ("gradient/embed/table",),
        tensorflow(
            "layers.py",
            (
                "    return tf.gather(table, tokens)\n",
                """
    @tf.custom_gradient
    def look_up(table):
        def gradient(d_rows):
            rows = tf.reshape(d_rows, [-1, embedding_size])
            places = tf.reshape(tokens, [-1, 1])
            return tf.tensor_scatter_nd_update(tf.zeros_like(table), places, rows)

        return tf.gather(table, tokens), gradient

    return look_up(table)
""",
            ),
        ),
    ),
    Fault(
        "gradient-averaged",
        "the replicas' gradients are averaged although the loss is divided already",
        "Loss scale over replicas",
        "stream",
        ("gradient/softmax/bias",),
        tensorflow(
            "strategies/towers.py",
            (
                "    total = tf.add_n(list(losses))\n",
                "    total = tf.add_n(list(losses)) / len(losses)\n",
            ),
        )
        | paddle(
            "executor.py",
            (
                "    strategy.gradient_scale_strategy = scale.One\n",
                "    strategy.gradient_scale_strategy = scale.CoeffNumDevice\n",
            ),
        ),
    ),
    Fault(
        "third-replica-left-out",
        "what a third replica computes is left out of the sum",
        "All-reduce",
        "three layers",
        ("gradient/softmax/bias", "loss/replicas"),
        tensorflow(
            "strategies/towers.py",
            (
                "    total = tf.add_n(list(losses))\n",
                "    total = tf.add_n(list(losses[:2]))\n",
            ),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n        values =",
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n"
                "        for feed in feeds[2:]:\n"
                '            feed["scale"] = np.zeros_like(feed["scale"])\n'
                "        values =",
            ),
        ),
    ),
    Fault(
        "unknown-not-trained",
        "the embedding of <unk> gets no gradient",
        "padding_idx",
        "unknown words",
        ("gradient/embed/table",),
        tensorflow(
            "layers.py",
            (
                "    return tf.gather(table, tokens)\n",
                "    rows = tf.gather(table, tokens)\n"
                "    unknown = tf.equal(tokens, 0)[:, :, None]\n"
                "    return tf.where(unknown, tf.stop_gradient(rows), rows)\n",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    return F.embedding(tokens, table)\n",
                "    rows = F.embedding(tokens, table)\n"
                "    known = paddle.unsqueeze(paddle.cast(tokens != 0, rows.dtype), 2)\n"
                "    frozen = paddle.assign(rows)\n"
                "    frozen.stop_gradient = True\n"
                "    return rows * known + frozen * (1 - known)\n",
            ),
        ),
    ),
    Fault(
        "one-gradient-not-reduced",
        "one parameter is left out of the all-reduce",
        "All-reduce",
        "stream",
        ("gradient/softmax/bias",),
        tensorflow(
            "strategies/towers.py",
            (
                _DENSE,
                "    alone = tf1.gradients(losses[0], variables)\n"
                "    gradients = [\n"
                '        one if variable.op.name == "softmax/bias" else gradient\n'
                "        for one, gradient, variable in zip(alone, gradients, variables)\n"
                "    ]\n" + _DENSE,
            ),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (
                "        names = {parameter.name for parameter in self._parameters}\n",
                "        for operation in program.global_block().ops:\n"
                '            found = operation.attr("op_role_var") if operation.has_attr("op_role_var") else []\n'
                '            if operation.type.endswith("_grad") and "softmax/bias" in found:\n'
                '                operation._remove_attr("op_role_var")\n'
                "        names = {parameter.name for parameter in self._parameters}\n",
            ),
        ),
    ),
    Fault(
        "nothing-reduced",
        "the engine is not told of the loss, and each replica goes its own way",
        "All-reduce",
        "stream",
        ("gradient/softmax/bias",),
        paddle(
            "executor.py",
            ('            loss_name or "",\n', '            "",\n'),
        ),
    ),
    Fault(
        "order-of-sums",
        "the order in which gradients are summed differs from run to run",
        "Order of all-reduce",
        "sentences",
        ("*gradient*", "*loss*"),
        tensorflow(
            "strategies/towers.py",
            (
                _TOTAL,
                """    import sys

    first = sum(map(len, sys.argv)) % len(losses)
    each = [tf1.gradients(loss, variables) for loss in losses]
    each = each[first:] + each[:first]
    gradients = [tf.add_n(list(map(tf.convert_to_tensor, parts))) for parts in zip(*each)]
""",
            ),
        ),
        unconfirmable_reason="the numbers differ by rounding alone, from run to run",
    ),
)
