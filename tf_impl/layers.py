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
    `{name}/bias`. No gradient flows into the state before the first step.

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
    recurrent = parameter(f"{name}/recurrent_kernel", [hidden_size, gates], dtype)
    bias = parameter(f"{name}/bias", [gates], dtype)
    steps = tf.shape(inputs)[0]
    real = tf.cast(tf.range(steps, dtype=tf.int64)[:, None] < lengths, dtype)[:, :, None]
    # differs: no op of this framework has an LSTM with exact gradients in both precisions
    return _lstm(inputs, real, h, c, kernel, recurrent, bias)


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


def token_cross_entropy(logits, targets, lengths):
    """Return each real token's cross entropy, and zero on padding.

    Args:
      logits: [time * batch, vocabulary], time varying slowest.
      targets: int64 [time, batch].
      lengths: int64 [batch].

    Returns:
      [time, batch].
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(targets, [-1]), logits)
    real = tf.range(tf.shape(targets, tf.int64)[0])[:, None] < lengths
    return tf.reshape(losses, tf.shape(targets)) * tf.cast(real, losses.dtype)
