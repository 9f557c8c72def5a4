"""The encoder and the attending decoder in plain NumPy and float64, forward and backward.

The decoder is one loop over time, whatever is fed back into it: the same `decoder_step` trains
and decodes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.oracle.attention import (
    Memory,
    attention_backward,
    attention_forward,
    memory_backward,
    memory_forward,
)
from parity.oracle.layers import project, reverse_rows, tanh
from parity.oracle.recurrent import (
    NUM_STATES,
    State,
    masked_step,
    masked_step_backward,
    rnn_backward,
    rnn_forward,
)
from parity.spec.networks.seq2seq import Seq2seqSpec

Arrays = dict[str, np.ndarray]
Weights = Mapping[str, np.ndarray]


def seq2seq(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    state: Weights | None = None,
    d_activations: Arrays | None = None,
    divisor: int | None = None,
) -> tuple[Arrays, Arrays]:
    """Run the network forward and backward on a global batch.

    The loss is the summed cross entropy of the real target tokens over their number, or
    `divisor`.

    Args:
      weights: parameter name -> float64 array of canonical shape.
      batch: source [batch, source_time], source_lengths [batch], tokens and targets
        [batch, time], lengths [batch]; int64.
      masks: where dropout acts -> array [batch, time or source_time, width] of 0 or 1/keep;
        where there is none, nothing is dropped.
      state: not used; nothing is carried from batch to batch.
      d_activations: if given, it is filled with the gradients of what layers pass to each
        other; with input feeding the decoder's loop is one layer, and has none inside.
      divisor: what the summed loss is divided by; None for the number of real target tokens.

    Returns:
      activations: what a trace holds of the forward pass, zero beyond every row's length.
      gradients: parameter name -> array, of the loss.

    Sources: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473;
      Luong et al. 2015, arXiv:1508.04025, section 3.3 (input feeding); Wu et al. 2016,
      arXiv:1609.08144, section 3.2 (the bottom layer alone is bidirectional).
    """
    activations, saved = forward(model, weights, batch, masks, divisor)
    gradients = {name: np.zeros_like(array) for name, array in weights.items()}
    d_outputs, gradients["softmax/kernel"], gradients["softmax/bias"] = saved["projection"]
    if "attentional" in masks:
        d_outputs = d_outputs * masks["attentional"]
    d_activations = {} if d_activations is None else d_activations
    d_activations["attention/output"] = d_outputs
    d_memory, d_states = _decoder_backward(
        model, weights, batch, masks, d_outputs, saved["decoder"], gradients, d_activations
    )
    for name, parts in zip("hc", zip(*d_states, strict=True), strict=False):
        d_activations[f"encoder/{name}"] = np.stack(parts, axis=1)
    d_values = memory_backward(model.attention, weights, saved["memory"], d_memory, gradients)
    _encoder_backward(
        model,
        weights,
        batch,
        masks,
        d_values,
        d_states,
        saved["encoder"],
        gradients,
        d_activations,
    )
    return activations, gradients


def forward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    divisor: int | None = None,
) -> tuple[Arrays, dict[str, Any]]:
    """Run the network forward; return its activations and what the backward pass needs."""
    memory, states, activations, encoder = encode(
        model, weights, batch["source"], batch["source_lengths"], masks
    )
    decoded, decoder = _decoder_forward(model, weights, batch, masks, memory, states)
    outputs = decoded["attention/output"] * masks.get("attentional", 1.0)
    real = np.arange(batch["targets"].shape[1]) < batch["lengths"][:, None]
    projected, projection = project(
        outputs,
        real,
        batch["targets"],
        weights["softmax/kernel"],
        weights["softmax/bias"],
        divisor,
    )
    saved = {"encoder": encoder, "memory": memory, "decoder": decoder}
    return activations | decoded | projected, saved | {"projection": projection}


def encode(
    model: Seq2seqSpec,
    weights: Weights,
    source: np.ndarray,
    source_lengths: np.ndarray,
    masks: Weights,
) -> tuple[Memory, list[State], Arrays, list]:
    """Read the source.

    Returns:
      What the decoder attends to, the final state of every layer, the activations, and what the
      backward pass needs.
    """
    cell, rows = model.cell, len(source)
    real = np.arange(source.shape[1]) < source_lengths[:, None]
    x = np.where(real[:, :, None], weights["encoder/embed/table"][source], 0)
    activations = {"encoder/embedded": x}
    states, saved = [], []
    for k in range(model.num_layers):
        inputs = x * masks.get(f"encoder_{k - 1}" if k else "source_embedded", 1.0)
        outputs, finals, of_layer = [], [], []
        for name, ordered in _directions(model, k, source_lengths):
            w, u, b = _layer(weights, name)
            start = (np.zeros((rows, len(u)), u.dtype),) * NUM_STATES[cell]
            inputs_in_order = ordered(inputs)
            hidden, final, of_steps = rnn_forward(cell, inputs_in_order, real, start, w, u, b)
            outputs.append(ordered(hidden))
            finals.append(final)
            of_layer.append((inputs_in_order, of_steps))
        x = np.concatenate(outputs, axis=2)
        states.append(
            tuple(np.concatenate(parts, axis=1) for parts in zip(*finals, strict=True))
        )
        saved.append(of_layer)
        activations[f"encoder/{cell}_{k}/hidden"] = x
    for place, name in enumerate("hc"[: NUM_STATES[cell]]):
        activations[f"encoder/{name}"] = np.stack([state[place] for state in states], axis=1)
    return memory_forward(model.attention, weights, x, real), states, activations, saved


def _encoder_backward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    d_x: np.ndarray,
    d_states: list[State],
    saved: list,
    gradients: Arrays,
    d_activations: Arrays,
) -> None:
    lengths = batch["source_lengths"]
    real = np.arange(batch["source"].shape[1]) < lengths[:, None]
    for k in reversed(range(model.num_layers)):
        d_activations[f"encoder/{model.cell}_{k}/hidden"] = d_x
        directions = _directions(model, k, lengths)
        d_outputs = np.split(d_x, len(directions), axis=2)
        d_finals = zip(
            *(np.split(d, len(directions), axis=1) for d in d_states[k]), strict=True
        )
        d_inputs = []
        for (name, ordered), d_hidden, d_final, (inputs, of_steps) in zip(
            directions, d_outputs, d_finals, saved[k], strict=True
        ):
            w, u, _ = _layer(weights, name)
            d_ordered, d_w, d_u, d_b, _ = rnn_backward(
                model.cell, ordered(d_hidden), d_final, inputs, real, of_steps, w, u
            )
            gradients[f"{name}/input_kernel"] += d_w
            gradients[f"{name}/recurrent_kernel"] += d_u
            gradients[f"{name}/bias"] += d_b
            d_inputs.append(ordered(d_ordered))
        d_x = sum(d_inputs) * masks.get(f"encoder_{k - 1}" if k else "source_embedded", 1.0)
    d_activations["encoder/embedded"] = d_x
    np.add.at(gradients["encoder/embed/table"], batch["source"], d_x)


def decoder_step(
    model: Seq2seqSpec,
    weights: Weights,
    memory: Memory,
    x: np.ndarray,
    states: list[State],
    fed: np.ndarray,
    on: np.ndarray,
    masks: Weights,
) -> tuple[Arrays, list[State], list]:
    """Take one step of the decoder, from the embedded token to the attentional output.

        a_t = tanh([context_t ; h_t] C)

    Without input feeding, the layers read x_t, and h_t is the query of context_t. With it,
    Luong's layers read [x_t ; a_{t-1}] instead; Bahdanau's query is h_{t-1}, and the layers
    read [x_t ; context_t].

    Args:
      x: [batch, embedding], after dropout.
      states: of every layer, before the step.
      fed: a_{t-1} [batch, hidden], zero before the first step.
      on: bool [batch, 1]; where it is false, states stay as they are and all else is zero.
      masks: "decoder_k" -> [batch, hidden] of this step.

    Returns:
      The step's activations, the states after it, and what `_decoder_step_backward` needs.

    Source: Luong et al. 2015, arXiv:1508.04025, equation 5 and section 3.3; Bahdanau et al.
      2015, arXiv:1409.0473, appendix A.1.2.
    """
    cell, kind = model.cell, model.attention
    found, new_states, of_layers = {}, [], []
    if _attends_first(model):
        attended, fed, of_attention = attention_forward(
            kind, weights, memory, states[-1][0], on
        )
        context = fed
    if model.input_feeding:
        x = np.concatenate([x, fed], axis=1)
    for k in range(model.num_layers):
        w, u, b = _layer(weights, f"decoder/{cell}_{k}")
        inputs = x * masks.get(f"decoder_{k - 1}", 1.0)
        x, state, of_step = masked_step(cell, inputs @ w + b, states[k], u, on)
        found[f"decoder/{cell}_{k}/hidden"] = x
        new_states.append(state)
        of_layers.append((inputs, of_step))
    if not _attends_first(model):
        attended, context, of_attention = attention_forward(kind, weights, memory, x, on)
    joined = np.concatenate([context, x], axis=1)
    output = tanh(joined @ weights["attention/output_kernel"])
    found |= {
        "attention/weights": attended,
        "attention/context": context,
        "attention/output": output,
    }
    return found, new_states, [of_layers, of_attention, joined, output]


def _decoder_step_backward(
    model: Seq2seqSpec,
    weights: Weights,
    memory: Memory,
    d_output: np.ndarray,
    d_states: list[State],
    on: np.ndarray,
    masks: Weights,
    saved: list,
    gradients: Arrays,
    d_memory: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, list[State], np.ndarray, Arrays]:
    """Go back through `decoder_step`: gradients of x, the states before it, and a_{t-1}.

    The last result holds the gradients of the step's activations; it is empty with input
    feeding.
    """
    cell, kind, hidden = model.cell, model.attention, model.hidden_size
    of_layers, of_attention, joined, output = saved
    d_sum = d_output * (1 - output**2)
    gradients["attention/output_kernel"] += joined.T @ d_sum
    d_context, d_x = np.split(d_sum @ weights["attention/output_kernel"].T, 2, axis=1)
    if not _attends_first(model):
        d_x = d_x + attention_backward(
            kind, weights, memory, d_context, of_attention, gradients, d_memory
        )
    found = {"attention/context": d_context}
    d_before = list(d_states)
    for k in reversed(range(model.num_layers)):
        name = f"decoder/{cell}_{k}"
        w, u, _ = _layer(weights, name)
        found[f"{name}/hidden"] = d_x
        inputs, of_step = of_layers[k]
        d_a, d_u, d_before[k] = masked_step_backward(cell, d_x, d_states[k], of_step, u, on)
        gradients[f"{name}/input_kernel"] += inputs.T @ d_a
        gradients[f"{name}/recurrent_kernel"] += d_u
        # Row after row, over all steps: see `project`.
        rows = np.vstack([gradients[f"{name}/bias"], d_a])
        gradients[f"{name}/bias"] = rows.sum(axis=0)
        d_x = (d_a @ w.T) * masks.get(f"decoder_{k - 1}", 1.0)
    d_fed = np.zeros_like(output)
    if model.input_feeding:
        d_x, d_fed = d_x[:, :-hidden], d_x[:, -hidden:]
    if _attends_first(model):
        d_query = attention_backward(
            kind, weights, memory, d_context + d_fed, of_attention, gradients, d_memory
        )
        d_h, *others = d_before[-1]
        d_before[-1] = (d_h + d_query, *others)
        d_fed = np.zeros_like(output)
    return d_x, d_before, d_fed, {} if model.input_feeding else found


def _decoder_forward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    memory: Memory,
    states: list[State],
) -> tuple[Arrays, tuple]:
    """Run the decoder over the whole of its inputs, from the encoder's final states."""
    tokens = batch["tokens"]
    real = np.arange(tokens.shape[1]) < batch["lengths"][:, None]
    embedded = np.where(real[:, :, None], weights["decoder/embed/table"][tokens], 0)
    x = embedded * masks.get("target_embedded", 1.0)
    fed = np.zeros((len(tokens), model.hidden_size), x.dtype)
    steps, saved = [], []
    for t in range(tokens.shape[1]):
        found, states, of_step = decoder_step(
            model, weights, memory, x[:, t], states, fed, real[:, t, None], _at(masks, t)
        )
        fed = found["attention/output"]
        steps.append(found)
        saved.append(of_step)
    joined = {name: np.stack([step[name] for step in steps], axis=1) for name in steps[0]}
    return {"decoder/embedded": embedded} | joined, (memory, saved)


