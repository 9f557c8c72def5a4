"""The layers that the networks are made of; time comes first inside a network.

Every numerical argument is passed; no default of the framework decides a value.
"""

import tensorflow as tf

tf1 = tf.compat.v1


def parameter(name, shape, dtype):
    """Return the trainable variable of a canonical name, made on first use.

    Args:
      name: canonical name, which the framework's variable carries too.
      shape: shape in this framework's layout.
      dtype: "float32" or "float64".
    """
    zeros = tf1.zeros_initializer()
    variable = tf1.get_variable(name, shape, dtype, initializer=zeros, use_resource=True)
    # differs: read once per tower, on its device, so that no gradient is tied to another's
    return tf.identity(variable)


def embedding(tokens, name, vocabulary_size, embedding_size, dtype):
    """Look tokens up in a table.

    Args:
      tokens: int64 [time, batch].

    Returns:
      [time, batch, embedding_size].
    """
    table = parameter(f"{name}/table", [vocabulary_size, embedding_size], dtype)
    return tf.gather(table, tokens)


def dropout(inputs, mask):
    """Multiply by a mask that was drawn outside; None is no dropout.

    Args:
      inputs: [time, batch, width].
      mask: [batch, time, width] of 0 or 1/keep, or None.
    """
    if mask is None:
        return inputs
    return inputs * tf.transpose(mask, [1, 0, 2])


def lstm(inputs, lengths, h, c, name, hidden_size):
    """Run one LSTM layer; beyond a row's length its state stands still and its output is zero.

    Gates are ordered i, f, g, o in `{name}/input_kernel`, `{name}/recurrent_kernel` and
    `{name}/bias`.

    Args:
      inputs: [time, batch, input].
      lengths: int64 [batch], real tokens per row, each in 0..time.
      h, c: [batch, hidden], the state before the first step.

    Returns:
      hidden [time, batch, hidden], and the final h and c, each [batch, hidden].

    Source: Zaremba et al. 2014, arXiv:1409.2329.
    """
    dtype, gates = inputs.dtype, 4 * hidden_size
    kernel = parameter(f"{name}/input_kernel", [inputs.shape[-1], gates], dtype)
    recurrent_kernel = parameter(f"{name}/recurrent_kernel", [hidden_size, gates], dtype)
    bias = parameter(f"{name}/bias", [gates], dtype)
    real = tf.cast(_real(inputs, lengths), dtype)[:, :, None]
    # differs: no op of this framework has an LSTM with exact gradients in both precisions
    return _lstm(inputs, real, h, c, kernel, recurrent_kernel, bias)


