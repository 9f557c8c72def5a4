"""The layers in plain NumPy and float64, forward and backward.

They are written to be read beside the papers, not to be fast. Products over all time steps are
taken at once where that costs no clarity. Everything is batch-major, [batch, time, ...].
"""

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), by way of tanh, which never overflows."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def rows_of(x: np.ndarray) -> np.ndarray:
    """Return [batch * time, width]: products of rank 2 are what linear algebra is fast at."""
    return x.reshape(-1, x.shape[-1])


def lstm_forward(
    inputs: np.ndarray,
    real: np.ndarray,
    h: np.ndarray,
    c: np.ndarray,
    w: np.ndarray,
    u: np.ndarray,
    b: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list]:
    """Run one LSTM layer; beyond a row's length its state stands still and its output is zero.

        i, f, o = sigmoid(.), g = tanh(.) of x_t W + h_{t-1} U + b
        c_t = f * c_{t-1} + i * g,   h_t = o * tanh(c_t)

    Args:
      inputs: [batch, time, input].
      real: bool [batch, time], true up to each row's length.
      h, c: [batch, hidden], the state before the first step.
      w, u, b: [input, 4 * hidden], [hidden, 4 * hidden], [4 * hidden], gates i, f, g, o.

    Returns:
      hidden [batch, time, hidden], the final h and c, and what `lstm_backward` needs.

    Source: Zaremba et al. 2014, section 3.1; no peepholes, no added forget bias.
    """
    from_inputs = (rows_of(inputs) @ w + b).reshape(*inputs.shape[:2], -1)
    hidden = np.zeros((*inputs.shape[:2], h.shape[1]))
    saved = []
    for t in range(inputs.shape[1]):
        i, f, g, o = np.split(from_inputs[:, t] + h @ u, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        new_c = f * c + i * g
        new_h = o * np.tanh(new_c)
        saved.append((i, f, g, o, h, c, np.tanh(new_c)))
        on = real[:, t, None]
        hidden[:, t] = np.where(on, new_h, 0)
        h, c = np.where(on, new_h, h), np.where(on, new_c, c)
    return hidden, h, c, saved


def lstm_backward(
    d_hidden: np.ndarray,
    inputs: np.ndarray,
    real: np.ndarray,
    saved: list,
    w: np.ndarray,
    u: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Go back through one LSTM layer; the chain rule applied to `lstm_forward`, line by line.

    Returns:
      Gradients with respect to inputs, w, u and b. None flows into the initial state:
      back-propagation is truncated at the batch (Zaremba et al. 2014, section 4.1).
    """
    d_gates = np.zeros((*inputs.shape[:2], w.shape[1]))
    d_h = np.zeros((len(inputs), u.shape[0]))
    d_c = np.zeros_like(d_h)
    d_u = np.zeros_like(u)
    for t in reversed(range(inputs.shape[1])):
        i, f, g, o, h, c, tanh_c = saved[t]
        on = real[:, t, None]
        d_new_h = np.where(on, d_h + d_hidden[:, t], 0)
        d_new_c = np.where(on, d_c, 0) + d_new_h * o * (1 - tanh_c**2)
        d_gates[:, t] = np.concatenate(
            [
                d_new_c * g * i * (1 - i),
                d_new_c * c * f * (1 - f),
                d_new_c * i * (1 - g**2),
                d_new_h * tanh_c * o * (1 - o),
            ],
            axis=1,
        )
        d_u += h.T @ d_gates[:, t]
        d_h = np.where(on, d_gates[:, t] @ u.T, d_h)
        d_c = np.where(on, d_new_c * f, d_c)
    d_inputs = (rows_of(d_gates) @ w.T).reshape(inputs.shape)
    return d_inputs, rows_of(inputs).T @ rows_of(d_gates), d_u, d_gates.sum(axis=(0, 1))
