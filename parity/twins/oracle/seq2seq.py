"""The encoder and the attending decoder in plain NumPy and float64, forward and backward."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parity.twins.oracle.attention import Memory, memory_backward, memory_forward
from parity.twins.oracle.decoder import decoder_backward, decoder_forward
from parity.twins.oracle.layers import look_up, look_up_backward, project, reverse_rows
from parity.twins.oracle.recurrent import (
    NUM_STATES,
    State,
    layer_weights,
    rnn_backward,
    rnn_forward,
)
from parity.twins.spec.networks.seq2seq import Seq2seqSpec

Arrays = dict[str, np.ndarray]
Weights = Mapping[str, np.ndarray]


def seq2seq(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    state: Weights | None = None,
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
    d_memory, d_states = decoder_backward(
        model, weights, batch, masks, d_outputs, saved["decoder"], gradients
    )
    d_values = memory_backward(model.attention, weights, saved["memory"], d_memory, gradients)
    encoder_backward(
        model, weights, batch, masks, d_values, d_states, saved["encoder"], gradients
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
    decoded, decoder = decoder_forward(model, weights, batch, masks, memory, states)
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
    x = look_up(weights["encoder/embed/table"], source, real)
    activations = {"encoder/embedded": x}
    states, saved = [], []
    for k in range(model.num_layers):
        inputs = x * masks.get(f"encoder_{k - 1}" if k else "source_embedded", 1.0)
        outputs, finals, of_layer = [], [], []
        for name, in_order in directions(model, k, source_lengths):
            w, u, b = layer_weights(weights, name)
            start = (np.zeros((rows, len(u)), u.dtype),) * NUM_STATES[cell]
            inputs_in_order = in_order(inputs)
            hidden, final, of_steps = rnn_forward(cell, inputs_in_order, real, start, w, u, b)
            outputs.append(in_order(hidden))
            finals.append(final)
            of_layer.append((inputs_in_order, of_steps))
        x = np.concatenate(outputs, axis=2)
        states.append(tuple(np.concatenate(each, axis=1) for each in zip(*finals, strict=True)))
        saved.append(of_layer)
        activations[f"encoder/{cell}_{k}/hidden"] = x
    for place, name in enumerate("hc"[: NUM_STATES[cell]]):
        activations[f"encoder/{name}"] = np.stack([state[place] for state in states], axis=1)
    return memory_forward(model.attention, weights, x, real), states, activations, saved


def encoder_backward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    d_x: np.ndarray,
    d_states: list[State],
    saved: list,
    gradients: Arrays,
) -> None:
    lengths = batch["source_lengths"]
    real = np.arange(batch["source"].shape[1]) < lengths[:, None]
    for k in reversed(range(model.num_layers)):
        both = directions(model, k, lengths)
        d_outputs = np.split(d_x, len(both), axis=2)
        d_finals = zip(*(np.split(d, len(both), axis=1) for d in d_states[k]), strict=True)
        d_inputs = []
        for (name, in_order), d_hidden, d_final, (inputs, of_steps) in zip(
            both, d_outputs, d_finals, saved[k], strict=True
        ):
            w, u, _ = layer_weights(weights, name)
            d_ordered, d_w, d_u, d_b, _ = rnn_backward(
                model.cell, in_order(d_hidden), d_final, inputs, real, of_steps, w, u
            )
            gradients[f"{name}/input_kernel"] += d_w
            gradients[f"{name}/recurrent_kernel"] += d_u
            gradients[f"{name}/bias"] += d_b
            d_inputs.append(in_order(d_ordered))
        d_x = sum(d_inputs[1:], d_inputs[0]) * masks.get(
            f"encoder_{k - 1}" if k else "source_embedded", 1.0
        )
    look_up_backward(gradients["encoder/embed/table"], batch["source"], d_x)


def directions(
    model: Seq2seqSpec, layer: int, lengths: np.ndarray
) -> list[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Return the directions of a layer of the encoder.

    Each has the path of its parameters, and a function that brings a text into the order in
    which the direction reads it; the function is its own inverse.
    """

    def unchanged(x: np.ndarray) -> np.ndarray:
        return x

    def backwards(x: np.ndarray) -> np.ndarray:
        return reverse_rows(x, lengths)

    name = f"encoder/{model.cell}_{layer}"
    if layer or not model.bidirectional:
        return [(name, unchanged)]
    return [(f"{name}/forward", unchanged), (f"{name}/backward", backwards)]
