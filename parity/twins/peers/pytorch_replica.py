"""One replica of a PyTorch training: its copy of the network, and its optimiser.

Source: Paszke et al. 2019, arXiv:1912.01703.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from parity.twins.decoding.hypotheses import DecoderState
from parity.twins.peers.pytorch_networks import Recurrent, Seq2seq, joined
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import POWERS, SLOTS, snapshot_names
from parity.twins.spec.spec import Spec
from parity.twins.training.meter import peak_memory

Feed = Mapping[str, np.ndarray]
_STATES = {"m": "exp_avg", "v": "exp_avg_sq"}  # PyTorch's names of Adam's moments


class Replica:
    """A copy of the network, and its optimiser.

    Args:
      spec: the network, its text and its training.
      threads: the number of CPU threads.

    Attributes:
      network: the module.
      canonical: canonical name -> parameter.
      trained: the parameters, in the same order.
      optimizer: PyTorch's optimiser.
    """

    def __init__(self, spec: Spec, threads: int):
        torch.set_num_threads(threads)
        self.spec = spec
        dtype = {"float32": torch.float32, "float64": torch.float64}[spec.training.dtype]
        torch.set_default_dtype(dtype)
        self.network: Any = NETWORKS[spec.network].builder("pytorch")(spec.model)
        self.canonical: dict[str, nn.Parameter] = dict(self.network.canonical)
        for module in self.network.modules():
            if isinstance(module, Recurrent):
                self.canonical |= module.canonical
        self.trained = list(self.canonical.values())
        training = spec.training
        rate = training.learning_rate
        self.optimizer: torch.optim.Optimizer
        if training.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.trained, rate, fused=True)
        else:
            betas = training.beta1, training.beta2
            self.optimizer = torch.optim.Adam(
                self.trained, rate, betas, training.epsilon, fused=True
            )
        self.load(initial_snapshot(spec))

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set the weights and the optimiser's state, by canonical name and layout."""
        with torch.no_grad():
            for name, parameter in self.canonical.items():
                parameter.copy_(_swap_layout(name, _tensor(snapshot[f"weight/{name}"])))
                if self.spec.training.optimizer == "adam":
                    loaded = {"step": torch.tensor(float(self._updates(snapshot)))}
                    for slot, state in _STATES.items():
                        array = snapshot[f"optimizer/{name}/{slot}"]
                        loaded[state] = _swap_layout(name, _tensor(array))
                    states = self.optimizer.state.setdefault(parameter, loaded)
                    for state, tensor in loaded.items():
                        states[state].copy_(tensor)

    def _updates(self, snapshot: Mapping[str, np.ndarray]) -> int:
        """Return the number of updates after which Adam's second power has its value.

        PyTorch counts updates where a snapshot has powers. Once the power is as small as the
        smallest number of its type, the bias correction no longer depends on the count.
        """
        power = float(snapshot["optimizer/beta2_power"])
        smallest = float(np.finfo(self.spec.training.dtype).tiny)
        return round(math.log(max(power, smallest)) / math.log(self.spec.training.beta2)) - 1

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the weights and the optimiser's state by canonical name, in our layout."""
        training = self.spec.training
        found = {f"weight/{name}": array for name, array in self.arrays(lambda p: p).items()}
        for slot in SLOTS[training.optimizer]:
            for name, parameter in self.canonical.items():
                state = self.optimizer.state[parameter][_STATES[slot]]
                found[f"optimizer/{name}/{slot}"] = _array(name, state)
        for power, beta in zip(
            POWERS[training.optimizer], (training.beta1, training.beta2), strict=False
        ):
            updates = int(self.optimizer.state[self.trained[0]]["step"])
            found[f"optimizer/{power}"] = np.array(beta ** (updates + 1), training.dtype)
        return {name: found[name] for name in snapshot_names(self.spec)}

    def arrays(self, of: Callable[[Any], Any]) -> dict[str, np.ndarray]:
        """Return what `of` makes of each parameter, by canonical name, in our layout."""
        return {name: _array(name, of(each)) for name, each in self.canonical.items()}

    def clip(self) -> float:
        """Clip the gradient by its norm, and return the norm."""
        return float(nn.utils.clip_grad_norm_(self.trained, self.spec.training.clip_norm))

    def update(self, rate: float) -> None:
        """Update the weights with the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def evaluate(self, feed: Feed) -> tuple[float, dict[str, np.ndarray]]:
        """Return the loss of this replica's rows, and its state."""
        with torch.no_grad():
            loss, state = self.network(tensors(feed))
        return loss.item(), arrays(state)

    def peak_memory(self) -> int:
        """Return the peak memory of this process, in bytes."""
        return peak_memory()


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))  # a copy: a checkpoint's arrays cannot be written


def tensors(feed: Feed) -> dict[str, torch.Tensor]:
    """Return the arrays of a feed as tensors, which share their memory."""
    return {name: torch.from_numpy(array) for name, array in feed.items()}


def arrays(state: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the tensors of a state as arrays."""
    return {name: tensor.detach().numpy() for name, tensor in state.items()}


def _array(name: str, tensor: torch.Tensor) -> np.ndarray:
    return np.array(_swap_layout(name, tensor.detach()).numpy(), order="C")


def _swap_layout(name: str, tensor: Any) -> Any:
    """Convert between our layout and PyTorch's, which stores every kernel transposed."""
    is_kernel = name.endswith("kernel") and tensor.ndim == 2
    return tensor.T.contiguous() if is_kernel else tensor


class Decoder:
    """Reads questions, and computes the log probabilities of each row's next token.

    Args:
      network: the trained network, whose weights at the time of each call are used.
    """

    def __init__(self, network: Seq2seq):
        self._network = network

    @torch.no_grad()
    def start(self, source: np.ndarray, source_lengths: np.ndarray) -> DecoderState:
        """Read the sources, int64 [rows, source_time] and [rows], and return the state."""
        lengths = torch.from_numpy(source_lengths)
        memory, keys, is_padding, states = self._network.read_source(
            {"source": torch.from_numpy(source), "source_lengths": lengths}
        )
        fed = torch.zeros_like(states[-1][0])
        found = {"memory": memory, "keys": keys, "is_padding": is_padding, "fed": fed}
        return arrays(found | joined(states))

    @torch.no_grad()
    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState]:
        """Read one token per row; return log probabilities [rows, vocabulary] and the state."""
        held = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in state.items()}
        source = held["memory"], held["keys"], held["is_padding"]
        parts = [held[name].unbind(1) for name in "hc" if name in held]
        states = list(zip(*parts, strict=True))
        embedded = self._network.target(torch.from_numpy(np.asarray(tokens)).unsqueeze(0))
        output, states = self._network.decoder_step(embedded[0], states, held["fed"], source)
        log_probabilities = torch.log_softmax(self._network.softmax(output), dim=1)
        after = state | arrays({"fed": output} | joined(states))
        return log_probabilities.numpy(), after
