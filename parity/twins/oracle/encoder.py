"""The encoder of seq2seq in plain NumPy and float64, forward and backward."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.base.replaceable import replaceable
from parity.twins.oracle.attention import Memory, memory_forward
from parity.twins.oracle.layers import look_up, look_up_backward, reverse_rows
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
        for direction in directions(model, k, source_lengths):
            w, u, b = layer_weights(weights, direction.name)
            start = (np.zeros((rows, len(u)), u.dtype),) * NUM_STATES[cell]
            inputs_in_order = direction.into(inputs)
            hidden, final, of_steps = rnn_forward(cell, inputs_in_order, real, start, w, u, b)
            outputs.append(direction.out_of(hidden))
            finals.append(final)
            of_layer.append((inputs_in_order, of_steps))
        x = np.concatenate(outputs, axis=2)
        states.append(join_final_states(finals))
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
    d_activations: Arrays,
) -> None:
    lengths = batch["source_lengths"]
    real = np.arange(batch["source"].shape[1]) < lengths[:, None]
    for k in reversed(range(model.num_layers)):
        d_activations[f"encoder/{model.cell}_{k}/hidden"] = d_x
        both = directions(model, k, lengths)
        d_outputs = np.split(d_x, len(both), axis=2)
        d_finals = join_final_states_backward(d_states[k], len(both))
        d_inputs = []
        for direction, d_hidden, d_final, (inputs, of_steps) in zip(
            both, d_outputs, d_finals, saved[k], strict=True
        ):
            name = direction.name
            w, u, _ = layer_weights(weights, name)
            d_out = direction.out_of(d_hidden)
            d_ordered, d_w, d_u, d_b, _ = rnn_backward(
                model.cell, d_out, d_final, inputs, real, of_steps, w, u
            )
            gradients[f"{name}/input_kernel"] += d_w
            gradients[f"{name}/recurrent_kernel"] += d_u
            gradients[f"{name}/bias"] += d_b
            d_inputs.append(direction.into(d_ordered))
        d_x = sum(d_inputs[1:], d_inputs[0]) * masks.get(
            f"encoder_{k - 1}" if k else "source_embedded", 1.0
        )
    d_activations["encoder/embedded"] = d_x
    look_up_backward(gradients["encoder/embed/table"], batch["source"], d_x)


@replaceable
def join_final_states(finals: Sequence[State]) -> State:
    """Return the final state of a layer, given that of each of its directions."""
    return tuple(np.concatenate(parts, axis=1) for parts in zip(*finals, strict=True))


@replaceable
def join_final_states_backward(d_final: State, count: int) -> list[State]:
    """Go back through `join_final_states` of so many directions."""
    parts = (np.split(d, count, axis=1) for d in d_final)
    return [tuple(each) for each in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Direction:
    """One direction of a layer of the encoder.

    Attributes:
      name: the path of its parameters.
      into: brings the layer's inputs into the order in which the direction reads them; it is
        its own inverse.
      out_of: brings its outputs into the order of the source; it is its own inverse.
    """

    name: str
    into: Callable[[np.ndarray], np.ndarray]
    out_of: Callable[[np.ndarray], np.ndarray]


@replaceable
def directions(model: Seq2seqSpec, layer: int, lengths: np.ndarray) -> list[Direction]:
    """Return the directions of a layer of the encoder."""

    def unchanged(x: np.ndarray) -> np.ndarray:
        return x

    def backwards(x: np.ndarray) -> np.ndarray:
        return reverse_rows(x, lengths)

    name = f"encoder/{model.cell}_{layer}"
    if layer or not model.bidirectional:
        return [Direction(name, unchanged, unchanged)]
    return [
        Direction(f"{name}/forward", unchanged, unchanged),
        Direction(f"{name}/backward", backwards, backwards),
    ]
