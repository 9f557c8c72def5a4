"""The layers that the networks are made of; time comes first inside a network.

Every numerical argument is passed; no default of the framework decides a value.
"""

import paddle
import paddle.nn.functional as F  # noqa: N812 - its usual name

_LARGEST_LOSS = 63.0  # up to which softmax tells a token's loss


def parameter(name, shape, dtype):
    """Return the trainable variable of a canonical name, made on first use.

    Args:
      name: canonical name, which the framework's variable carries too.
      shape: shape in this framework's layout.
      dtype: "float32" or "float64".
    """
    attribute = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Constant(0.0))
    return paddle.create_parameter(shape, dtype, attr=attribute)


def embedding(tokens, name, vocabulary_size, embedding_size, dtype):
    """Look tokens up in a table.

    Args:
      tokens: int64 [time, batch].

    Returns:
      [time, batch, embedding_size].
    """
    table = parameter(f"{name}/table", [vocabulary_size, embedding_size], dtype)
    return F.embedding(tokens, table)


def dropout(inputs, mask):
    """Multiply by a mask that was drawn outside; None is no dropout.

    Args:
      inputs: [time, batch, width].
      mask: [batch, time, width] of 0 or 1/keep, or None.
    """
    if mask is None:
        return inputs
    return inputs * paddle.transpose(mask, [1, 0, 2])


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
    hidden, (last_h, last_c) = _rnn("LSTM", inputs, lengths, (h, c), name, hidden_size)
    return hidden, last_h, last_c


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
    hidden, (last_h,) = _rnn("GRU", inputs, lengths, (h,), name, hidden_size)
    return hidden, last_h


def _rnn(mode, inputs, lengths, state, name, hidden_size):
    """Append the op that runs either cell."""
    kernel, recurrent_kernel, bias = _cell_parameters(
        name, mode.lower(), inputs.shape[-1], hidden_size, inputs.dtype
    )
    # differs: the op wants a second bias; it is a constant zero, and its gradient goes unused
    second_bias = paddle.zeros(bias.shape, inputs.dtype)
    second_bias.stop_gradient = False
    block = paddle.static.default_main_program().current_block()
    parts = ["hidden", "reserve", "dropout_state"] + [f"last_{k}" for k in range(len(state))]
    hidden, reserve, unused, *last = (
        block.create_var(name=f"{name}/{part}", dtype=inputs.dtype) for part in parts
    )
    block.append_op(
        type="rnn",
        inputs={
            "Input": [inputs],
            "WeightList": [kernel, recurrent_kernel, bias, second_bias],
            "PreState": [paddle.unsqueeze(each, 0) for each in state],
            "SequenceLength": [paddle.cast(lengths, "int32")],
        },
        outputs={
            "Out": [hidden],
            "State": last,
            "Reserve": [reserve],
            "DropoutState": [unused],
        },
        attrs={
            "mode": mode,
            "num_layers": 1,
            "is_bidirec": False,
            "input_size": inputs.shape[-1],
            "hidden_size": hidden_size,
            "dropout_prob": 0.0,
            "is_test": False,
        },
    )
    return hidden, [paddle.squeeze(each, 0) for each in last]


def _cell_parameters(name, cell, input_size, hidden_size, dtype):
    gates = {"lstm": 4, "gru": 3}[cell] * hidden_size
    # differs: this framework's kernels are transposed; parity/spec/parameters.py declares it
    kernel = parameter(f"{name}/input_kernel", [gates, input_size], dtype)
    recurrent_kernel = parameter(f"{name}/recurrent_kernel", [gates, hidden_size], dtype)
    return kernel, recurrent_kernel, parameter(f"{name}/bias", [gates], dtype)


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
    hidden = paddle.concat([ahead, reverse(back, lengths)], axis=2)
    last = zip(last_ahead, last_back, strict=True)
    return hidden, tuple(paddle.concat(parts, axis=1) for parts in last)


def reverse(inputs, lengths):
    """Turn each row's real steps around; padding stays at the end.

    Args:
      inputs: [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.

    Returns:
      [time, batch, width].
    """
    step = paddle.arange(paddle.shape(inputs)[0], dtype="int64").unsqueeze(1)
    origin = paddle.where(step < lengths, lengths - 1 - step, step + 0 * lengths)
    batch = paddle.shape(inputs)[1]
    rows = origin * paddle.cast(batch, "int64") + paddle.arange(batch, dtype="int64")
    flat = paddle.reshape(inputs, [-1, inputs.shape[-1]])
    turned = paddle.gather(flat, paddle.reshape(rows, [-1]))
    return paddle.reshape(turned, [-1, batch, inputs.shape[-1]])


