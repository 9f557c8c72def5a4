"""The layers in plain NumPy and float64, forward and backward.

They are written to be read beside the papers, not to be fast. Products over all time steps are
taken at once where that costs no clarity. Everything is batch-major, [batch, time, ...].
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.spec.networks.network import records_logits

Arrays = dict[str, np.ndarray]
State = tuple[np.ndarray, ...]  # (h, c) of an LSTM, (h,) of a GRU, each [batch, hidden]


# Elements of logits at a time, 1 MB: what is done to them then stays in a core's cache.
_BLOCK = 2**17

_disturb: ContextVar[Callable[[np.ndarray], np.ndarray] | None] = ContextVar(
    "disturb", default=None
)


@contextmanager
def disturbed(change: Callable[[np.ndarray], np.ndarray]) -> Iterator[None]:
    """Let all that comes of exponentials be changed a little; see parity/oracle/rounding.py."""
    token = _disturb.set(change)
    try:
        yield
    finally:
        _disturb.reset(token)


def held(x: np.ndarray) -> np.ndarray:
    """Return what came of exponentials, as it is but within `disturbed`."""
    change = _disturb.get()
    return x if change is None else change(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), exact to the last bits where that is next to nothing, too."""
    small = np.exp(-np.abs(x))  # never overflows
    return held(np.where(x >= 0, 1, small) / (1 + small))


def tanh(x: np.ndarray) -> np.ndarray:
    """Return the hyperbolic tangent."""
    return held(np.tanh(x))


