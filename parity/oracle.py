"""The networks once more, in plain NumPy and float64: the referee of both frameworks.

It is written to be read beside the papers, not to be fast. Products over all time steps are
taken at once where that costs no clarity. Everything is batch-major, [batch, time, ...].
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from parity.spec import Spec
from parity.steps import StepInputs

Arrays = dict[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), by way of tanh, which never overflows."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def _rows(x: np.ndarray) -> np.ndarray:
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
    from_inputs = (_rows(inputs) @ w + b).reshape(*inputs.shape[:2], -1)
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
    d_inputs = (_rows(d_gates) @ w.T).reshape(inputs.shape)
    return d_inputs, _rows(inputs).T @ _rows(d_gates), d_u, d_gates.sum(axis=(0, 1))


def language_model(
    spec: Spec,
    weights: Mapping[str, np.ndarray],
    inputs: StepInputs,
    state: tuple[np.ndarray, np.ndarray],
) -> tuple[Arrays, Arrays]:
    """Run the language model forward and backward on a global batch.

    The loss is the summed cross entropy of the real tokens over their number.

    Args:
      weights: parameter name -> float64 array of canonical shape.
      inputs: the batch and its dropout masks.
      state: (h, c) before the batch, each [batch, layers, hidden].

    Returns:
      activations: embedded, lstm_k/hidden [batch, time, ...], h, c [batch, layers, hidden],
        logits [batch, time, vocabulary], token_loss [batch, time], zero on padding.
      gradients: parameter name -> array, of the loss.
    """
    layers = range(spec.model.num_layers)
    masks = inputs.masks or (1.0,) * (spec.model.num_layers + 1)
    rows, time = inputs.tokens.shape
    real = np.arange(time) < inputs.lengths[:, None]

    # Forward: embedding, LSTM layers, projection, softmax.
    activations, saved, final, outputs = {}, [], [], []
    x = weights["embed/table"][inputs.tokens]
    activations["embedded"] = x
    for k in layers:
        outputs.append(x * masks[k])
        w, u, b = (
            weights[f"lstm_{k}/{name}"] for name in ("input_kernel", "recurrent_kernel", "bias")
        )
        x, h, c, gates = lstm_forward(outputs[k], real, state[0][:, k], state[1][:, k], w, u, b)
        activations[f"lstm_{k}/hidden"] = x
        saved.append(gates)
        final.append((h, c))
    activations["h"] = np.stack([h for h, _ in final], axis=1)
    activations["c"] = np.stack([c for _, c in final], axis=1)
    top = _rows(x * masks[spec.model.num_layers])
    logits = top @ weights["softmax/kernel"] + weights["softmax/bias"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    softmax = np.exp(shifted)
    total = softmax.sum(axis=1, keepdims=True)
    softmax /= total
    at_target = (np.arange(rows * time), inputs.targets.reshape(-1))
    losses = np.log(total[:, 0]) - shifted[at_target]
    activations["logits"] = logits.reshape(rows, time, -1)
    activations["token_loss"] = np.where(real, losses.reshape(rows, time), 0)

    # Backward: the gradient of softmax cross entropy is softmax minus one at the target.
    gradients: Arrays = {}
    d_logits = softmax
    d_logits[at_target] -= 1
    d_logits *= real.reshape(-1, 1) / inputs.num_tokens
    gradients["softmax/bias"] = d_logits.sum(axis=0)
    gradients["softmax/kernel"] = top.T @ d_logits
    d_x = (d_logits @ weights["softmax/kernel"].T).reshape(rows, time, -1)
    d_x = d_x * masks[spec.model.num_layers]
    for k in reversed(layers):
        w, u = weights[f"lstm_{k}/input_kernel"], weights[f"lstm_{k}/recurrent_kernel"]
        d_x, d_w, d_u, d_b = lstm_backward(d_x, outputs[k], real, saved[k], w, u)
        gradients[f"lstm_{k}/input_kernel"] = d_w
        gradients[f"lstm_{k}/recurrent_kernel"] = d_u
        gradients[f"lstm_{k}/bias"] = d_b
        d_x = d_x * masks[k]
    gradients["embed/table"] = np.zeros_like(weights["embed/table"])
    np.add.at(gradients["embed/table"], inputs.tokens, d_x)
    return activations, gradients


NETWORKS = {"language-model": language_model}


def clip_by_global_norm(gradients: Arrays, clip_norm: float) -> tuple[Arrays, np.float64]:
    """Scale all gradients by clip_norm / max(clip_norm, norm), and return their norm.

    Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
    """
    norm = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients.values()))
    scale = clip_norm / np.maximum(clip_norm, norm)
    return {name: gradient * scale for name, gradient in gradients.items()}, norm


def update_slots(
    spec: Spec, snapshot: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]
) -> Arrays:
    """Return the optimiser's state after an update: none for SGD, for Adam

        m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2

    Args:
      snapshot: "weight/...", "optimizer/..." -> array, before the update.
      gradients: parameter name -> clipped gradient.

    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
    """
    if spec.training.optimizer == "sgd":
        return {}
    beta1, beta2 = _held(spec, spec.training.beta1, spec.training.beta2)
    after: Arrays = {}
    for name, gradient in gradients.items():
        m, v = snapshot[f"optimizer/{name}/m"], snapshot[f"optimizer/{name}/v"]
        after[f"optimizer/{name}/m"] = beta1 * m + (1 - beta1) * gradient
        after[f"optimizer/{name}/v"] = beta2 * v + (1 - beta2) * gradient**2
    after["optimizer/beta1_power"] = snapshot["optimizer/beta1_power"] * beta1
    after["optimizer/beta2_power"] = snapshot["optimizer/beta2_power"] * beta2
    return after


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
    learning_rate, epsilon = _held(spec, learning_rate, spec.training.epsilon)
    after: Arrays = {}
    for name, gradient in gradients.items():
        step = gradient
        if spec.training.optimizer == "adam":
            m_hat = slots[f"optimizer/{name}/m"] / (1 - snapshot["optimizer/beta1_power"])
            v_hat = slots[f"optimizer/{name}/v"] / (1 - snapshot["optimizer/beta2_power"])
            step = m_hat / (np.sqrt(v_hat) + epsilon)
        after[f"weight/{name}"] = snapshot[f"weight/{name}"] - learning_rate * step
    return after


def _held(spec: Spec, *values: float) -> list[float]:
    """Round constants to the run's precision: in float32, 1 - beta2 differs by 1e-5."""
    return [float(np.dtype(spec.training.dtype).type(value)) for value in values]


