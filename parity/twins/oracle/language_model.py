"""The networks once more, in plain NumPy and float64: the referee of both frameworks."""

from collections.abc import Callable, Mapping

import numpy as np

from parity.base.plugins import load_object
from parity.twins.oracle.layers import look_up, look_up_backward, project
from parity.twins.oracle.recurrent import layer_weights, rnn_backward, rnn_forward
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
        start = state["h"][:, k], state["c"][:, k]
        x, end, of_steps = rnn_forward(
            "lstm", outputs[k], real, start, *layer_weights(weights, f"lstm_{k}")
        )
        activations[f"lstm_{k}/hidden"] = x
        saved.append(of_steps)
        final.append(end)
    for place, name in enumerate("hc"):
        activations[name] = np.stack([end[place] for end in final], axis=1)
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
        name = f"lstm_{k}"
        w, u, _ = layer_weights(weights, name)
        # truncated at the batch (section 4.1): no gradient comes from what follows, and the
        # one of the state before goes nowhere
        zero = np.zeros((len(real), len(u)), outputs[k].dtype)
        d_x, d_w, d_u, d_b, _ = rnn_backward(
            "lstm", d_x, (zero, zero), outputs[k], real, saved[k], w, u
        )
        gradients[f"{name}/input_kernel"] = d_w
        gradients[f"{name}/recurrent_kernel"] = d_u
        gradients[f"{name}/bias"] = d_b
        d_x = d_x * kept[k]
    gradients["embed/table"] = np.zeros_like(weights["embed/table"])
    look_up_backward(gradients["embed/table"], batch["tokens"], d_x)
    return activations, gradients


def network_function(network: str) -> Callable[..., tuple[Arrays, Arrays]]:
    """Return the forward and backward pass of a network, as its entry names it."""
    found: Callable[..., tuple[Arrays, Arrays]] = load_object(NETWORKS[network].oracle)
    return found