def rows_of(x: np.ndarray) -> np.ndarray:
    """Return [batch * time, width]: products of rank 2 are what linear algebra is fast at."""
    return x.reshape(-1, x.shape[-1])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return logits - log(sum(exp(logits))) over the last axis, without overflow."""
    shifted: np.ndarray = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(held(np.exp(shifted).sum(axis=-1, keepdims=True)))
    return shifted


def project(
    outputs: np.ndarray,
    real: np.ndarray,
    targets: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> tuple[Arrays, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Project to the vocabulary and take the cross entropy, forward and backward.

        logits = outputs kernel + bias,   loss = log(sum(exp(logits))) - logits at the target

    With a large vocabulary it is most of the work, and so done at the real positions alone, and
    in place.

    Args:
      outputs: [batch, time, hidden].
      real: bool [batch, time].
      targets: [batch, time].
      kernel, bias: [hidden, vocabulary], [vocabulary].

    Returns:
      token_loss [batch, time] and, where a trace records them, logits [batch, time,
      vocabulary], both zero where not real; and the gradients of the mean loss of the real
      positions with respect to outputs, kernel and bias.
    """
    inputs, wanted, places = outputs[real], targets[real], np.argwhere(real)
    logits = inputs @ kernel  # [real tokens, vocabulary]; in the end their gradient
    losses = np.zeros(len(inputs), logits.dtype)
    found = {"token_loss": np.zeros(targets.shape, logits.dtype)}
    if records_logits(targets.size * len(bias)):
        found["logits"] = np.zeros((*targets.shape, len(bias)), logits.dtype)
    rows = max(1, _BLOCK // len(bias))
    for start in range(0, len(inputs), rows):
        block = slice(start, start + rows)
        x = logits[block]
        x += bias
        if "logits" in found:
            found["logits"][tuple(places[block].T)] = x
        x -= x.max(axis=1, keepdims=True)
        at_target = np.arange(len(x)), wanted[block]
        losses[block] = -x[at_target]
        np.exp(x, out=x)
        total = held(x.sum(axis=1, keepdims=True))
        losses[block] += np.log(total[:, 0])
        softmax = held(np.divide(x, total, out=x))
        # The gradient of softmax cross entropy is softmax minus one at the target.
        softmax[at_target] -= 1
        np.divide(softmax, len(inputs), out=x)
    found["token_loss"][real] = losses
    d_outputs = np.zeros_like(outputs)
    d_outputs[real] = logits @ kernel.T
    # One row after the other, not by blocks: where parity/oracle/rounding.py runs this in
    # float32, it is to err by as much as the frameworks, whose sum this is the longest of.
    d_bias = logits.sum(axis=0)
    return found, (d_outputs, inputs.T @ logits, d_bias)


def lstm_step(a: np.ndarray, state: State, u: np.ndarray) -> tuple[State, Any]:
    """Take one step of an LSTM layer.

        i, f, o = sigmoid(.), g = tanh(.) of a_t + h_{t-1} U,   a_t = x_t W + b
        c_t = f * c_{t-1} + i * g,   h_t = o * tanh(c_t)

    Args:
      a: [batch, 4 * hidden], the part of the gates i, f, g, o that comes from the input.
      state: (h, c) before the step.
      u: [hidden, 4 * hidden].

    Returns:
      (h, c) after it, and what `lstm_step_backward` needs.

    Source: Zaremba et al. 2014, section 3.1; no peepholes, no added forget bias.
    """
    h, c = state
    gates = _gates(a + h @ u, 4)
    (i, f, o), g = sigmoid(gates[[0, 1, 3]]), tanh(gates[2])
    new_c = f * c + i * g
    tanh_c = tanh(new_c)
    return (o * tanh_c, new_c), (i, f, g, o, h, c, tanh_c)


def lstm_step_backward(
    d_state: State, saved: Any, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray, State]:
    """Go back through `lstm_step`: gradients with respect to a, u and the state before it."""
    i, f, g, o, h, c, tanh_c = saved
    d_new_h, d_new_c = d_state
    d_new_c = d_new_c + d_new_h * o * (1 - tanh_c**2)
    d_gates = np.concatenate(
        [
            d_new_c * g * i * (1 - i),
            d_new_c * c * f * (1 - f),
            d_new_c * i * (1 - g**2),
            d_new_h * tanh_c * o * (1 - o),
        ],
        axis=1,
    )
    return d_gates, h.T @ d_gates, (d_gates @ u.T, d_new_c * f)


def gru_step(a: np.ndarray, state: State, u: np.ndarray) -> tuple[State, Any]:
    """Take one step of a GRU layer whose reset gate acts after the matrix product.

        r, z = sigmoid(.) of a_t + h_{t-1} U,   a_t = x_t W + b
        c = tanh(a_t + r * (h_{t-1} U)),   h_t = z * h_{t-1} + (1 - z) * c

    Args:
      a: [batch, 3 * hidden], the part of r, z, c that comes from the input.
      state: (h,) before the step.
      u: [hidden, 3 * hidden].

    Returns:
      (h,) after it, and what `gru_step_backward` needs.

    Source: Cho et al. 2014, arXiv:1406.1078v1; version 3 of the paper resets h before the
      product instead. One bias, on the side of the input.
    """
    (h,) = state
    of_input, of_state = _gates(a, 3), _gates(h @ u, 3)
    (r, z), u_c = sigmoid(of_input[:2] + of_state[:2]), of_state[2]
    c = tanh(of_input[2] + r * u_c)
    return (z * h + (1 - z) * c,), (r, z, c, u_c, h)


def gru_step_backward(
    d_state: State, saved: Any, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray, State]:
    """Go back through `gru_step`: gradients with respect to a, u and the state before it."""
    r, z, c, u_c, h = saved
    (d_new_h,) = d_state
    d_c = d_new_h * (1 - z) * (1 - c**2)
    d_z = d_new_h * (h - c) * z * (1 - z)
    d_r = d_c * u_c * r * (1 - r)
    d_product = np.concatenate([d_r, d_z, d_c * r], axis=1)  # with respect to h U
    d_a = np.concatenate([d_r, d_z, d_c], axis=1)
    return d_a, h.T @ d_product, (d_new_h * z + d_product @ u.T,)


def _gates(x: np.ndarray, count: int) -> np.ndarray:
    """Return [count, batch, hidden] of [batch, count * hidden]."""
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


CELLS = {"lstm": (lstm_step, lstm_step_backward), "gru": (gru_step, gru_step_backward)}
NUM_STATES = {"lstm": 2, "gru": 1}  # arrays in the state of a layer


def held_step(
    cell: str, a: np.ndarray, state: State, u: np.ndarray, on: np.ndarray
) -> tuple[np.ndarray, State, Any]:
    """Take a step in the rows that are still on; elsewhere the state stands still.

    Args:
      cell: "lstm" or "gru".
      a, state, u: as in `lstm_step`.
      on: bool [batch, 1].

    Returns:
      The step's output [batch, hidden], zero where it is not on, the state after it, and what
      `held_step_backward` needs.
    """
    new, saved = CELLS[cell][0](a, state, u)
    if on.all():
        return new[0], new, saved
    held = tuple(np.where(on, after, before) for after, before in zip(new, state, strict=True))
    return np.where(on, new[0], 0), held, saved


def held_step_backward(
    cell: str, d_output: np.ndarray, d_state: State, saved: Any, u: np.ndarray, on: np.ndarray
) -> tuple[np.ndarray, np.ndarray, State]:
    """Go back through `held_step`: gradients with respect to a, u and the state before it."""
    if on.all():
        d_h, *d_others = d_state
        return CELLS[cell][1]((d_h + d_output, *d_others), saved, u)
    d_h, *d_others = (np.where(on, d, 0) for d in d_state)
    d_h = d_h + np.where(on, d_output, 0)
    d_a, d_u, d_before = CELLS[cell][1]((d_h, *d_others), saved, u)
    passed = (np.where(on, d, past) for d, past in zip(d_before, d_state, strict=True))
    return d_a, d_u, tuple(passed)


def rnn_forward(
    cell: str,
    inputs: np.ndarray,
    real: np.ndarray,
    state: State,
    w: np.ndarray,
    u: np.ndarray,
    b: np.ndarray,
) -> tuple[np.ndarray, State, list]:
    """Run one layer; beyond a row's length its state stands still and its output is zero.

    Args:
      cell: "lstm" or "gru".
      inputs: [batch, time, input].
      real: bool [batch, time], true up to each row's length.
      state: before the first step.
      w, u, b: [input, gates * hidden], [hidden, gates * hidden], [gates * hidden].

    Returns:
      hidden [batch, time, hidden], the final state, and what `rnn_backward` needs.
    """
    a = (rows_of(inputs) @ w + b).reshape(*inputs.shape[:2], -1)
    hidden = np.zeros((*inputs.shape[:2], len(u)), inputs.dtype)
    saved = []
    for t in range(inputs.shape[1]):
        hidden[:, t], state, of_step = held_step(cell, a[:, t], state, u, real[:, t, None])
        saved.append(of_step)
    return hidden, state, saved


def rnn_backward(
    cell: str,
    d_hidden: np.ndarray,
    d_state: State,
    inputs: np.ndarray,
    real: np.ndarray,
    saved: list,
    w: np.ndarray,
    u: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, State]:
    """Go back through one layer; the chain rule applied to `rnn_forward`, line by line.

    Args:
      d_hidden, d_state: gradients with respect to its output and to its final state.

    Returns:
      Gradients with respect to inputs, w, u, b and the initial state.
    """
    d_a = np.zeros((*inputs.shape[:2], w.shape[1]), inputs.dtype)
    d_u = np.zeros_like(u)
    for t in reversed(range(inputs.shape[1])):
        d_a[:, t], d_u_t, d_state = held_step_backward(
            cell, d_hidden[:, t], d_state, saved[t], u, real[:, t, None]
        )
        d_u += d_u_t
    d_inputs = (rows_of(d_a) @ w.T).reshape(inputs.shape)
    return d_inputs, rows_of(inputs).T @ rows_of(d_a), d_u, d_a.sum(axis=(0, 1)), d_state


def lstm_forward(
    inputs: np.ndarray,
    real: np.ndarray,
    h: np.ndarray,
    c: np.ndarray,
    w: np.ndarray,
    u: np.ndarray,
    b: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list]:
    """Run one LSTM layer: `rnn_forward` with h and c by name."""
    hidden, (h, c), saved = rnn_forward("lstm", inputs, real, (h, c), w, u, b)
    return hidden, h, c, saved


def lstm_backward(
    d_hidden: np.ndarray,
    inputs: np.ndarray,
    real: np.ndarray,
    saved: list,
    w: np.ndarray,
    u: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Go back through one LSTM layer whose final state nothing reads.

    Returns:
      Gradients with respect to inputs, w, u and b. None flows into the initial state:
      back-propagation is truncated at the batch (Zaremba et al. 2014, section 4.1).
    """
    nothing = np.zeros((len(inputs), len(u)), inputs.dtype)
    d_state = (nothing, nothing)
    return rnn_backward("lstm", d_hidden, d_state, inputs, real, saved, w, u)[:4]


def reverse_rows(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Reverse the real part of every row; padding stays at the end.

    It is its own inverse, and so its own backward too.

    Args:
      x: [batch, time, width].
      lengths: [batch].

    Source: Schuster & Paliwal 1997, section II.D: the states of the negative time direction.
    """
    t = np.arange(x.shape[1])
    ends = lengths[:, None]
    from_step = np.where(t < ends, ends - 1 - t, t)
    return np.take_along_axis(x, from_step[:, :, None], axis=1)


@dataclass(frozen=True)
class Memory:
    """What attention looks at.

    Attributes:
      values: [batch, source_time, hidden], outputs of the encoder.
      keys: the same times attention/memory_kernel; for "dot", the values themselves.
      real: bool [batch, source_time], true up to each row's length.
    """

    values: np.ndarray
    keys: np.ndarray
    real: np.ndarray


def memory_forward(
    kind: str, weights: Mapping[str, np.ndarray], values: np.ndarray, real: np.ndarray
) -> Memory:
    """Compute the keys, the part of the scores that is the same for every query."""
    keys = values
    if kind != "dot":
        kernel = weights["attention/memory_kernel"]
        keys = (rows_of(values) @ kernel).reshape(values.shape)
    return Memory(values, keys, real)


def memory_backward(
    kind: str,
    weights: Mapping[str, np.ndarray],
    memory: Memory,
    d_memory: tuple[np.ndarray, np.ndarray],
    gradients: Arrays,
) -> np.ndarray:
    """Go back through `memory_forward`: add the kernel's gradient, return that of the values.

    Args:
      d_memory: gradients with respect to values and keys, gathered over all queries.
    """
    d_values, d_from_keys = d_memory
    if kind != "dot":
        kernel = weights["attention/memory_kernel"]
        gradients["attention/memory_kernel"] += rows_of(memory.values).T @ rows_of(d_from_keys)
        d_from_keys = (rows_of(d_from_keys) @ kernel.T).reshape(d_from_keys.shape)
    total: np.ndarray = d_values + d_from_keys
    return total


def attention_forward(
    kind: str,
    weights: Mapping[str, np.ndarray],
    memory: Memory,
    query: np.ndarray,
    on: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Attend to the memory with one query per row.

        dot      score_s = q . m_s                    general  score_s = q . (m_s K)
        scaled   score_s = g (q . (m_s K))            bahdanau score_s = v . tanh(q Q + m_s K)
        weights = softmax over the real s,   context = sum_s weights_s m_s

    Args:
      kind: "dot", "general", "scaled" or "bahdanau".
      weights: parameter name -> array; read are those that start with "attention/".
      query: [batch, hidden].
      on: bool [batch, 1]; where it is false, weights and context are zero.

    Returns:
      weights [batch, source_time], exactly zero beyond each length; context [batch, hidden];
      and what `attention_backward` needs.

    Source: Luong et al. 2015, arXiv:1508.04025, equations 7 and 8; Bahdanau et al. 2015,
      arXiv:1409.0473, appendix A.1.2.
    """
    if kind == "bahdanau":
        moved = query @ weights["attention/query_kernel"]
        seen = tanh(moved[:, None] + memory.keys)
        raw = (rows_of(seen) @ weights["attention/score_kernel"]).reshape(memory.real.shape)
    else:
        seen = memory.keys
        raw = (memory.keys @ query[:, :, None])[:, :, 0]
    scores = raw * weights["attention/scale"] if kind == "scaled" else raw
    scores = np.where(memory.real, scores, -np.inf)
    attended = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended = np.where(on, held(attended / attended.sum(axis=1, keepdims=True)), 0)
    context = (attended[:, None] @ memory.values)[:, 0]
    return attended, context, (query, seen, raw, attended)


def attention_backward(
    kind: str,
    weights: Mapping[str, np.ndarray],
    memory: Memory,
    d_context: np.ndarray,
    saved: Any,
    gradients: Arrays,
    d_memory: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Go back through `attention_forward`, and return the gradient of the query.

    Args:
      gradients: parameter name -> array, to which those of the attention's own are added.
      d_memory: gradients with respect to the memory's values and keys, which are added to.
    """
    query, seen, raw, attended = saved
    d_values, d_keys = d_memory
    d_values += attended[:, :, None] * d_context[:, None]
    d_attended = (memory.values @ d_context[:, :, None])[:, :, 0]
    # softmax: d_score = weight (d_weight - sum of weight * d_weight), zero where weight is
    d_scores = attended * (d_attended - (attended * d_attended).sum(axis=1, keepdims=True))
    if kind == "scaled":
        gradients["attention/scale"] += (d_scores * raw).sum()
        d_scores = d_scores * weights["attention/scale"]
    if kind == "bahdanau":
        gradients["attention/score_kernel"] += rows_of(seen).T @ d_scores.reshape(-1)
        d_sum = d_scores[:, :, None] * weights["attention/score_kernel"] * (1 - seen**2)
        d_keys += d_sum
        d_moved = d_sum.sum(axis=1)
        gradients["attention/query_kernel"] += query.T @ d_moved
        d_query: np.ndarray = d_moved @ weights["attention/query_kernel"].T
    else:
        d_keys += d_scores[:, :, None] * query[:, None]
        d_query = (d_scores[:, None] @ seen)[:, 0]
    return d_query