def zero_state(inputs, cell, hidden_size):
    """Return the state before a text, (h, c) of an LSTM or (h,) of a GRU.

    Args:
      inputs: [time, batch, input].
      cell: "lstm" or "gru".

    Returns:
      A tuple of zeros, each [batch, hidden].
    """
    zeros = paddle.zeros([paddle.shape(inputs)[1], hidden_size], inputs.dtype)
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
        queries = paddle.transpose(_product(queries, query_kernel), [1, 0, 2])
        scores = _additive_scores(queries, keys, score_kernel)
    else:
        scores = paddle.matmul(paddle.transpose(queries, [1, 0, 2]), keys, transpose_y=True)
    context, weights = _weigh(scores, memory, _real_memory(memory, lengths))
    return paddle.transpose(context, [1, 0, 2]), paddle.transpose(weights, [1, 0, 2])


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
    return paddle.tanh(_product(paddle.concat([context, hidden], axis=-1), kernel))


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
    asks_first, cells = model.attention == "bahdanau", _decoder_cells(model, inputs.dtype)
    kernel, _, bias = cells[0]
    width, parts = inputs.shape[-1], len(state[0])
    # The inputs' part of the bottom layer's gates needs no loop.
    from_inputs = _product(inputs, kernel[:, :width], transpose=True) + bias
    fed_kernel = kernel[:, width:]
    masked = [k for k, mask in enumerate(masks) if mask is not None]
    sequences = [from_inputs, *(paddle.transpose(masks[k], [1, 0, 2]) for k in masked)]
    attend_once = _attention_of_step(keys, memory, lengths, model.attention)

    def step(now, held):
        gates, mask_of = now[0], dict(zip(masked, now[1:], strict=True))
        layers, fed = _by_layer(held, parts, model.num_layers), held[-1]
        if asks_first:
            context, weights = attend_once(layers[-1][0])
            fed = context
        gates = gates + paddle.matmul(fed, fed_kernel, transpose_y=True)
        for k, (kernel, recurrent_kernel, bias) in enumerate(cells):
            if k > 0:
                below = layers[k - 1][0]
                below = below * mask_of[k - 1] if k - 1 in mask_of else below
                gates = paddle.matmul(below, kernel, transpose_y=True) + bias
            from_state = paddle.matmul(layers[k][0], recurrent_kernel, transpose_y=True)
            layers[k] = _CELLS[model.cell](gates, from_state, *layers[k])
        after, hidden = [part for layer in layers for part in layer], [h for h, *_ in layers]
        if not asks_first:
            context, weights = attend_once(hidden[-1])
            fed = attentional(context, hidden[-1])
            after.append(fed)
        return after, [*hidden, fed, context, weights]

    held = [part for layer in state for part in layer] + ([] if asks_first else [fed])
    trained = [False] * (model.num_layers - 1) + [asks_first, not asks_first, asks_first, False]
    held, (*hidden, outputs, context, weights) = _loop(step, sequences, held, trained)
    if asks_first:
        # Nothing in the loop waits for these.
        outputs = attentional(context, hidden[-1])
    state = _by_layer(held, parts, model.num_layers)
    return hidden, context, weights, outputs, state, outputs[-1]


def _attention_of_step(keys, memory, lengths, kind):
    """Return a function that does what `attend` does for one query per row.

    It is made of few operations: in a loop each costs as much as a small product.

    Returns:
      From query [batch, hidden] to context [batch, hidden] and weights [batch, source_time].
    """
    size, dtype, real = memory.shape[-1], memory.dtype, _real_memory(memory, lengths)
    of_keys, of_scores = paddle.shape(keys), paddle.shape(real)
    if kind == "bahdanau":
        query_kernel = parameter("attention/query_kernel", [size, size], dtype)
        score_kernel = parameter("attention/score_kernel", [size], dtype).unsqueeze(1)

    def attend_once(query):
        if kind == "bahdanau":
            moved = paddle.matmul(query, query_kernel).unsqueeze(1)
            # not `expand_as`: its gradient is wrong where a size is not known beforehand
            fit = paddle.tanh(paddle.expand(moved, of_keys) + keys)
            scores = paddle.matmul(paddle.reshape(fit, [-1, size]), score_kernel)
            scores = paddle.reshape(scores, of_scores)
        else:
            scores = paddle.matmul(query.unsqueeze(1), keys, transpose_y=True)
        context, weights = _weigh(scores, memory, real)
        return context.squeeze(1), weights.squeeze(1)

    return attend_once


