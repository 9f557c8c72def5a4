"""The networks once more, in plain NumPy and float64: the referee of both frameworks."""

from collections.abc import Callable, Mapping

import numpy as np

from parity.base.plugins import load_object
from parity.twins.oracle.layers import look_up, look_up_backward, project
from parity.twins.oracle.recurrent import lstm_backward, lstm_forward
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.language_model import LanguageModelSpec

Arrays = dict[str, np.ndarray]


def language_model(
    model: LanguageModelSpec,
    weights: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    masks: Mapping[str, np.ndarray],
    state: Mapping[str, np.ndarray],
    divisor: int | None = None,
) -> tuple[Arrays, Arrays]:
    """Run the language model forward and backward on a global batch.

    The loss is the summed cross entropy of the real tokens over their number, or `divisor`.

    Args:
      weights: parameter name -> float64 array of canonical shape.
      batch: tokens and targets [batch, time], lengths [batch].
      masks: of dropout, [batch, time, width]: embedded, lstm_k; empty for none.
      state: h and c before the batch, each [batch, layers, hidden].
      divisor: what the summed loss is divided by; None for the number of real tokens.

    Returns:
      activations: embedded, lstm_k/hidden [batch, time, ...], h, c [batch, layers, hidden],
        logits [batch, time, vocabulary] if a trace records them, token_loss [batch, time], all
        zero on padding.
      gradients: parameter name -> array, of the loss.
    """
    layers = range(model.num_layers)
    kept = [masks.get(name, 1.0) for name in ("embedded", *(f"lstm_{k}" for k in layers))]
    real = np.arange(batch["tokens"].shape[1]) < batch["lengths"][:, None]

    activations, saved, final, outputs = {}, [], [], []
    x = look_up(weights["embed/table"], batch["tokens"], real)
    activations["embedded"] = x
    for k in layers:
        outputs.append(x * kept[k])
        w, u, b = (
            weights[f"lstm_{k}/{name}"] for name in ("input_kernel", "recurrent_kernel", "bias")
        )
        x, h, c, gates = lstm_forward(
            outputs[k], real, state["h"][:, k], state["c"][:, k], w, u, b
        )
        activations[f"lstm_{k}/hidden"] = x
        saved.append(gates)
        final.append((h, c))
    activations["h"] = np.stack([h for h, _ in final], axis=1)
    activations["c"] = np.stack([c for _, c in final], axis=1)
    projected, (d_x, *d_softmax) = project(
        x * kept[-1],
        real,
        batch["targets"],
        weights["softmax/kernel"],
        weights["softmax/bias"],
        divisor,
    )
    activations |= projected

    gradients = dict(zip(("softmax/kernel", "softmax/bias"), d_softmax, strict=True))
    d_x = d_x * kept[-1]
    for k in reversed(layers):
        d_x = _layer_backward(k, weights, d_x, outputs[k], real, saved[k], gradients) * kept[k]
    gradients["embed/table"] = np.zeros_like(weights["embed/table"])
    look_up_backward(gradients["embed/table"], batch["tokens"], d_x)
    return activations, gradients


def _layer_backward(
    k: int,
    weights: Mapping[str, np.ndarray],
    d_hidden: np.ndarray,
    inputs: np.ndarray,
    real: np.ndarray,
    saved: list,
    gradients: Arrays,
) -> np.ndarray:
    """Add the gradients of layer k, and return that of its inputs."""
    w, u = weights[f"lstm_{k}/input_kernel"], weights[f"lstm_{k}/recurrent_kernel"]
    d_inputs, d_w, d_u, d_b = lstm_backward(d_hidden, inputs, real, saved, w, u)
    gradients[f"lstm_{k}/input_kernel"] = d_w
    gradients[f"lstm_{k}/recurrent_kernel"] = d_u
    gradients[f"lstm_{k}/bias"] = d_b
    return d_inputs


def network_function(network: str) -> Callable[..., tuple[Arrays, Arrays]]:
    """Return the forward and backward pass of a network, as its entry names it."""
    found: Callable[..., tuple[Arrays, Arrays]] = load_object(NETWORKS[network].oracle)
    return found
