"""The layers that the networks are made of, as a textbook has them; time comes first.

They are built from the framework's own operations and differentiated by the framework itself.
What `kernels.py` can replace by something faster is declared `replaceable`. Every numerical
argument is passed; no default of the framework decides a value.
"""

import tensorflow as tf

from parity.twins.spec.replaceable import replaceable

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
    i, f, g, o = tf.split(from_inputs + from_state, 4, axis=1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def gru_cell(from_inputs, from_state, h):
    """Take one step of a GRU, gates r, z, c.

    Args:
      from_inputs, from_state: [batch, 3 * hidden], what inputs (with the bias) and h, each
        multiplied by a kernel, add to the gates.
      h: [batch, hidden], the state before the step.

    Returns:
      h after the step, in a tuple.
    """
    r, z, c = tf.split(from_inputs, 3, axis=1)
    r_state, z_state, c_state = tf.split(from_state, 3, axis=1)
    z = tf.sigmoid(z + z_state)
    c = tf.tanh(c + tf.sigmoid(r + r_state) * c_state)
    return (z * h + (1 - z) * c,)


CELLS = {"lstm": lstm_cell, "gru": gru_cell}


def cell_parameters(name, cell, input_size, hidden_size, dtype):
    """Return the input kernel, recurrent kernel and bias of a cell, "lstm" or "gru"."""
    gates = {"lstm": 4, "gru": 3}[cell] * hidden_size
    kernel = parameter(f"{name}/input_kernel", [input_size, gates], dtype)
    recurrent_kernel = parameter(f"{name}/recurrent_kernel", [hidden_size, gates], dtype)
    return kernel, recurrent_kernel, parameter(f"{name}/bias", [gates], dtype)


def cell_product(rows, kernel):
    """Multiply rows [batch, width] by a kernel of `cell_parameters`."""
    return tf.matmul(rows, kernel)


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
    hidden = tf.concat([ahead, reverse(back, lengths)], axis=2)
    last = zip(last_ahead, last_back, strict=True)
    return hidden, tuple(tf.concat(parts, axis=1) for parts in last)


def reverse(inputs, lengths):
    """Reverse each row's real steps; padding stays at the end.

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
    dtype, steps = sequences[0].dtype, tf.shape(sequences[0])[0]

    def array(width):
        return tf.TensorArray(dtype, steps, element_shape=[None, width])

    read_at = [array(each.shape[-1]).unstack(each) for each in sequences]

    def body(t, state, outputs_at):
        state, outputs = step([each.read(t) for each in read_at], state)
        pairs = zip(outputs_at, outputs, strict=True)
        return t + 1, state, [each.write(t, output) for each, output in pairs]

    _, state, outputs_at = tf.while_loop(
        lambda t, *_: t < steps, body, [0, state, [array(width) for width in widths]]
    )
    return [each.stack() for each in outputs_at], state


def recorded(activation):
    """Return an activation that is only looked at: no gradient comes back to it."""
    return tf.stop_gradient(activation)


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


@replaceable
def product(inputs, kernel):
    """Multiply the last axis by a matrix.

    Args:
      inputs: [..., input].
      kernel: [input, size].

    Returns:
      [..., size].
    """
    return tf.matmul(inputs, kernel)


def real_rows(inputs, lengths):
    """Keep the real steps, as rows; time varies slowest.

    Args:
      inputs: [time, batch] or [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.

    Returns:
      [real tokens] or [real tokens, width].
    """
    return tf.gather_nd(inputs, tf.where(_real(inputs, lengths)))


def real_steps(inputs, lengths):
    """Return one for each real step of a row and zero beyond, [time, batch, 1].

    Args:
      inputs: [time, batch, width].
      lengths: int64 [batch], real tokens per row, each in 0..time.
    """
    return tf.cast(_real(inputs, lengths), inputs.dtype)[:, :, None]


def _real(inputs, lengths):
    """Return whether a step is one of its row's real ones, [time, batch]."""
    return tf.range(tf.shape(inputs, tf.int64)[0])[:, None] < lengths


def log_softmax(logits):
    """Return log probabilities.

    Args:
      logits: [rows, vocabulary].

    Returns:
      [rows, vocabulary].
    """
    return tf.nn.log_softmax(logits)


@replaceable
def token_cross_entropy(logits, targets):
    """Return each token's cross entropy.

    Args:
      logits: [tokens, vocabulary].
      targets: int64 [tokens].

    Returns:
      [tokens].
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
