"""Faster replacements of layers, each with its reason and what it was measured to gain.

They compute the same as the layers they replace, but for rounding. A network is built from
them, or from the plain layers alone, inside `use_kernels`.
"""

import os
from functools import partial

import paddle

from paddle_impl import attention, layers
from paddle_impl.attention import attentional, memory_weights, real_memory
from paddle_impl.layers import (
    CELLS,
    cell_parameters,
    cell_product,
    loop_over_time,
    parameter,
    real_steps,
    recorded,
)
from parity.twins.spec.replaceable import replacing

_LOOP_FROM = 1200  # units of an LSTM that a single thread runs as a loop


def lstm(inputs, lengths, h, c, name, hidden_size):
    """Run one LSTM layer; see `layers.lstm`."""
    # One operation for all steps, in place of a loop that runs a dozen at each (not measured
    # by itself). It multiplies by the recurrent kernel in the slower layout (`loop_reads.py`),
    # and adds to that kernel's gradient at every step. With few rows, where neither fits into
    # the processor's cache, a loop is faster on one thread, though it takes more memory. Two
    # replicas of 10 rows, ms by the operation and by the loop: at hidden 1500 1,550 and 1,010,
    # with AVX-512 1,076 and 828, but from 16 rows on the same; at 1000 552 and 509, but with
    # AVX-512 at 1024 433 and 473; at 650 206 and 291. One replica of 20 rows on two threads, at
    # 1500: 844 and 1,007.
    large = hidden_size >= _LOOP_FROM and os.environ["OMP_NUM_THREADS"] == "1"
    run = _looped_lstm if large else partial(_rnn, "LSTM")
    hidden, (last_h, last_c) = run(inputs, lengths, (h, c), name, hidden_size)
    return hidden, last_h, last_c


def _looped_lstm(inputs, lengths, state, name, hidden_size):
    """Run an LSTM layer as a loop whose steps are few operations.

    Steps beyond a row's length are computed like the others, and left out afterwards.
    """
    kernel, recurrent_kernel, bias = cell_parameters(
        name, "lstm", inputs.shape[-1], hidden_size, inputs.dtype
    )
    from_inputs = _product_of_rows(inputs, kernel, transpose=True, bias=bias)

    def step(now, state):
        after = CELLS["lstm"](now[0], cell_product(state[0], recurrent_kernel), *state)
        return after, list(after)

    parts, _ = loop_over_time(step, [from_inputs], state, [hidden_size] * 2)
    last = [_at_length(*each, lengths) for each in zip(parts, state, strict=True)]
    return parts[0] * real_steps(inputs, lengths), last


def _at_length(values, first, lengths):
    """Return each row's value at its last real step; the first one for a row without any.

    Args:
      values: [time, batch, width].
      first: [batch, width].
      lengths: int64 [batch].
    """
    batch = paddle.cast(paddle.shape(values)[1], "int64")
    ended = paddle.maximum(lengths - 1, paddle.zeros_like(lengths))
    places = ended * batch + paddle.arange(batch, dtype="int64")
    found = paddle.gather(paddle.reshape(values, [-1, values.shape[-1]]), places)
    return paddle.where((lengths > 0).unsqueeze(1), found, first)


def _rnn(mode, inputs, lengths, state, name, hidden_size):
    """Append the op that runs either cell over all steps, with a gradient of its own."""
    kernel, recurrent_kernel, bias = cell_parameters(
        name, mode.lower(), inputs.shape[-1], hidden_size, inputs.dtype
    )
    # differs: the operation needs a second bias: a constant zero, whose gradient goes unused
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


def gru(inputs, lengths, h, name, hidden_size):
    """Run one GRU layer; see `layers.gru`."""
    # As for the LSTM. On its way back the operation divides by the reset gate: where a float32
    # gate is so near to zero that it rounds to it, the gradient is NaN.
    hidden, (last_h,) = _rnn("GRU", inputs, lengths, (h,), name, hidden_size)
    return hidden, last_h


def product(inputs, kernel):
    """Multiply the last axis by a matrix; see `layers.product`."""
    # On rows: a product of rank 3 is slower, its gradient more so (not measured by itself).
    if len(inputs.shape) == 2:
        return paddle.matmul(inputs, kernel)
    return _product_of_rows(inputs, kernel)


def _product_of_rows(inputs, kernel, transpose=False, bias=None):
    rows = paddle.reshape(inputs, [-1, inputs.shape[-1]])
    rows = paddle.matmul(rows, kernel, transpose_y=transpose)
    if bias is not None:
        rows = rows + bias  # to rows, where `program_kernels.py` makes it a part of the product
    shape = paddle.shape(inputs)
    return paddle.reshape(rows, [shape[0], shape[1], rows.shape[-1]])


def additive_scores(queries, keys, score_kernel):
    """Return v . tanh(query + key) for each query and key; see `attention.additive_scores`."""
    # Copied out and summed by a product: the gradients of broadcasting are slower (not measured
    # by itself).
    batch, source_time, size = paddle.shape(keys)[0], paddle.shape(keys)[1], keys.shape[-1]
    time = paddle.shape(queries)[1]
    shape = [batch, time, source_time, size]
    fit = paddle.tanh(
        paddle.expand(queries.unsqueeze(2), shape) + paddle.expand(keys.unsqueeze(1), shape)
    )
    scores = paddle.matmul(paddle.reshape(fit, [-1, size]), score_kernel.unsqueeze(1))
    return paddle.reshape(scores, shape[:3])


