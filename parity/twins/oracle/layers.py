"""The layers in plain NumPy and float64, forward and backward.

They are written to be read beside the papers, not to be fast. Products over all time steps are
taken at once where that costs no clarity. Everything is batch-major, [batch, time, ...].
"""

import numpy as np

from parity.twins.oracle.perturbation import perturbed, product, summed
from parity.twins.spec.networks.network import records_logits
from parity.twins.spec.replaceable import replaceable

Arrays = dict[str, np.ndarray]

# The elements of logits to process at a time: 1 MB, which fits into the cache of a core.
_BLOCK = 2**17


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), exact to the last bits even where the result is tiny."""
    small = np.exp(-np.abs(x))  # never overflows
    return perturbed(np.where(x >= 0, 1, small) / (1 + small))


def tanh(x: np.ndarray) -> np.ndarray:
    """Return the hyperbolic tangent."""
    return perturbed(np.tanh(x))


def rows_of(x: np.ndarray) -> np.ndarray:
    """Return [batch * time, width]: products of rank 2 are what linear algebra is fast at."""
    return x.reshape(-1, x.shape[-1])


@replaceable
def look_up(table: np.ndarray, tokens: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return the rows of a table, [batch, time, width], zero where `real` is false."""
    return np.where(real[:, :, None], table[tokens], 0)


def look_up_backward(gradient: np.ndarray, tokens: np.ndarray, d_rows: np.ndarray) -> None:
    """Add the gradients of the rows looked up to that of the table, repeated rows summed."""
    np.add.at(gradient, tokens, d_rows)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return logits - log(sum(exp(logits))) over the last axis, without overflow."""
    shifted: np.ndarray = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(perturbed(summed(np.exp(shifted), axis=-1, keepdims=True)))
    return shifted


def project(
    outputs: np.ndarray,
    real: np.ndarray,
    targets: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    divisor: int | None = None,
) -> tuple[Arrays, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Project to the vocabulary and take the cross entropy, forward and backward.

        logits = outputs kernel + bias,   loss = log(sum(exp(logits))) - logits at the target

    With a large vocabulary this is most of the work, so it is done in place, and only at the
    real positions.

    Args:
      outputs: [batch, time, hidden].
      real: bool [batch, time].
      targets: [batch, time].
      kernel, bias: [hidden, vocabulary], [vocabulary].
      divisor: what the summed loss is divided by; None for the number of real positions.

    Returns:
      token_loss [batch, time] and, where a trace records them, logits [batch, time,
      vocabulary], both zero on padding; and the gradients of the summed loss over
      `divisor` with respect to outputs, kernel and bias.
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
        total = perturbed(summed(x, axis=1, keepdims=True))
        losses[block] += np.log(total[:, 0])
        softmax = perturbed(np.divide(x, total, out=x))
        # The gradient of softmax cross entropy is softmax minus one at the target.
        softmax[at_target] -= 1
        np.divide(softmax, len(inputs) if divisor is None else divisor, out=x)
    found["token_loss"][real] = losses
    d_outputs = np.zeros_like(outputs)
    d_outputs[real] = product(logits, kernel.T)
    d_bias = summed(logits, axis=0)
    return found, (d_outputs, inputs.T @ logits, d_bias)


def reverse_rows(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Reverse the real part of every row; padding stays at the end.

    It is its own inverse, and so its own backward pass.

    Args:
      x: [batch, time, width].
      lengths: [batch].

    Source: Schuster & Paliwal 1997, section II.D: the states of the negative time direction.
    """
    t = np.arange(x.shape[1])
    ends = lengths[:, None]
    from_step = np.where(t < ends, ends - 1 - t, t)
    return np.take_along_axis(x, from_step[:, :, None], axis=1)
