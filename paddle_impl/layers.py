"""The layers that the networks are made of, as a textbook has them; time comes first.

They are built from the framework's own operations and differentiated by the framework itself.
What `kernels.py` can replace by something faster is declared `replaceable`. Every numerical
argument is passed; no default of the framework decides a value.
"""

import paddle
import paddle.nn.functional as F  # noqa: N812 - its usual name

from parity.twins.spec.replaceable import replaceable

_LARGEST_LOSS = 63.0  # above this loss, Paddle's softmax clips


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


@replaceable
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
    hidden, (h, c) = _loop_over_cell("lstm", inputs, lengths, (h, c), name, hidden_size)
    return hidden, h, c


@replaceable
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
    hidden, (h,) = _loop_over_cell("gru", inputs, lengths, (h,), name, hidden_size)
    return hidden, h


def _loop_over_cell(cell, inputs, lengths, state, name, hidden_size):
    """Run one layer of either cell; return its output and the final state."""
    kernel, recurrent_kernel, bias = cell_parameters(
        name, cell, inputs.shape[-1], hidden_size, inputs.dtype
    )

    def step(now, state):
        inputs, real = now
        from_inputs = cell_product(inputs, kernel) + bias
        from_state = cell_product(state[0], recurrent_kernel)
        after = CELLS[cell](from_inputs, from_state, *state)
        pairs = zip(after, state, strict=True)
        return tuple(real * new + (1 - real) * old for new, old in pairs), [real * after[0]]

    sequences = [inputs, real_steps(inputs, lengths)]
    (hidden,), state = loop_over_time(step, sequences, state, [hidden_size])
    return hidden, state


