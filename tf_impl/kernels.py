"""Faster replacements of layers, each with its reason and what it was measured to gain.

They compute the same as the layers they replace, but for rounding. A network is built from
them, or from the plain layers alone, inside `use_kernels`.
"""

import tensorflow as tf

from parity.twins.spec.replaceable import replacing
from tf_impl import attention, layers
from tf_impl.attention import attentional, real_memory
from tf_impl.layers import CELLS, cell_parameters, parameter, real_steps
from tf_impl.scan import scan, transposed_for_loop

# In nats; of a much larger one float32 has too little of the target's probability, or nothing.
_LARGEST_LOSS = 63.0


def lstm(inputs, lengths, h, c, name, hidden_size):
    """Run one LSTM layer; see `layers.lstm`."""
    # No operation of TensorFlow is an LSTM with exact gradients in both precisions. With a
    # gradient written out, the products that need no loop are taken once for all steps; in the
    # gradient's loop, weights are read transposed once, not at every step. The latter alone:
    # steps of hidden 650 1.2 times as fast; the whole has not been measured by itself.
    weights = cell_parameters(name, "lstm", inputs.shape[-1], hidden_size, inputs.dtype)
    return _lstm(inputs, real_steps(inputs, lengths), h, c, *weights)


@tf.custom_gradient
def _lstm(inputs, real, h, c, kernel, recurrent, bias):
    """Loop over time; the gradient loops back over the saved gates.

    The products that need no loop are taken once for all steps: the inputs' part of the gates
    before it, and the gradients of inputs and kernels after it.

    Args:
      inputs: [time, batch, input].
      real: [time, batch, 1], one up to each row's length and zero beyond.
    """
    width, size = inputs.shape[-1], recurrent.shape[0]
    flat = tf.reshape(inputs, [-1, width])
    from_inputs = _by_step(tf.matmul(flat, kernel) + bias, inputs)
    last_h, last_c, kept = _lstm_forward(from_inputs, real, h, c, recurrent)
    after_h, after_c, *gates, tanh_c = tf.split(kept, 7, axis=2)
    hidden = after_h * real

    def gradient(d_hidden, d_last_h, d_last_c):
        before_h, before_c = (
            tf.concat([first[None], after[:-1]], axis=0)
            for first, after in ((h, after_h), (c, after_c))
        )
        d_gates, d_h, d_c = _lstm_backward(
            gates, tanh_c, before_c, real, recurrent, d_hidden, d_last_h, d_last_c
        )
        d_gates = tf.reshape(d_gates, [-1, 4 * size])
        d_inputs = tf.reshape(tf.matmul(d_gates, kernel, transpose_b=True), tf.shape(inputs))
        d_kernel = tf.matmul(flat, d_gates, transpose_a=True)
        d_recurrent = tf.matmul(tf.reshape(before_h, [-1, size]), d_gates, transpose_a=True)
        d_bias = tf.reduce_sum(d_gates, axis=0)
        return d_inputs, None, d_h, d_c, d_kernel, d_recurrent, d_bias

    return (hidden, last_h, last_c), gradient


