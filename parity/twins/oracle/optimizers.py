"""Clipping and the update rules in plain NumPy and float64."""

from collections.abc import Mapping

import numpy as np

from parity.twins.spec.replaceable import replaceable
from parity.twins.spec.spec import Spec

Arrays = dict[str, np.ndarray]


@replaceable
def clip_by_global_norm(gradients: Arrays, clip_norm: float) -> tuple[Arrays, np.float64]:
    """Scale all gradients by clip_norm / max(clip_norm, norm), and return their norm.

    Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
    """
    norm = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients.values()))
    scale = clip_norm / np.maximum(clip_norm, norm)
    return {name: gradient * scale for name, gradient in gradients.items()}, norm


@replaceable
def update_slots(
    spec: Spec, snapshot: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]
) -> Arrays:
    """Return the optimizer's state after an update: none for SGD, for Adam

        m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2

    Args:
      snapshot: "weight/...", "optimizer/..." -> array, before the update.
      gradients: parameter name -> clipped gradient.

    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
    """
    if spec.training.optimizer == "sgd":
        return {}
    beta1, beta2 = in_precision(spec, spec.training.beta1, spec.training.beta2)
    after: Arrays = {}
    for name, gradient in gradients.items():
        m, v = snapshot[f"optimizer/{name}/m"], snapshot[f"optimizer/{name}/v"]
        after[f"optimizer/{name}/m"] = beta1 * m + (1 - beta1) * gradient
        after[f"optimizer/{name}/v"] = beta2 * v + (1 - beta2) * gradient**2
    after["optimizer/beta1_power"] = snapshot["optimizer/beta1_power"] * beta1
    after["optimizer/beta2_power"] = snapshot["optimizer/beta2_power"] * beta2
    return after


@replaceable
def update_weights(
    spec: Spec,
    snapshot: Mapping[str, np.ndarray],
    slots: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    learning_rate: float,
) -> Arrays:
    """Return the weights after an update of SGD, or of Adam, whose epsilon stands outside

    the bias correction:

        weight -= learning_rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    Args:
      snapshot: before the update; holds beta1^t and beta2^t of this one.
      slots: the optimiser's state after it.
      gradients: parameter name -> clipped gradient.

    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
    """
    learning_rate, epsilon = in_precision(spec, learning_rate, spec.training.epsilon)
    after: Arrays = {}
    for name, gradient in gradients.items():
        step = gradient
        if spec.training.optimizer == "adam":
            m_hat = slots[f"optimizer/{name}/m"] / (1 - snapshot["optimizer/beta1_power"])
            v_hat = slots[f"optimizer/{name}/v"] / (1 - snapshot["optimizer/beta2_power"])
            step = m_hat / (np.sqrt(v_hat) + epsilon)
        after[f"weight/{name}"] = snapshot[f"weight/{name}"] - learning_rate * step
    return after


def in_precision(spec: Spec, *values: float) -> list[float]:
    """Round constants to the run's precision: in float32, 1 - beta2 differs by 1e-5."""
    return [float(np.dtype(spec.training.dtype).type(value)) for value in values]