@tf.custom_gradient
def _lstm(inputs, real, h, c, kernel, recurrent, bias):
    """Loop over time; the gradient loops back over the saved gates.

    The products that need no loop are taken once for all steps: the inputs' part of the gates
    before it, and the gradients of inputs and kernels after it.

    Args:
      inputs: [time, batch, input].
      real: [time, batch, 1], one up to each row's length and zero beyond.
    """
    dtype, steps = inputs.dtype, tf.shape(inputs)[0]
    width, size = inputs.shape[-1], recurrent.shape[0]

    def array(width):
        return tf.TensorArray(dtype, steps, element_shape=[None, width])

    def step_gates(rows):
        return tf.reshape(rows, [steps, -1, 4 * size])

    flat = tf.reshape(inputs, [-1, width])
    from_inputs = array(4 * size).unstack(step_gates(tf.matmul(flat, kernel) + bias))
    on_at = array(1).unstack(real)

    def forward(t, h, c, hidden_at, gates_at, h_at, c_at, tanh_at):
        i, f, g, o = tf.split(from_inputs.read(t) + tf.matmul(h, recurrent), 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        new_c = f * c + i * g
        tanh_c = tf.tanh(new_c)
        new_h = o * tanh_c
        on = on_at.read(t)
        return (
            t + 1,
            tf.where(on > 0, new_h, h),
            tf.where(on > 0, new_c, c),
            hidden_at.write(t, new_h * on),
            gates_at.write(t, tf.concat([i, f, g, o], axis=1)),
            h_at.write(t, h),
            c_at.write(t, c),
            tanh_at.write(t, tanh_c),
        )

    arrays = [array(size), array(4 * size), array(size), array(size), array(size)]
    _, last_h, last_c, *written = tf.while_loop(
        lambda t, *_: t < steps, forward, [0, h, c, *arrays]
    )
    hidden, gates, before_h, before_c, tanh_c = (each.stack() for each in written)

    def gradient(d_hidden, d_last_h, d_last_c):
        gates_at, c_at, tanh_at = (
            array(each.shape[-1]).unstack(each) for each in (gates, before_c, tanh_c)
        )
        d_hidden_at, on_at = array(size).unstack(d_hidden), array(1).unstack(real)

        def backward(t, d_h, d_c, d_gates_at):
            i, f, g, o = tf.split(gates_at.read(t), 4, axis=1)
            tanh_c, on = tanh_at.read(t), on_at.read(t)
            d_new_h = (d_h + d_hidden_at.read(t)) * on
            d_new_c = d_c * on + d_new_h * o * (1 - tanh_c * tanh_c)
            d_gates = tf.concat(
                [
                    d_new_c * g * i * (1 - i),
                    d_new_c * c_at.read(t) * f * (1 - f),
                    d_new_c * i * (1 - g * g),
                    d_new_h * tanh_c * o * (1 - o),
                ],
                axis=1,
            )
            d_before = tf.matmul(d_gates, recurrent, transpose_b=True)
            return (
                t - 1,
                tf.where(on > 0, d_before, d_h),
                tf.where(on > 0, d_new_c * f, d_c),
                d_gates_at.write(t, d_gates),
            )

        _, d_h, d_c, d_gates_at = tf.while_loop(
            lambda t, *_: t >= 0, backward, [steps - 1, d_last_h, d_last_c, array(4 * size)]
        )
        d_gates = tf.reshape(d_gates_at.stack(), [-1, 4 * size])
        d_inputs = tf.reshape(tf.matmul(d_gates, kernel, transpose_b=True), tf.shape(inputs))
        d_kernel = tf.matmul(flat, d_gates, transpose_a=True)
        d_recurrent = tf.matmul(tf.reshape(before_h, [-1, size]), d_gates, transpose_a=True)
        d_bias = tf.reduce_sum(d_gates, axis=0)
        return d_inputs, None, d_h, d_c, d_kernel, d_recurrent, d_bias

    return (hidden, last_h, last_c), gradient


def gru(inputs, lengths, h, name, hidden_size):
    """Run one GRU layer; beyond a row's length its state stands still and its output is zero.

    Gates are ordered r, z, c in `{name}/input_kernel`, `{name}/recurrent_kernel` and
    `{name}/bias`. The reset gate comes after the product with the recurrent kernel:
    c = tanh(x W_c + b_c + r * (h U_c)), h' = z * h + (1 - z) * c.

    Args:
      inputs: [time, batch, input].
      lengths: int64 [batch], real tokens per row, each in 0..time.
      h: [batch, hidden], the state before the first step.

    Returns:
      hidden [time, batch, hidden], and the final h [batch, hidden].

    Source: Cho et al. 2014, arXiv:1406.1078, with the reset gate where cuDNN has it.
    """
    dtype, gates = inputs.dtype, 3 * hidden_size
    kernel = parameter(f"{name}/input_kernel", [inputs.shape[-1], gates], dtype)
    recurrent_kernel = parameter(f"{name}/recurrent_kernel", [hidden_size, gates], dtype)
    bias = parameter(f"{name}/bias", [gates], dtype)
    real = tf.cast(_real(inputs, lengths), dtype)[:, :, None]

    def step(product, state, inputs, masks, shared):
        (h,), (from_inputs,), (on,) = state, inputs, masks
        (new_h,) = _gru_cell(from_inputs, product(h, 0), h)
        return [tf.where(on > 0, new_h, h)], [new_h * on]

    # differs: no op of this framework is a GRU of this kind
    (hidden,), (last_h,) = _scan(
        step,
        state=[h],
        inputs=[_product(inputs, kernel) + bias],
        masks=[real],
        weights=[recurrent_kernel],
        shared=[],
        widths=[hidden_size],
    )
    return hidden, last_h


def recurrent(inputs, lengths, state, name, cell, hidden_size):
    """Run one layer of either cell.

    Args:
      inputs: [time, batch, input].
      lengths: int64 [batch], real tokens per row, each in 0..time.
      state: before the first step, (h, c) of an LSTM or (h,) of a GRU, each [batch, hidden].
      cell: "lstm" or "gru".

    Returns:
      hidden [time, batch, hidden], and the final state.
    """
    layer = {"lstm": lstm, "gru": gru}[cell]
    hidden, *state = layer(inputs, lengths, *state, name, hidden_size)
    return hidden, tuple(state)


def bidirectional(inputs, lengths, name, cell, hidden_size):
    """Run one layer in both directions, each with half of the units.

    Args:
      inputs: [time, batch, input].
      lengths: int64 [batch], real tokens per row, each in 0..time.
      cell: "lstm" or "gru".

    Returns:
      hidden [time, batch, hidden], and the final state; in all the forward layer's half comes
      first.

    Source: Schuster and Paliwal 1997; half the units each as in OpenNMT.
    """
    size = hidden_size // 2
    state = zero_state(inputs, cell, size)
    ahead, last_ahead = recurrent(inputs, lengths, state, f"{name}/forward", cell, size)
    turned = reverse(inputs, lengths)
    back, last_back = recurrent(turned, lengths, state, f"{name}/backward", cell, size)
    hidden = tf.concat([ahead, reverse(back, lengths)], axis=2)
    last = zip(last_ahead, last_back, strict=True)
    return hidden, tuple(tf.concat(parts, axis=1) for parts in last)


def reverse(inputs, lengths):
    """Turn each row's real steps around; padding stays at the end.

    Args:
      inputs: [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.

    Returns:
      [time, batch, width].
    """
    return tf.reverse_sequence(inputs, lengths, seq_axis=0, batch_axis=1)


def zero_state(inputs, cell, hidden_size):
    """Return the state before a text, (h, c) of an LSTM or (h,) of a GRU.

    Args:
      inputs: [time, batch, input].
      cell: "lstm" or "gru".

    Returns:
      A tuple of zeros, each [batch, hidden].
    """
    zeros = tf.zeros([tf.shape(inputs)[1], hidden_size], inputs.dtype)
    return (zeros, zeros) if cell == "lstm" else (zeros,)


def attention_keys(memory, kind):
    """Return what queries are held against: a memory, or a product of it.

    `attention/memory_kernel` is that of all kinds but "dot"; `attention/scale` of "scaled".

    Args:
      memory: [batch, source_time, hidden].
      kind: "dot", "general", "scaled" or "bahdanau".

    Returns:
      [batch, source_time, hidden].
    """
    if kind == "dot":
        return memory
    size, dtype = memory.shape[-1], memory.dtype
    keys = _product(memory, parameter("attention/memory_kernel", [size, size], dtype))
    if kind == "scaled":
        return keys * parameter("attention/scale", [1], dtype)
    return keys


def attend(queries, keys, memory, lengths, kind):
    """Mix the steps of a memory for each query, by how well they fit.

    A score is the product of query and key; for "bahdanau" it is v . tanh(query Q + key), with
    Q `attention/query_kernel` and v `attention/score_kernel`.

    Args:
      queries: [time, batch, hidden].
      keys: of `attention_keys`, [batch, source_time, hidden].
      memory: [batch, source_time, hidden].
      lengths: int64 [batch], real steps of the memory per row, each in 1..source_time.
      kind: "dot", "general", "scaled" or "bahdanau".

    Returns:
      context [time, batch, hidden], and weights [time, batch, source_time], which are exactly
      zero beyond a row's length.

    Sources: Luong et al. 2015, arXiv:1508.04025, eq. 7 and 8; Bahdanau et al. 2015,
    arXiv:1409.0473, A.1.2.
    """
    size, dtype = memory.shape[-1], memory.dtype
    if kind == "bahdanau":
        query_kernel = parameter("attention/query_kernel", [size, size], dtype)
        score_kernel = parameter("attention/score_kernel", [size], dtype)
        queries = tf.transpose(_product(queries, query_kernel), [1, 0, 2])
        scores = _additive_scores(queries, keys, score_kernel)
    else:
        scores = tf.matmul(tf.transpose(queries, [1, 0, 2]), keys, transpose_b=True)
    weights = tf.nn.softmax(scores + _beyond(memory, lengths)[:, None])
    context = tf.matmul(weights, memory)
    return tf.transpose(context, [1, 0, 2]), tf.transpose(weights, [1, 0, 2])


def attentional(context, hidden):
    """Combine a context with the decoder's output: tanh([context; hidden] C).

    C is `attention/output_kernel`.

    Args:
      context, hidden: [time, batch, hidden].

    Returns:
      [time, batch, hidden].

    Source: Luong et al. 2015, arXiv:1508.04025, eq. 5.
    """
    size = hidden.shape[-1]
    kernel = parameter("attention/output_kernel", [2 * size, size], hidden.dtype)
    return tf.tanh(_product(tf.concat([context, hidden], axis=2), kernel))


def feeding_decoder(inputs, state, fed, keys, memory, lengths, masks, model):
    """Run a decoder whose bottom layer reads what attention found, one step after another.

    Luong's kinds feed the attentional output of the step before, and their query is the top
    layer's h of this step. Bahdanau's feeds the context of this step, and its query is the top
    layer's h of the step before. Steps beyond a row's length are computed like the others.

    Args:
      inputs: [time, batch, input], what the bottom layer reads beside what is fed.
      state: a tuple per layer before the first step, (h, c) of an LSTM or (h,) of a GRU, each
        [batch, hidden].
      fed: [batch, hidden], the attentional output before the first step.
      keys: of `attention_keys`, [batch, source_time, hidden].
      memory: [batch, source_time, hidden].
      lengths: int64 [batch], real steps of the memory per row, each in 1..source_time.
      masks: num_layers - 1 of [batch, time, hidden] of 0 or 1/keep, or None, on what each
        layer hands to the one above.
      model: Seq2seqSpec.

    Returns:
      hidden of each layer, context, attention weights and attentional outputs, each
      [time, batch, width]; the final state, a tuple per layer, and the last attentional output
      [batch, hidden].

    Sources: Luong et al. 2015, arXiv:1508.04025, section 3.3; Bahdanau et al. 2015,
    arXiv:1409.0473, A.1.2.
    """
    raise NotImplementedError


def linear(inputs, name, size):
    """Project the last axis with a kernel and a bias.

    Args:
      inputs: [rows, input].

    Returns:
      [rows, size].
    """
    kernel = parameter(f"{name}/kernel", [inputs.shape[-1], size], inputs.dtype)
    bias = parameter(f"{name}/bias", [size], inputs.dtype)
    return tf.matmul(inputs, kernel) + bias


def real_rows(inputs, lengths):
    """Keep the real steps, as rows; time varies slowest.

    Args:
      inputs: [time, batch] or [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.

    Returns:
      [real tokens] or [real tokens, width].
    """
    return tf.gather_nd(inputs, tf.where(_real(inputs, lengths)))


def token_cross_entropy(logits, targets):
    """Return each token's cross entropy.

    Args:
      logits: [tokens, vocabulary].
      targets: int64 [tokens].

    Returns:
      [tokens].
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)


def _real(inputs, lengths):
    """Return whether a step is one of its row's real ones, [time, batch].

    Args:
      inputs: [time, batch, ...].
    """
    return tf.range(tf.shape(inputs, tf.int64)[0])[:, None] < lengths


def _beyond(memory, lengths):
    """Return what takes scores out of a softmax, [batch, source_time].

    Zero, and beyond a row's length a number so far below that exp of it is exactly zero.
    """
    real = tf.sequence_mask(lengths, tf.shape(memory)[1])
    return tf.where(real, tf.zeros([], memory.dtype), tf.constant(-1e30, memory.dtype))


def _product(inputs, kernel):
    """Multiply the last axis, on rows: a product of rank 3 is slower, its gradient more so."""
    rows = tf.matmul(tf.reshape(inputs, [-1, inputs.shape[-1]]), kernel)
    return tf.reshape(rows, tf.concat([tf.shape(inputs)[:-1], [kernel.shape[-1]]], axis=0))


def _additive_scores(queries, keys, score_kernel):
    """Return v . tanh(query + key) for each query and key, [batch, time, source_time].

    Args:
      queries: [batch, time, hidden].
      keys: [batch, source_time, hidden].
    """
    fit = tf.tanh(queries[:, :, None] + keys[:, None])
    return tf.reduce_sum(fit * score_kernel, axis=3)
