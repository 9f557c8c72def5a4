"""Faster replacements of layers, each with its reason and what it was measured to gain.

They compute the same as the layers they replace, but for rounding. A network is built from
them, or from the plain layers alone, inside `use_kernels`.
"""

import paddle

from paddle_impl import attention, layers
from paddle_impl.attention import attentional, memory_weights, real_memory
from paddle_impl.layers import (
    CELLS,
    cell_parameters,
    cell_product,
    loop_over_time,
    parameter,
    recorded,
)
from parity.base.replaceable import replacing


def lstm(inputs, lengths, h, c, name, hidden_size):
    """Run one LSTM layer; see `layers.lstm`."""
    # One operation for all steps, in place of a loop that runs a dozen at each (not measured
    # by itself).
    hidden, (last_h, last_c) = _rnn("LSTM", inputs, lengths, (h, c), name, hidden_size)
    return hidden, last_h, last_c


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


def _product_of_rows(inputs, kernel, transpose=False):
    rows = paddle.reshape(inputs, [-1, inputs.shape[-1]])
    rows = paddle.matmul(rows, kernel, transpose_y=transpose)
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
    from_inputs, fed_kernel, weights = _decoder_weights(inputs, model)
    masked = [k for k, mask in enumerate(masks) if mask is not None]
    sequences = [from_inputs, *(paddle.transpose(masks[k], [1, 0, 2]) for k in masked)]
    attend_once = _attention_of_step(keys, memory, lengths, model.attention)

    def cells(now, fed, state):
        gates, mask_of, after = now[0], dict(zip(masked, now[1:], strict=True)), []
        gates = gates + cell_product(fed, fed_kernel)
        for k, (kernel, recurrent_kernel, bias) in enumerate(weights):
            if k > 0:
                below = after[k - 1][0]
                below = below * mask_of[k - 1] if k - 1 in mask_of else below
                gates = cell_product(below, kernel) + bias
            from_state = cell_product(state[k][0], recurrent_kernel)
            after.append(CELLS[model.cell](gates, from_state, *state[k]))
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
    """Return the inputs' share of the lowest gates, the fed part's kernel, all weights."""
    size, width = model.hidden_size, inputs.shape[-1]
    weights = [
        cell_parameters(
            f"decoder/{model.cell}_{k}",
            model.cell,
            size if k else width + size,
            size,
            inputs.dtype,
        )
        for k in range(model.num_layers)
    ]
    kernel, _, bias = weights[0]
    # The part of the inputs needs no loop.
    from_inputs = _product_of_rows(inputs, kernel[:, :width], transpose=True) + bias
    return from_inputs, kernel[:, width:], weights


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