def lstm_cell(from_inputs, from_state, h, c):
    """Take one step of an LSTM, gates i, f, g, o.

    Args:
      from_inputs, from_state: [batch, 4 * hidden], what inputs (with the bias) and h, each
        multiplied by a kernel, add to the gates.
      h, c: [batch, hidden], the state before the step.

    Returns:
      h and c after the step.
    """
    i, f, g, o = paddle.split(from_inputs + from_state, 4, axis=1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * paddle.tanh(g)
    return F.sigmoid(o) * paddle.tanh(c), c


def gru_cell(from_inputs, from_state, h):
    """Take one step of a GRU, gates r, z, c.

    Args:
      from_inputs, from_state: [batch, 3 * hidden], what inputs (with the bias) and h, each
        multiplied by a kernel, add to the gates.
      h: [batch, hidden], the state before the step.

    Returns:
      h after the step, in a tuple.
    """
    r, z, c = paddle.split(from_inputs, 3, axis=1)
    r_state, z_state, c_state = paddle.split(from_state, 3, axis=1)
    z = F.sigmoid(z + z_state)
    c = paddle.tanh(c + F.sigmoid(r + r_state) * c_state)
    return (z * h + (1 - z) * c,)


CELLS = {"lstm": lstm_cell, "gru": gru_cell}


def cell_parameters(name, cell, input_size, hidden_size, dtype):
    """Return the input kernel, recurrent kernel and bias of a cell, "lstm" or "gru"."""
    gates = {"lstm": 4, "gru": 3}[cell] * hidden_size
    # differs: this framework's kernels are transposed; spec/parameters.py declares it
    kernel = parameter(f"{name}/input_kernel", [gates, input_size], dtype)
    recurrent_kernel = parameter(f"{name}/recurrent_kernel", [gates, hidden_size], dtype)
    return kernel, recurrent_kernel, parameter(f"{name}/bias", [gates], dtype)


def cell_product(rows, kernel):
    """Multiply rows [batch, width] by a kernel of `cell_parameters`."""
    return paddle.matmul(rows, kernel, transpose_y=True)


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
      hidden [time, batch, hidden], and the final state; in all of them the forward layer's
      half comes first.

    Source: Schuster and Paliwal 1997; half the units each as in OpenNMT.
    """
    size = hidden_size // 2
    state = zero_state(inputs, cell, size)
    ahead, last_ahead = recurrent(inputs, lengths, state, f"{name}/forward", cell, size)
    reversed_inputs = reverse(inputs, lengths)
    back, last_back = recurrent(reversed_inputs, lengths, state, f"{name}/backward", cell, size)
    hidden = paddle.concat([ahead, reverse(back, lengths)], axis=2)
    last = zip(last_ahead, last_back, strict=True)
    return hidden, tuple(paddle.concat(parts, axis=1) for parts in last)


def reverse(inputs, lengths):
    """Reverse each row's real steps; padding stays at the end.

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
    moved = paddle.gather(flat, paddle.reshape(rows, [-1]))
    return paddle.reshape(moved, [-1, batch, inputs.shape[-1]])


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


def loop_over_time(step, sequences, state, widths):
    """Take one step after another, as many as the sequences have.

    Args:
      step: called with a list of each sequence's values at one step and with the state, returns
        the next state and a list of outputs.
      sequences: list of [time, batch, width].
      state: before the first step, any structure of [batch, width].
      widths: of the outputs; None where it is not known beforehand.

    Returns:
      The outputs, a list of [time, batch, width], and the state after the last step.
    """
    array_read, array_write = paddle.tensor.array_read, paddle.tensor.array_write
    nest = paddle.utils
    t = paddle.zeros([1], "int64")
    steps = paddle.cast(paddle.shape(sequences[0])[:1], "int64")
    going = t < steps
    first = [paddle.assign(each) for each in nest.flatten(state)]
    for each in first:
        # Constant zeros too: the steps after the first need their gradients.
        each.stop_gradient = False
    states_at = [array_write(each, t) for each in first]
    outputs_at = [paddle.tensor.create_array(sequences[0].dtype) for _ in widths]
    with paddle.static.nn.control_flow.While(going).block():
        now = [paddle.squeeze(paddle.gather(each, t), 0) for each in sequences]
        before = [array_read(each, t) for each in states_at]
        after, outputs = step(now, nest.pack_sequence_as(state, before))
        for output, array in zip(outputs, outputs_at, strict=True):
            array.stop_gradient = output.stop_gradient
            array_write(output, t, array)
        paddle.increment(t)
        for each, array in zip(nest.flatten(after), states_at, strict=True):
            array_write(each, t, array)
        paddle.assign(t < steps, going)
    # at `steps`, not `t`: the loop's gradient counts `t` down again, and waits for no reader
    last = [array_read(each, steps) for each in states_at]
    pairs = zip(outputs_at, widths, strict=True)
    return [_stacked(*each) for each in pairs], nest.pack_sequence_as(state, last)


def _stacked(array, width):
    stacked, _ = paddle.tensor.manipulation.tensor_array_to_tensor(array, 0, use_stack=True)
    shape = paddle.shape(stacked)
    return paddle.reshape(stacked, [shape[0], shape[1], -1 if width is None else width])


def recorded(activation):
    """Return an activation that is only looked at: no gradient comes back to it."""
    # differs: `stop_gradient` is a mark here, no operation; a loop's array must have it, too
    copy = paddle.assign(activation)
    copy.stop_gradient = True
    return copy


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


@replaceable
def product(inputs, kernel):
    """Multiply the last axis by a matrix.

    Args:
      inputs: [..., input].
      kernel: [input, size].

    Returns:
      [..., size].
    """
    return paddle.matmul(inputs, kernel)


def real_rows(inputs, lengths):
    """Keep the real steps, as rows; time varies slowest.

    Args:
      inputs: [time, batch] or [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.

    Returns:
      [real tokens] or [real tokens, width].
    """
    # differs: Paddle cannot multiply a matrix without rows; where no step is real, the first of
    # each row stands in, and split_feeds has set the scale of the loss to zero
    none = paddle.cast(paddle.max(lengths) == 0, lengths.dtype)
    real = _real(inputs, paddle.maximum(lengths, none))
    real = paddle.nonzero(paddle.reshape(real, [-1]))
    return paddle.gather(paddle.reshape(inputs, [-1, *inputs.shape[2:]]), real.squeeze(1))


def real_steps(inputs, lengths):
    """Return one for each real step of a row and zero beyond, [time, batch, 1].

    Args:
      inputs: [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.
    """
    return paddle.cast(_real(inputs, lengths), inputs.dtype).unsqueeze(2)


def _real(inputs, lengths):
    """Return whether a step is one of its row's real ones, [time, batch]."""
    return paddle.arange(paddle.shape(inputs)[0], dtype="int64").unsqueeze(1) < lengths


def log_softmax(logits):
    """Return log probabilities.

    Args:
      logits: [rows, vocabulary].

    Returns:
      [rows, vocabulary].
    """
    # differs: this framework's own ends at -64, and is a hundred times slower on a CPU
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
    # differs: Paddle clips the loss of very unlikely targets near 64; the missing part is added
    # (the gradient is right)
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
