"""The attending decoder of seq2seq in plain NumPy and float64, forward and backward.

It is one loop over time, whatever is fed back into it: the same `decoder_step` trains and
decodes.
"""

from collections.abc import Mapping

import numpy as np

from parity.twins.oracle.attention import Memory, attention_backward, attention_forward
from parity.twins.oracle.layers import look_up, look_up_backward, tanh
from parity.twins.oracle.perturbation import summed
from parity.twins.oracle.recurrent import (
    NUM_STATES,
    State,
    layer_weights,
    masked_step,
    masked_step_backward,
)
from parity.twins.spec.networks.seq2seq import Seq2seqSpec
from parity.twins.spec.replaceable import replaceable

Arrays = dict[str, np.ndarray]
Weights = Mapping[str, np.ndarray]


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
      The step's activations, the states after it, and what `decoder_step_backward` needs.

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
        w, u, b = layer_weights(weights, f"decoder/{cell}_{k}")
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


def decoder_step_backward(
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
) -> tuple[np.ndarray, list[State], np.ndarray]:
    """Go back: the gradients of x, of the states before the step, and of what was fed."""
    cell, kind, hidden = model.cell, model.attention, model.hidden_size
    of_layers, of_attention, joined, output = saved
    d_sum = d_output * (1 - output**2)
    gradients["attention/output_kernel"] += joined.T @ d_sum
    d_context, d_x = np.split(d_sum @ weights["attention/output_kernel"].T, 2, axis=1)
    if not _attends_first(model):
        d_x = d_x + attention_backward(
            kind, weights, memory, d_context, of_attention, gradients, d_memory
        )
    d_before = list(d_states)
    for k in reversed(range(model.num_layers)):
        name = f"decoder/{cell}_{k}"
        w, u, _ = layer_weights(weights, name)
        inputs, of_step = of_layers[k]
        d_a, d_u, d_before[k] = masked_step_backward(cell, d_x, d_states[k], of_step, u, on)
        gradients[f"{name}/input_kernel"] += inputs.T @ d_a
        gradients[f"{name}/recurrent_kernel"] += d_u
        # over all steps one row after another, as an order of its own has it
        rows = np.vstack([gradients[f"{name}/bias"], d_a])
        gradients[f"{name}/bias"] = summed(rows, axis=0)
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
    return d_x, d_before, d_fed


def decoder_forward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    memory: Memory,
    states: list[State],
) -> tuple[Arrays, tuple]:
    """Run the decoder over the whole of its inputs, from the encoder's final states."""
    tokens, states = batch["tokens"], decoder_start(states)
    real = np.arange(tokens.shape[1]) < batch["lengths"][:, None]
    embedded = look_up(weights["decoder/embed/table"], tokens, real)
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


def decoder_backward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    d_outputs: np.ndarray,
    saved: tuple,
    gradients: Arrays,
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
    for t in reversed(range(tokens.shape[1])):
        d_x[:, t], d_states, d_fed = decoder_step_backward(
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
    d_x = d_x * masks.get("target_embedded", 1.0)
    look_up_backward(gradients["decoder/embed/table"], tokens, d_x)
    return d_memory, decoder_start_backward(d_states)


@replaceable
def decoder_start(states: list[State]) -> list[State]:
    """Return the states that the decoder starts from, given the encoder's final ones."""
    return states


@replaceable
def decoder_start_backward(d_states: list[State]) -> list[State]:
    """Go back through `decoder_start`."""
    return d_states


def _attends_first(model: Seq2seqSpec) -> bool:
    """Return whether the cell reads the context, so that attention comes before it."""
    return model.input_feeding and model.attention == "bahdanau"


def _at(masks: Weights, t: int) -> Arrays:
    """Return the masks between the decoder's layers at one step."""
    return {name: mask[:, t] for name, mask in masks.items() if name.startswith("decoder_")}