def _decoder_backward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    d_outputs: np.ndarray,
    saved: tuple,
    gradients: Arrays,
    d_activations: Arrays,
) -> tuple[tuple[np.ndarray, np.ndarray], list[State]]:
    """Return the gradients of the memory (values, keys) and of the decoder's first states."""
    memory, of_steps = saved
    tokens = batch["tokens"]
    real = np.arange(tokens.shape[1]) < batch["lengths"][:, None]
    zero = np.zeros((len(tokens), model.hidden_size), d_outputs.dtype)
    d_states: list[State] = [(zero,) * NUM_STATES[model.cell]] * model.num_layers
    d_fed = zero
    d_memory = np.zeros_like(memory.values), np.zeros_like(memory.keys)
    d_x = np.zeros((*tokens.shape, model.embedding_size), d_outputs.dtype)
    d_steps: list[Arrays] = []
    for t in reversed(range(tokens.shape[1])):
        d_x[:, t], d_states, d_fed, found = _decoder_step_backward(
            model,
            weights,
            memory,
            d_outputs[:, t] + d_fed,
            d_states,
            real[:, t, None],
            _at(masks, t),
            of_steps[t],
            gradients,
            d_memory,
        )
        d_steps.insert(0, found)
    for name in found:
        d_activations[name] = np.stack([step[name] for step in d_steps], axis=1)
    d_x = d_x * masks.get("target_embedded", 1.0)
    d_activations["decoder/embedded"] = d_x
    np.add.at(gradients["decoder/embed/table"], tokens, d_x)
    return d_memory, d_states


def _attends_first(model: Seq2seqSpec) -> bool:
    """Return whether the cell reads the context, so that attention comes before it."""
    return model.input_feeding and model.attention == "bahdanau"


def _directions(model: Seq2seqSpec, layer: int, lengths: np.ndarray) -> list[tuple[str, Any]]:
    """Return the parameters' path and the order of time, for each direction of a layer."""
    name = f"encoder/{model.cell}_{layer}"
    if layer or not model.bidirectional:
        return [(name, lambda x: x)]
    return [
        (f"{name}/forward", lambda x: x),
        (f"{name}/backward", lambda x: reverse_rows(x, lengths)),
    ]


def _layer(weights: Weights, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return W, U and b of a recurrent layer."""
    return (
        weights[f"{name}/input_kernel"],
        weights[f"{name}/recurrent_kernel"],
        weights[f"{name}/bias"],
    )


def _at(masks: Weights, t: int) -> Arrays:
    """Return the masks between the decoder's layers at one step."""
    return {name: mask[:, t] for name, mask in masks.items() if name.startswith("decoder_")}
