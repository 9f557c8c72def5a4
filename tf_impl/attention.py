"""Attention and the decoder that is fed what attention found, as a textbook has them.

They are built from the framework's own operations and differentiated by the framework itself.
What `kernels.py` can replace by something faster is declared `replaceable`.
"""

import tensorflow as tf

from parity.twins.spec.replaceable import replaceable
from tf_impl.layers import (
    CELLS,
    cell_parameters,
    cell_product,
    loop_over_time,
    parameter,
    product,
    recorded,
)


def attention_keys(memory, kind):
    """Return what queries are compared with: the memory, or a product of it.

    All kinds but "dot" multiply by `attention/memory_kernel`; "scaled" also by
    `attention/scale`.

    Args:
      memory: [batch, source_time, hidden].
      kind: "dot", "general", "scaled" or "bahdanau".

    Returns:
      [batch, source_time, hidden].
    """
    if kind == "dot":
        return memory
    size, dtype = memory.shape[-1], memory.dtype
    keys = product(memory, parameter("attention/memory_kernel", [size, size], dtype))
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
    mix = _mixer(keys, memory, lengths, kind)
    context, weights = mix(tf.transpose(queries, [1, 0, 2]))
    return tf.transpose(context, [1, 0, 2]), tf.transpose(weights, [1, 0, 2])


def _mixer(keys, memory, lengths, kind):
    """Return what gives queries [batch, time, hidden] their context and weights."""
    size, dtype, real = memory.shape[-1], memory.dtype, real_memory(memory, lengths)
    if kind == "bahdanau":
        # outside the loop that may call `mix`
        query_kernel = parameter("attention/query_kernel", [size, size], dtype)
        score_kernel = parameter("attention/score_kernel", [size], dtype)

    def mix(queries):
        if kind == "bahdanau":
            scores = additive_scores(product(queries, query_kernel), keys, score_kernel)
        else:
            scores = tf.matmul(queries, keys, transpose_b=True)
        weights = memory_weights(scores, real)
        return tf.matmul(weights, memory), weights

    return mix


@replaceable
def additive_scores(queries, keys, score_kernel):
    """Return v . tanh(query + key) for each query and key.

    Args:
      queries: [batch, time, hidden].
      keys: [batch, source_time, hidden].
      score_kernel: v, [hidden].

    Returns:
      [batch, time, source_time].
    """
    fit = tf.tanh(tf.expand_dims(queries, 2) + tf.expand_dims(keys, 1))
    return tf.reduce_sum(fit * score_kernel, axis=3)


def memory_weights(scores, real):
    """Return the softmax of scores over the real steps of a memory, and zero beyond.

    Args:
      scores: [batch, time, source_time].
      real: of `real_memory`.
    """
    # so far below all others that exp of it is exactly zero
    return tf.nn.softmax(scores + (1 - real) * -1e30, axis=2)


def real_memory(memory, lengths):
    """Return one for each real step of a memory and zero beyond, [batch, 1, source_time].

    Args:
      memory: [batch, source_time, hidden].
      lengths: int64 [batch], real steps of the memory per row, each in 1..source_time.
    """
    real = tf.range(tf.shape(memory, tf.int64)[1]) < tf.expand_dims(lengths, 1)
    return tf.expand_dims(tf.cast(real, memory.dtype), 1)


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
    return _combined(context, hidden, kernel)


def _combined(context, hidden, kernel):
    return tf.tanh(product(tf.concat([context, hidden], axis=-1), kernel))


@replaceable
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
      [batch, hidden]. A gradient is to come back through the outputs and the final state alone.

    Sources: Luong et al. 2015, arXiv:1508.04025, section 3.3; Bahdanau et al. 2015,
    arXiv:1409.0473, A.1.2.
    """
    size, dtype = model.hidden_size, inputs.dtype
    run_cells = _layers_of_step(model, inputs.shape[-1], dtype, masks)
    mix = _mixer(keys, memory, lengths, model.attention)
    output_kernel = parameter("attention/output_kernel", [2 * size, size], dtype)

    def attend_once(query):
        context, weights = mix(tf.expand_dims(query, 1))
        return tf.squeeze(context, 1), tf.squeeze(weights, 1)

    def luong_step(now, held):
        state, fed = held
        state = run_cells(now, fed, state)
        context, weights = attend_once(state[-1][0])
        output = _combined(context, state[-1][0], output_kernel)
        seen = [*(each[0] for each in state), context, weights]
        return (state, output), [output, *map(recorded, seen)]

    def bahdanau_step(now, state):
        context, weights = attend_once(state[-1][0])
        state = run_cells(now, context, state)
        output = _combined(context, state[-1][0], output_kernel)
        seen = [*(each[0] for each in state), context, weights]
        return state, [output, *map(recorded, seen)]

    dropped = [tf.transpose(mask, [1, 0, 2]) for mask in masks if mask is not None]
    sequences, widths = [inputs, *dropped], [size] * (model.num_layers + 2) + [None]
    if model.attention == "bahdanau":
        found, state = loop_over_time(bahdanau_step, sequences, state, widths)
    else:
        found, (state, _) = loop_over_time(luong_step, sequences, (state, fed), widths)
    outputs, *hidden, context, weights = found
    return hidden, context, weights, outputs, state, outputs[-1]


def _layers_of_step(model, input_size, dtype, masks):
    """Return what runs the decoder's layers for one step, on inputs and what is fed."""
    size, weights = model.hidden_size, []
    for k in range(model.num_layers):
        name, width = f"decoder/{model.cell}_{k}", size if k else input_size + size
        weights.append(cell_parameters(name, model.cell, width, size, dtype))
    masked = [k for k, mask in enumerate(masks) if mask is not None]

    def run_cells(now, fed, state):
        inputs, *now_masks = now
        mask_of = dict(zip(masked, now_masks, strict=True))
        below, after = tf.concat([inputs, fed], axis=1), []
        for k, (kernel, recurrent_kernel, bias) in enumerate(weights):
            from_below = cell_product(below, kernel) + bias
            from_state = cell_product(state[k][0], recurrent_kernel)
            after.append(CELLS[model.cell](from_below, from_state, *state[k]))
            below = after[k][0] * mask_of[k] if k in mask_of else after[k][0]
        return after

    return run_cells
