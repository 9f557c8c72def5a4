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

    # What a step leaves is kept in one array: each more has operations of its own in the loop.
    def forward(t, h, c, kept_at):
        i, f, g, o = tf.split(from_inputs.read(t) + tf.matmul(h, recurrent), 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        new_c = f * c + i * g
        tanh_c = tf.tanh(new_c)
        new_h = o * tanh_c
        on = on_at.read(t)
        h, c = (
            tf.where(on > 0, new_h, h),
            tf.where(on > 0, new_c, c),
        )
        return t + 1, h, c, kept_at.write(t, tf.concat([h, c, i, f, g, o, tanh_c], axis=1))

    _, last_h, last_c, kept_at = tf.while_loop(
        lambda t, *_: t < steps, forward, [0, h, c, array(7 * size)]
    )
    after_h, after_c, *gates, tanh_c = tf.split(kept_at.stack(), 7, axis=2)
    hidden = after_h * real

    def gradient(d_hidden, d_last_h, d_last_c):
        i, f, g, o = gates
        before_h, before_c = (
            tf.concat([first[None], after[:-1]], axis=0)
            for first, after in ((h, after_h), (c, after_c))
        )
        # What the gates' gradients are multiples of: the first three of c's, the last of h's.
        of_gates = [
            g * i * (1 - i),
            before_c * f * (1 - f),
            i * (1 - g * g),
            tanh_c * o * (1 - o),
        ]
        of_c = o * (1 - tanh_c * tanh_c)
        saved = tf.concat([*of_gates, of_c, f, d_hidden], axis=2)
        saved_at, on_at = array(7 * size).unstack(saved), array(1).unstack(real)
        turned = _turned(recurrent)

        def backward(t, d_h, d_c, d_gates_at):
            of_gates, of_c, f, d_hidden = tf.split(
                saved_at.read(t), [4 * size, size, size, size], axis=1
            )
            on = on_at.read(t)
            d_new_h = (d_h + d_hidden) * on
            d_new_c = d_c * on + d_new_h * of_c
            d_gates = tf.concat([d_new_c, d_new_c, d_new_c, d_new_h], axis=1) * of_gates
            d_before = tf.matmul(d_gates, turned)
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

    from_inputs = _product(inputs, kernel) + bias

    def step(product, h, from_inputs, real, shared):
        (new_h,) = _gru_cell(from_inputs, product("recurrent", h), h)
        return tf.where(real > 0, new_h, h), [new_h * real]

    # differs: no op of this framework is a GRU of this kind
    (hidden,), last_h = _scan(
        step, h, from_inputs, real, {"recurrent": recurrent_kernel}, {}, [hidden_size]
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
        scores = _additive_scores(queries[:, :, None], keys[:, None], score_kernel)
    else:
        scores = tf.matmul(tf.transpose(queries, [1, 0, 2]), keys, transpose_b=True)
    weights = tf.nn.softmax(scores + _beyond(memory, lengths)[:, None])
    context = tf.matmul(weights, memory)
    return tf.transpose(context, [1, 0, 2]), tf.transpose(weights, [1, 0, 2])


def attentional(context, hidden):
    """Combine a context with the decoder's output: tanh([context; hidden] C).

    C is `attention/output_kernel`.

    Args:
      context, hidden: [..., hidden].

    Returns:
      [..., hidden].

    Source: Luong et al. 2015, arXiv:1508.04025, eq. 5.
    """
    size = hidden.shape[-1]
    kernel = parameter("attention/output_kernel", [2 * size, size], hidden.dtype)
    return tf.tanh(_product(tf.concat([context, hidden], axis=-1), kernel))


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
    layers, size, dtype = range(model.num_layers), model.hidden_size, inputs.dtype
    cell, gates = {"lstm": (_lstm_cell, 4), "gru": (_gru_cell, 3)}[model.cell]
    bahdanau = model.attention == "bahdanau"
    weights, shared = {"memory": memory}, {}
    for k in layers:
        name = f"decoder/{model.cell}_{k}"
        width = size if k else inputs.shape[-1] + size
        kernel = parameter(f"{name}/input_kernel", [width, gates * size], dtype)
        bias = parameter(f"{name}/bias", [gates * size], dtype)
        if k == 0:
            # The part of the inputs needs no loop.
            kernel, weights["input_0"] = tf.split(kernel, [width - size, size])
            from_inputs = _product(inputs, kernel) + bias
        else:
            weights[f"input_{k}"], shared[f"bias_{k}"] = kernel, bias
        shape = [size, gates * size]
        weights[f"recurrent_{k}"] = parameter(f"{name}/recurrent_kernel", shape, dtype)
    if bahdanau:
        weights["query"] = parameter("attention/query_kernel", [size, size], dtype)
        shared |= {"score": parameter("attention/score_kernel", [size], dtype), "keys": keys}
    else:
        weights["keys"] = tf.transpose(keys, [0, 2, 1])
        weights["output"] = parameter("attention/output_kernel", [2 * size, size], dtype)
    beyond = _beyond(memory, lengths)
    dropped = {
        k: tf.transpose(mask, [1, 0, 2]) for k, mask in enumerate(masks, 1) if mask is not None
    }

    def cells(product, state, from_inputs, fed, masks, shared):
        from_below = from_inputs + product("input_0", fed)
        new_state = []
        for k in layers:
            if k > 0:
                rows = new_state[-1][0] * masks[k] if k in masks else new_state[-1][0]
                from_below = product(f"input_{k}", rows) + shared[f"bias_{k}"]
            new_state.append(
                cell(from_below, product(f"recurrent_{k}", state[k][0]), *state[k])
            )
        return new_state

    def weigh(product, scores):
        found = tf.nn.softmax(scores + beyond)
        return product("memory", found), found

    def luong_step(product, state, from_inputs, masks, shared):
        state, fed = state
        state = cells(product, state, from_inputs, fed, masks, shared)
        query = state[-1][0]
        context, found = weigh(product, product("keys", query))
        fed = tf.tanh(product("output", tf.concat([context, query], axis=1)))
        return (state, fed), [*(each[0] for each in state), context, found, fed]

    def bahdanau_step(product, state, from_inputs, masks, shared):
        query = product("query", state[-1][0])
        scores = _additive_scores(query[:, None], shared["keys"], shared["score"])
        context, found = weigh(product, scores)
        state = cells(product, state, from_inputs, context, masks, shared)
        return state, [*(each[0] for each in state), context, found]

    widths = [size] * model.num_layers + [size, None]
    if bahdanau:
        (*hidden, context, found), state = _scan(
            bahdanau_step, state, from_inputs, dropped, weights, shared, widths
        )
        outputs = attentional(context, hidden[-1])
    else:
        (*hidden, context, found, outputs), (state, _) = _scan(
            luong_step, (state, fed), from_inputs, dropped, weights, shared, [*widths, size]
        )
    return hidden, context, found, outputs, state, outputs[-1]


def linear(inputs, name, size):
    """Project the last axis with a kernel and a bias.

    Args:
      inputs: [rows, input].

    Returns:
      [rows, size].
    """
    kernel = parameter(f"{name}/kernel", [inputs.shape[-1], size], inputs.dtype)
    bias = parameter(f"{name}/bias", [size], inputs.dtype)
    return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)


def real_rows(inputs, lengths):
    """Keep the real steps, as rows; time varies slowest.

    Args:
      inputs: [time, batch] or [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.

    Returns:
      [real tokens] or [real tokens, width].
    """
    return tf.gather_nd(inputs, tf.where(_real(inputs, lengths)))


def log_softmax(logits):
    """Return log probabilities.

    Args:
      logits: [rows, vocabulary].

    Returns:
      [rows, vocabulary].
    """
    return tf.nn.log_softmax(logits)


def token_cross_entropy(logits, targets):
    """Return each token's cross entropy.

    Args:
      logits: [tokens, vocabulary].
      targets: int64 [tokens].

    Returns:
      [tokens].
    """
    # differs: this framework's own op is three times slower on a processor
    return _cross_entropy(logits, targets)


@tf.custom_gradient
def _cross_entropy(logits, targets):
    """Return max - logit of the target - log(probability of the max), of each row.

    That probability is at least one over the vocabulary, however small the target's is.
    """
    probabilities = tf.nn.softmax(logits)
    rows = tf.range(tf.shape(targets, tf.int64)[0])
    at_targets = tf.stack([rows, targets], axis=1)
    most, likeliest = (tf.reduce_max(each, axis=1) for each in (logits, probabilities))
    losses = (most - tf.gather_nd(logits, at_targets)) - tf.math.log(likeliest)

    def gradient(d_losses):
        scaled = probabilities * d_losses[:, None]
        # in place, which `tensor_scatter_nd_sub` is not
        apart = tf.raw_ops.ScatterNdNonAliasingAdd(
            input=scaled, indices=at_targets, updates=-d_losses
        )
        return apart, None

    return losses, gradient


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
    """Return v . tanh(query + key) of all pairs, [..., source_time].

    Args:
      queries: [..., 1, hidden].
      keys: [..., source_time, hidden].
    """
    fit = tf.tanh(queries + keys)
    rows = tf.matmul(tf.reshape(fit, [-1, fit.shape[-1]]), score_kernel[:, None])
    return tf.reshape(rows, tf.shape(fit)[:-1])


def _lstm_cell(from_inputs, from_h, h, c):
    """Take one step of an LSTM, gates i, f, g, o."""
    i, f, g, o = tf.split(from_inputs + from_h, 4, axis=1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def _gru_cell(from_inputs, from_h, h):
    """Take one step of a GRU, gates r, z, c."""
    inputs_r, inputs_z, inputs_c = tf.split(from_inputs, 3, axis=1)
    h_r, h_z, h_c = tf.split(from_h, 3, axis=1)
    z = tf.sigmoid(inputs_z + h_z)
    c = tf.tanh(inputs_c + tf.sigmoid(inputs_r + h_r) * h_c)
    return (z * h + (1 - z) * c,)


def _scan(step, state, inputs, masks, weights, shared, widths):
    """Run a step over time, with a gradient that takes each weight's product once, at the end.

    The gradient walks back over the saved states and products, and has that of a step by
    `tf.gradients`.

    Args:
      step: called with (product, state, inputs, masks, shared) of one step, returns the next
        state and a list of outputs. `product(name, rows)` multiplies by a weight.
      state: before the first step; like inputs and masks a tensor or a structure of them.
      inputs: [time, batch, width].
      masks: [time, batch, width], which get no gradient.
      weights: name -> [rows, columns] or [batch, rows, columns]; each step uses each once.
      shared: name -> what steps read otherwise; its gradient is summed in the loop.
      widths: of the outputs; None where unknown.

    Returns:
      outputs [time, batch, width], and the state after the last step.
    """
    nest = tf.nest

    def read(arrays, t):
        return nest.map_structure(lambda array: array.read(t), arrays)

    def write(arrays, t, values):
        return nest.map_structure(lambda array, value: array.write(t, value), arrays, values)

    def stack(arrays):
        return nest.map_structure(lambda array: array.stack(), arrays)

    @tf.custom_gradient
    def run(state, inputs, masks, weights, shared):
        steps = tf.shape(nest.flatten(inputs)[0])[0]
        dtype = nest.flatten(inputs)[0].dtype

        def empty(width):
            return tf.TensorArray(dtype, steps, element_shape=[None, width])

        def unstack(tensors):
            return nest.map_structure(lambda each: empty(each.shape[-1]).unstack(each), tensors)

        inputs_at, masks_at = unstack(inputs), unstack(masks)

        def forward(t, state, states_at, outputs_at, products_at):
            products = {}

            def product(name, rows):
                products[name] = _multiply(rows, weights[name])
                return products[name]

            new_state, outputs = step(
                product, state, read(inputs_at, t), read(masks_at, t), shared
            )
            return (
                t + 1,
                new_state,
                write(states_at, t, state),
                write(outputs_at, t, outputs),
                write(products_at, t, products),
            )

        _, last, states_at, outputs_at, products_at = tf.while_loop(
            lambda t, *_: t < steps,
            forward,
            [
                0,
                state,
                nest.map_structure(lambda each: empty(each.shape[-1]), state),
                [empty(width) for width in widths],
                {name: empty(weight.shape[-1]) for name, weight in weights.items()},
            ],
        )
        results = stack(outputs_at), last

        def gradient(*d_results):
            d_outputs, d_last = nest.pack_sequence_as(results, d_results)
            turned = {name: _turned(weight) for name, weight in weights.items()}
            d_outputs_at = unstack(d_outputs)

            def backward(t, d_state, d_shared, d_inputs_at, rows_at, d_products_at):
                rows, products = {}, {}

                def product(name, factor):
                    rows[name] = factor
                    products[name] = _known_product(
                        factor, turned[name], products_at[name].read(t)
                    )
                    return products[name]

                # As tensors of this step, to have gradients.
                copies = nest.map_structure(tf.identity, shared)
                before, inputs = read(states_at, t), read(inputs_at, t)
                after = step(product, before, inputs, read(masks_at, t), copies)
                sources = before, inputs, copies, products
                gradients = tf.gradients(
                    nest.flatten(after),
                    nest.flatten(sources),
                    nest.flatten((d_state, read(d_outputs_at, t))),
                )
                d_before, d_inputs, d_copies, d_products = nest.pack_sequence_as(
                    sources, gradients
                )
                return (
                    t - 1,
                    d_before,
                    nest.map_structure(tf.add, d_shared, d_copies),
                    write(d_inputs_at, t, d_inputs),
                    write(rows_at, t, rows),
                    write(d_products_at, t, d_products),
                )

            _, d_state, d_shared, d_inputs_at, rows_at, d_products_at = tf.while_loop(
                lambda t, *_: t >= 0,
                backward,
                [
                    steps - 1,
                    d_last,
                    nest.map_structure(tf.zeros_like, shared),
                    nest.map_structure(lambda each: empty(each.shape[-1]), inputs),
                    {name: empty(weight.shape[-2]) for name, weight in weights.items()},
                    {name: empty(weight.shape[-1]) for name, weight in weights.items()},
                ],
            )
            d_weights = {
                name: _weight_gradient(
                    rows_at[name].stack(), d_products_at[name].stack(), weight
                )
                for name, weight in weights.items()
            }
            no_gradient = nest.map_structure(lambda each: None, masks)
            return d_state, stack(d_inputs_at), no_gradient, d_weights, d_shared

        return results, gradient

    return run(state, inputs, masks, weights, shared)


def _multiply(rows, weight):
    """Multiply rows [batch, width] by one matrix, or each by its own."""
    if weight.shape.rank == 2:
        return tf.matmul(rows, weight)
    return tf.squeeze(tf.matmul(rows[:, None], weight), 1)


def _turned(weight):
    """Transpose a weight for a loop: a product would do it anew at every step."""
    return tf.linalg.matrix_transpose(weight)


def _known_product(rows, turned, result):
    """Return a product that is known already, with the gradient of rows.

    Args:
      rows: [batch, width].
      turned: the weight, transposed.
      result: [batch, columns].
    """

    @tf.custom_gradient
    def product(rows):
        return result, lambda d_result: _multiply(d_result, turned)

    return product(rows)


def _weight_gradient(rows, d_products, weight):
    """Return the gradient of a weight over all steps.

    Args:
      rows: what each step multiplied by the weight, [time, batch, width].
      d_products: the gradient of each step's product, [time, batch, width].
    """
    if weight.shape.rank == 2:
        rows = tf.reshape(rows, [-1, rows.shape[-1]])
        d_products = tf.reshape(d_products, [-1, d_products.shape[-1]])
        return tf.matmul(rows, d_products, transpose_a=True)
    return tf.matmul(tf.transpose(rows, [1, 2, 0]), tf.transpose(d_products, [1, 0, 2]))