def _lstm_forward(from_inputs, real, h, c, recurrent):
    """Return the last h and c, and of each step h, c, i, f, g, o, tanh(c) side by side."""
    steps, size = tf.shape(from_inputs)[0], recurrent.shape[0]
    from_inputs_at = _array(from_inputs, 4 * size).unstack(from_inputs)
    real_at = _array(real, 1).unstack(real)

    # What a step leaves is kept in one array: each more has operations of its own in the loop.
    def body(t, h, c, kept_at):
        gates = from_inputs_at.read(t) + tf.matmul(h, recurrent)
        i, f, g, o = tf.split(gates, 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        new_c = f * c + i * g
        tanh_c = tf.tanh(new_c)
        new_h = o * tanh_c
        on = real_at.read(t)
        h, c = (
            tf.where(on > 0, new_h, h),
            tf.where(on > 0, new_c, c),
        )
        return t + 1, h, c, kept_at.write(t, tf.concat([h, c, i, f, g, o, tanh_c], axis=1))

    _, h, c, kept_at = tf.while_loop(
        lambda t, *_: t < steps, body, [0, h, c, _array(from_inputs, 7 * size)]
    )
    return h, c, kept_at.stack()


def _lstm_backward(gates, tanh_c, before_c, real, recurrent, d_hidden, d_h, d_c):
    """Return the gradients of the gates before sigmoid or tanh, and of the first h and c."""
    steps, size = tf.shape(real)[0], recurrent.shape[0]
    i, f, g, o = gates
    # What the gates' gradients are multiples of: the first three of c's, the last of h's.
    of_gates = [
        g * i * (1 - i),
        before_c * f * (1 - f),
        i * (1 - g * g),
        tanh_c * o * (1 - o),
    ]
    of_c = o * (1 - tanh_c * tanh_c)
    saved = tf.concat([*of_gates, of_c, f, d_hidden], axis=2)
    saved_at, real_at = _array(saved, 7 * size).unstack(saved), _array(real, 1).unstack(real)
    transposed = transposed_for_loop(recurrent)

    def body(t, d_h, d_c, d_gates_at):
        of_gates, of_c, f, d_hidden = tf.split(
            saved_at.read(t), [4 * size, size, size, size], axis=1
        )
        on = real_at.read(t)
        d_new_h = (d_h + d_hidden) * on
        d_new_c = d_c * on + d_new_h * of_c
        d_gates = tf.concat([d_new_c, d_new_c, d_new_c, d_new_h], axis=1) * of_gates
        d_before = tf.matmul(d_gates, transposed)
        return (
            t - 1,
            tf.where(on > 0, d_before, d_h),
            tf.where(on > 0, d_new_c * f, d_c),
            d_gates_at.write(t, d_gates),
        )

    _, d_h, d_c, d_gates_at = tf.while_loop(
        lambda t, *_: t >= 0, body, [steps - 1, d_h, d_c, _array(saved, 4 * size)]
    )
    return d_gates_at.stack(), d_h, d_c


def _array(steps, width):
    """Return an array of as many steps as a tensor [time, ...] has."""
    return tf.TensorArray(steps.dtype, tf.shape(steps)[0], element_shape=[None, width])


def _by_step(rows, steps):
    """Bring rows into the steps of a tensor [time, batch, ...]."""
    return tf.reshape(rows, [tf.shape(steps)[0], -1, rows.shape[-1]])


def gru(inputs, lengths, h, name, hidden_size):
    """Run one GRU layer; see `layers.gru`."""
    # No operation of TensorFlow is a GRU with this reset gate. The kernels' gradients are
    # products of all steps at once, after the loop, and the inputs' product is taken before it
    # (not measured by itself).
    kernel, recurrent_kernel, bias = cell_parameters(
        name, "gru", inputs.shape[-1], hidden_size, inputs.dtype
    )
    from_inputs = product(inputs, kernel) + bias

    def step(product, h, from_inputs, real, shared):
        (new_h,) = CELLS["gru"](from_inputs, product("recurrent", h), h)
        return tf.where(real > 0, new_h, h), [new_h * real]

    (hidden,), last_h = scan(
        step,
        h,
        from_inputs,
        real_steps(inputs, lengths),
        {"recurrent": recurrent_kernel},
        {},
        [hidden_size],
    )
    return hidden, last_h


def product(inputs, kernel):
    """Multiply the last axis by a matrix; see `layers.product`."""
    # On rows: a product of rank 3 is slower, its gradient more so (not measured by itself).
    rows = tf.matmul(tf.reshape(inputs, [-1, inputs.shape[-1]]), kernel)
    return tf.reshape(rows, tf.concat([tf.shape(inputs)[:-1], [kernel.shape[-1]]], axis=0))


def additive_scores(queries, keys, score_kernel):
    """Return v . tanh(query + key) for each query and key; see `attention.additive_scores`."""
    # Summed by a product on rows, whose gradient is a product, too (not measured by itself).
    return _summed_fit(queries[:, :, None], keys[:, None], score_kernel)


def _summed_fit(queries, keys, score_kernel):
    """Return v . tanh(query + key), [..., source_time].

    Args:
      queries: [..., 1, hidden].
      keys: [..., source_time, hidden].
    """
    fit = tf.tanh(queries + keys)
    rows = tf.matmul(tf.reshape(fit, [-1, fit.shape[-1]]), score_kernel[:, None])
    return tf.reshape(rows, tf.shape(fit)[:-1])


def feeding_decoder(inputs, state, fed, keys, memory, lengths, masks, model):
    """Run a decoder that is fed what attention found; see `attention.feeding_decoder`."""
    # The inputs' product is taken before the loop, each weight's gradient in one product after
    # it, and in the gradient's loop weights are read transposed once, not at every step. The
    # latter alone: a step of `chatbot` 1.14 times as fast, of `nmt-bahdanau` 1.18 times.
    size = model.hidden_size
    from_inputs, weights, shared = _decoder_weights(inputs, keys, memory, model)
    beyond = (1 - real_memory(memory, lengths)[:, 0]) * -1e30
    dropped = {
        k: tf.transpose(mask, [1, 0, 2]) for k, mask in enumerate(masks, 1) if mask is not None
    }

    def cells(product, state, from_inputs, fed, masks, shared):
        from_below = from_inputs + product("input_0", fed)
        new_state = []
        for k in range(model.num_layers):
            if k > 0:
                rows = new_state[-1][0] * masks[k] if k in masks else new_state[-1][0]
                from_below = product(f"input_{k}", rows) + shared[f"bias_{k}"]
            from_state = product(f"recurrent_{k}", state[k][0])
            new_state.append(CELLS[model.cell](from_below, from_state, *state[k]))
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
        scores = _summed_fit(query[:, None], shared["keys"], shared["score"])
        context, found = weigh(product, scores)
        state = cells(product, state, from_inputs, context, masks, shared)
        return state, [*(each[0] for each in state), context, found]

    widths = [size] * model.num_layers + [size, None]
    if model.attention == "bahdanau":
        (*hidden, context, found), state = scan(
            bahdanau_step, state, from_inputs, dropped, weights, shared, widths
        )
        # Nothing in the loop waits for these.
        outputs = attentional(context, hidden[-1])
    else:
        (*hidden, context, found, outputs), (state, _) = scan(
            luong_step, (state, fed), from_inputs, dropped, weights, shared, [*widths, size]
        )
    return hidden, context, found, outputs, state, outputs[-1]


def _decoder_weights(inputs, keys, memory, model):
    """Return the inputs' part of the bottom layer's gates, and `scan`'s weights and shared."""
    size, dtype, weights, shared = model.hidden_size, inputs.dtype, {"memory": memory}, {}
    for k in range(model.num_layers):
        width = size if k else inputs.shape[-1] + size
        kernel, weights[f"recurrent_{k}"], bias = cell_parameters(
            f"decoder/{model.cell}_{k}", model.cell, width, size, dtype
        )
        if k == 0:
            # The part of the inputs needs no loop.
            kernel, weights["input_0"] = tf.split(kernel, [width - size, size])
            from_inputs = product(inputs, kernel) + bias
        else:
            weights[f"input_{k}"], shared[f"bias_{k}"] = kernel, bias
    if model.attention == "bahdanau":
        weights["query"] = parameter("attention/query_kernel", [size, size], dtype)
        shared |= {"score": parameter("attention/score_kernel", [size], dtype), "keys": keys}
    else:
        weights["keys"] = tf.transpose(keys, [0, 2, 1])
        weights["output"] = parameter("attention/output_kernel", [2 * size, size], dtype)
    return from_inputs, weights, shared


def token_cross_entropy(logits, targets):
    """Return each token's cross entropy; see `layers.token_cross_entropy`."""
    # Softmax by oneDNN, and a gradient that is written out and made in place: 1,120 tokens of a
    # vocabulary of 10,000 took 50 ms on one core, then 20.
    return _cross_entropy(logits, targets)


@tf.custom_gradient
def _cross_entropy(logits, targets):
    """Return -log(probability of the target), of each row."""
    probabilities = tf.nn.softmax(logits)
    rows = tf.range(tf.shape(targets, tf.int64)[0])
    at_targets = tf.stack([rows, targets], axis=1)
    losses = -tf.math.log(tf.gather_nd(probabilities, at_targets))
    losses = tf.cond(
        tf.reduce_max(losses) > _LARGEST_LOSS,
        lambda: _of_unlikely(logits, probabilities, at_targets),
        lambda: losses,
    )

    def gradient(d_losses):
        scaled = probabilities * d_losses[:, None]
        # in place, which `tensor_scatter_nd_sub` is not
        apart = tf.raw_ops.ScatterNdNonAliasingAdd(
            input=scaled, indices=at_targets, updates=-d_losses
        )
        return apart, None

    return losses, gradient


def _of_unlikely(logits, probabilities, at_targets):
    """Return max - logit of the target - log(probability of the max), of each row.

    That probability is at least one over the vocabulary, however small the target's is.
    """
    most, likeliest = (tf.reduce_max(each, axis=1) for each in (logits, probabilities))
    return (most - tf.gather_nd(logits, at_targets)) - tf.math.log(likeliest)


REPLACEMENTS = {
    "plain": {},
    "fast": {
        layers.lstm: lstm,
        layers.gru: gru,
        layers.product: product,
        attention.additive_scores: additive_scores,
        attention.feeding_decoder: feeding_decoder,
        layers.token_cross_entropy: token_cross_entropy,
    },
}


def use_kernels(kind):
    """Build networks from kernels of a kind inside this context.

    Args:
      kind: "plain", the textbook's layers as they are, or "fast", with the replacements above.
    """
    return replacing(REPLACEMENTS[kind])