def feeding_decoder(inputs, state, fed, keys, memory, lengths, masks, model):
    """Run a decoder that is fed what attention found; see `attention.feeding_decoder`."""
    # The inputs' product is taken before the loop and, for Bahdanau's kind, the attentional
    # outputs after it (not measured by itself); attention of a step takes half as many
    # operations: a step of `nmt-bahdanau` 481 ms, then 455.
    from_inputs, weights = _decoder_weights(inputs, model)
    run_cell = {"lstm": _lstm_of_step, "gru": _gru_of_step}[model.cell]
    masked = [k for k, mask in enumerate(masks) if mask is not None]
    sequences = [from_inputs, *(paddle.transpose(masks[k], [1, 0, 2]) for k in masked)]
    attend_once = _attention_of_step(keys, memory, lengths, model.attention)

    def cells(now, fed, state):
        (added, *now_masks), below, after = now, fed, []
        mask_of = dict(zip(masked, now_masks, strict=True))
        for k, (kernels, bias) in enumerate(weights):
            added = bias if k else added
            after.append(run_cell(below, added, kernels, state[k]))
            below = after[k][0] * mask_of[k] if k in mask_of else after[k][0]
        return after

    def luong_step(now, held):
        state, fed = held
        state = cells(now, fed, state)
        context, found = attend_once(state[-1][0])
        fed = attentional(context, state[-1][0])
        seen = [*(each[0] for each in state), context, found]
        return (state, fed), [*map(recorded, seen), fed]

    def bahdanau_step(now, state):
        context, found = attend_once(state[-1][0])
        state = cells(now, context, state)
        *hidden, query = (each[0] for each in state)
        return state, [*map(recorded, hidden), query, context, recorded(found)]

    widths = [model.hidden_size] * (model.num_layers + 1) + [None]
    if model.attention == "bahdanau":
        (*hidden, context, found), state = loop_over_time(
            bahdanau_step, sequences, state, widths
        )
        # Nothing in the loop waits for these.
        outputs = attentional(context, hidden[-1])
    else:
        (*hidden, context, found, outputs), (state, _) = loop_over_time(
            luong_step, sequences, (state, fed), [*widths, model.hidden_size]
        )
    return hidden, context, found, outputs, state, outputs[-1]


def _decoder_weights(inputs, model):
    """Return the inputs' share of the lowest gates, and of each layer the kernels and bias.

    The kernels are those of what comes from below and of the state, an LSTM's side by side.
    """
    size, width, weights = model.hidden_size, inputs.shape[-1], []
    for k in range(model.num_layers):
        below, name = size if k else width + size, f"decoder/{model.cell}_{k}"
        kernel, of_state, bias = cell_parameters(name, model.cell, below, size, inputs.dtype)
        if k == 0:
            # The part of the inputs needs no loop.
            of_inputs = kernel[:, :width]
            from_inputs = _product_of_rows(inputs, of_inputs, transpose=True, bias=bias)
            kernel = kernel[:, width:]
        kernels = [kernel, of_state]
        if model.cell == "lstm":
            kernels = [paddle.concat(kernels, axis=1)]
        weights.append((kernels, bias))
    return from_inputs, weights


def _lstm_of_step(below, added, kernels, state):
    """Take a step of an LSTM with a single product; `added` is what else its gates have."""
    gates = cell_product(paddle.concat([below, state[0]], axis=1), *kernels)
    return CELLS["lstm"](gates, added, *state)


def _gru_of_step(below, added, kernels, state):
    """Take a step of a GRU, whose reset gate is on the product with its state alone."""
    kernel, recurrent_kernel = kernels
    from_below = cell_product(below, kernel) + added
    return CELLS["gru"](from_below, cell_product(state[0], recurrent_kernel), *state)


def _attention_of_step(keys, memory, lengths, kind):
    """Return a function that does what `attend` does for one query per row.

    It is made of few operations: in a loop each costs as much as a small product.

    Returns:
      From query [batch, hidden] to context [batch, hidden] and weights [batch, source_time].
    """
    size, dtype, real = memory.shape[-1], memory.dtype, real_memory(memory, lengths)
    real.stop_gradient = True  # or every step would add to a gradient that nobody reads
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
        weights = memory_weights(scores, real)
        return paddle.matmul(weights, memory).squeeze(1), weights.squeeze(1)

    return attend_once


REPLACEMENTS = {
    "plain": {},
    "fast": {
        layers.lstm: lstm,
        layers.gru: gru,
        layers.product: product,
        attention.additive_scores: additive_scores,
        attention.feeding_decoder: feeding_decoder,
    },
}


def use_kernels(kind):
    """Build networks from kernels of a kind inside this context.

    Args:
      kind: "plain", the textbook's layers as they are, or "fast", with the replacements above.
    """
    return replacing(REPLACEMENTS[kind])
