"""Recurrent layers in plain NumPy and float64, forward and backward: LSTM and GRU."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.twins.oracle.layers import rows_of, sigmoid, tanh
from parity.twins.oracle.perturbation import summed
from parity.twins.spec.replaceable import replaceable

State = tuple[np.ndarray, ...]  # (h, c) of an LSTM, (h,) of a GRU, each [batch, hidden]


@replaceable
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


@replaceable
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


@replaceable
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


@replaceable
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


def layer_weights(
    weights: Mapping[str, np.ndarray], name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return W, U and b of a recurrent layer."""
    return (
        weights[f"{name}/input_kernel"],
        weights[f"{name}/recurrent_kernel"],
        weights[f"{name}/bias"],
    )


@replaceable
def masked_step(
    cell: str, a: np.ndarray, state: State, u: np.ndarray, on: np.ndarray
) -> tuple[np.ndarray, State, Any]:
    """Take a step in the rows that have not ended; elsewhere the state stays as it is.

    Args:
      cell: "lstm" or "gru".
      a, state, u: as in `lstm_step`.
      on: bool [batch, 1], true in the rows that have not ended.

    Returns:
      The step's output [batch, hidden], zero where `on` is false, the state after it, and what
      `masked_step_backward` needs.
    """
    new, saved = CELLS[cell][0](a, state, u)
    if on.all():
        return new[0], new, saved
    masked = tuple(
        np.where(on, after, before) for after, before in zip(new, state, strict=True)
    )
    return np.where(on, new[0], 0), masked, saved


@replaceable
def masked_step_backward(
    cell: str, d_output: np.ndarray, d_state: State, saved: Any, u: np.ndarray, on: np.ndarray
) -> tuple[np.ndarray, np.ndarray, State]:
    """Go back through `masked_step`: gradients with respect to a, u and the state before it."""
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
    """Run one layer; after a row's length its state stays as it is and its output is zero.

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
        hidden[:, t], state, of_step = masked_step(cell, a[:, t], state, u, real[:, t, None])
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
        d_a[:, t], d_u_t, d_state = masked_step_backward(
            cell, d_hidden[:, t], d_state, saved[t], u, real[:, t, None]
        )
        d_u += d_u_t
    d_inputs = (rows_of(d_a) @ w.T).reshape(inputs.shape)
    return d_inputs, rows_of(inputs).T @ rows_of(d_a), d_u, summed(d_a, axis=(0, 1)), d_state