class Oracle:
    """The training of a network, step by step, as the frameworks' trainers do it.

    Attributes:
      snapshot: weights and optimiser state before the next step, float64.
      state: (h, c) before the next step, or None at the start of a text.
    """

    def __init__(self, spec: Spec, snapshot: Mapping[str, np.ndarray]):
        """Start from a snapshot (in any precision) and from the start of the text."""
        self.spec = spec
        self.snapshot = {name: np.asarray(a, np.float64) for name, a in snapshot.items()}
        self.state: tuple[np.ndarray, np.ndarray] | None = None

    def step(self, inputs: StepInputs, learning_rate: float, sizes: Sequence[int]) -> Arrays:
        """Do one step and return all that a trace records of it, under the trace's names.

        Args:
          sizes: rows per replica; the oracle has no replicas and only sums its loss by them.
        """
        spec, rows = self.spec, len(inputs.tokens)
        if self.state is None or not inputs.carry:
            shape = (rows, spec.model.num_layers, spec.model.hidden_size)
            self.state = np.zeros(shape), np.zeros(shape)
        inputs = StepInputs(
            inputs.tokens,
            inputs.targets,
            inputs.lengths,
            inputs.carry,
            tuple(np.asarray(mask, np.float64) for mask in inputs.masks),
        )
        weights = {
            name.split("/", 1)[1]: array
            for name, array in self.snapshot.items()
            if name.startswith("weight/")
        }
        activations, gradients = NETWORKS[spec.network](spec, weights, inputs, self.state)
        clipped, norm = clip_by_global_norm(gradients, spec.training.clip_norm)
        slots = update_slots(spec, self.snapshot, clipped)
        moved = update_weights(spec, self.snapshot, slots, clipped, learning_rate)
        self.snapshot = {name: (moved | slots)[name] for name in self.snapshot}
        self.state = activations["h"], activations["c"]

        row_loss = activations["token_loss"].sum(axis=1) / inputs.num_tokens
        bounds = np.cumsum([0, *sizes])
        losses = np.array([row_loss[a:b].sum() for a, b in pairwise(bounds)])
        return (
            {f"forward/{name}": array for name, array in activations.items()}
            | {"loss/replicas": losses, "loss/global": losses.sum()}
            | {f"gradient/{name}": array for name, array in gradients.items()}
            | {"gradient_norm": norm}
            | {f"clipped_gradient/{name}": array for name, array in clipped.items()}
            | self.snapshot
        )