def _decoder_cells(model, dtype):
    size, fed = model.hidden_size, model.embedding_size + model.hidden_size
    return [
        _cell_parameters(
            f"decoder/{model.cell}_{k}", model.cell, size if k else fed, size, dtype
        )
        for k in range(model.num_layers)
    ]


def _by_layer(parts, size, num_layers):
    return [tuple(parts[k * size : (k + 1) * size]) for k in range(num_layers)]


def _lstm_cell(from_inputs, from_state, h, c):
    i, f, g, o = paddle.split(from_inputs + from_state, 4, axis=-1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * paddle.tanh(g)
    return F.sigmoid(o) * paddle.tanh(c), c


def _gru_cell(from_inputs, from_state, h):
    (r, z, c), (r_state, z_state, c_state) = (
        paddle.split(part, 3, axis=-1) for part in (from_inputs, from_state)
    )
    c = paddle.tanh(c + F.sigmoid(r + r_state) * c_state)
    z = F.sigmoid(z + z_state)
    return (z * h + (1 - z) * c,)


_CELLS = {"lstm": _lstm_cell, "gru": _gru_cell}


def _loop(step, sequences, state, trained):
    """Run one step after another, as many as the sequences have.

    Args:
      step: from one step of each sequence and the state, to the new state and a list of what
        is to be kept.
      sequences: each [time, batch, width].
      state: list of [batch, width].
      trained: for each thing that is kept, whether a gradient comes back to it. The engine
        fails at the gradient of an array that has none.

    Returns:
      The final state, and what was kept, time first.
    """
    array_read, array_write = paddle.tensor.array_read, paddle.tensor.array_write
    t = paddle.zeros([1], "int64")
    steps = paddle.cast(paddle.shape(sequences[0])[:1], "int64")
    going = t < steps
    state = [paddle.assign(each) for each in state]
    for each in state:
        # Constant zeros too: the steps after the first need their gradients.
        each.stop_gradient = False
    held = [array_write(each, t) for each in state]
    kept = [paddle.tensor.create_array(sequences[0].dtype) for _ in trained]
    loop = paddle.static.nn.control_flow.While(going)
    with loop.block():
        now = [paddle.squeeze(paddle.gather(each, t), 0) for each in sequences]
        after, seen = step(now, [array_read(each, t) for each in held])
        for each, array, used in zip(seen, kept, trained, strict=True):
            if not used:
                each = paddle.assign(each)
                each.stop_gradient = array.stop_gradient = True
            array_write(each, t, array)
        paddle.increment(t)
        for each, array in zip(after, held, strict=True):
            array_write(each, t, array)
        paddle.assign(t < steps, going)
    final = [array_read(each, t) for each in held]
    widths = [each.shape[-1] for each in seen]
    return final, [_stack(array, width) for array, width in zip(kept, widths, strict=True)]


def _stack(array, width):
    stacked, _ = paddle.tensor.manipulation.tensor_array_to_tensor(array, 0, use_stack=True)
    shape = paddle.shape(stacked)
    return paddle.reshape(stacked, [shape[0], shape[1], width])


def linear(inputs, name, size):
    """Project the last axis with a kernel and a bias.

    Args:
      inputs: [rows, input].

    Returns:
      [rows, size].
    """
    kernel = parameter(f"{name}/kernel", [inputs.shape[-1], size], inputs.dtype)
    bias = parameter(f"{name}/bias", [size], inputs.dtype)
    return paddle.matmul(inputs, kernel) + bias


def real_rows(inputs, lengths):
    """Keep the real steps, as rows; time varies slowest.

    Args:
      inputs: [time, batch] or [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.

    Returns:
      [real tokens] or [real tokens, width].
    """
    # differs: Paddle multiplies no matrix of no rows; where no step is real, the first of each
    # row stands in, and split_feeds has set the scale of the loss to zero
    none = paddle.cast(paddle.max(lengths) == 0, lengths.dtype)
    real = _real(inputs, paddle.maximum(lengths, none))
    real = paddle.nonzero(paddle.reshape(real, [-1]))
    return paddle.gather(paddle.reshape(inputs, [-1, *inputs.shape[2:]]), real.squeeze(1))


def log_softmax(logits):
    """Return log probabilities.

    Args:
      logits: [rows, vocabulary].

    Returns:
      [rows, vocabulary].
    """
    # differs: this framework's own is a hundred times slower on a processor
    shifted = logits - paddle.max(logits, axis=1, keepdim=True)
    return shifted - paddle.log(paddle.sum(paddle.exp(shifted), axis=1, keepdim=True))


def token_cross_entropy(logits, targets):
    """Return each token's cross entropy.

    Args:
      logits: [tokens, vocabulary].
      targets: int64 [tokens].

    Returns:
      [tokens].
    """
    targets = paddle.unsqueeze(targets, 1)
    losses = F.softmax_with_cross_entropy(logits, targets)
    # differs: a target that softmax gives next to nothing has a loss that ends somewhere beyond
    # 63 here; where there is one, what it lacks is added: its gradient is right
    lacking = paddle.static.nn.cond(
        paddle.max(losses) > _LARGEST_LOSS,
        lambda: _lacking(logits, targets, losses),
        lambda: paddle.zeros_like(losses),
    )
    lacking.stop_gradient = True
    return paddle.squeeze(losses + lacking, 1)


def _lacking(logits, targets, losses):
    """Return what large losses, [tokens, 1], lack, and zero for the others."""
    most = paddle.max(logits, axis=1, keepdim=True)
    of_all = paddle.log(paddle.sum(paddle.exp(logits - most), axis=1, keepdim=True))
    exact = of_all + (most - paddle.take_along_axis(logits, targets, 1))
    return paddle.where(losses > _LARGEST_LOSS, exact - losses, paddle.zeros_like(losses))


def _real(inputs, lengths):
    """Return whether a step is one of its row's real ones, [time, batch].

    Args:
      inputs: [time, batch, ...].
    """
    return paddle.arange(paddle.shape(inputs)[0], dtype="int64").unsqueeze(1) < lengths


def _real_memory(memory, lengths):
    """Return one for each real step of a memory, [batch, 1, source_time], and zero beyond."""
    real = paddle.arange(paddle.shape(memory)[1], dtype="int64") < lengths.unsqueeze(1)
    return paddle.cast(real, memory.dtype).unsqueeze(1)


def _weigh(scores, memory, real):
    """Return the context [batch, time, hidden] and the weights that scores give a memory.

    Args:
      scores: [batch, time, source_time].
      memory: [batch, source_time, hidden].
      real: of `_real_memory`.
    """
    # differs: Paddle's softmax takes no exponential below that of -64, and so leaves 1e-28
    weights = F.softmax(scores + (1 - real) * -1e30, axis=2) * real
    context = paddle.matmul(weights, memory)
    return context, weights


def _product(inputs, kernel, transpose=False):
    """Multiply the last axis, on rows: a product of rank 3 is slower, its gradient more so."""
    if len(inputs.shape) == 2:
        return paddle.matmul(inputs, kernel, transpose_y=transpose)
    rows = paddle.reshape(inputs, [-1, inputs.shape[-1]])
    rows = paddle.matmul(rows, kernel, transpose_y=transpose)
    shape = paddle.shape(inputs)
    return paddle.reshape(rows, [shape[0], shape[1], rows.shape[-1]])


def _additive_scores(queries, keys, score_kernel):
    """Return v . tanh(query + key) for each query and key, [batch, time, source_time].

    Args:
      queries: [batch, time, hidden].
      keys: [batch, source_time, hidden].
    """
    batch, source_time, size = paddle.shape(keys)[0], paddle.shape(keys)[1], keys.shape[-1]
    time = paddle.shape(queries)[1]
    # Copied out and summed by a product: the gradients of broadcasting are the slower ones.
    shape = [batch, time, source_time, size]
    fit = paddle.tanh(
        paddle.expand(queries.unsqueeze(2), shape) + paddle.expand(keys.unsqueeze(1), shape)
    )
    scores = paddle.matmul(paddle.reshape(fit, [-1, size]), score_kernel.unsqueeze(1))
    return paddle.reshape(scores, shape[:3])
