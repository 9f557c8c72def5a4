"""Data parallelism in PyTorch: one process per replica, and DistributedDataParallel.

Source: Li et al. 2020, arXiv:2006.15704 (DDP).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parity.twins.peers.pytorch_decode import Decoder
from parity.twins.peers.pytorch_processes import Processes
from parity.twins.peers.pytorch_replica import Feed, Replica, arrays, tensors
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.strategy import Build


class DataParallel:
    """A training in PyTorch; a Strategy, see parity/twins/training/strategy.py.

    Attributes:
      framework: the peer's name.
      spec: the network, its text and its training.
      build: the settings that it was built with.
      entry: its entry in the registry of the peer.
      replicas: the number of replicas that share each batch, each in a process of its own.
    """

    framework = "pytorch"

    def __init__(self, spec: Spec, build: Build, entry: StrategyEntry):
        """Build the network on every replica."""
        self.spec, self.build, self.entry = spec, build, entry
        self.replicas = build.replicas
        arguments = [(spec, build.threads, build.replicas)] * build.replicas
        self._processes = Processes(_DataParallelReplica, arguments)

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        self._processes.call_all("load", [(snapshot,)] * self.replicas)

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
        record: bool = False,
    ) -> StepResult:
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self._processes.call_all("step", [(feed, learning_rate) for feed in feeds])
        losses, states, norms = zip(*results, strict=True)
        return StepResult(np.array(losses), _joined_rows(states), norms[0], {})

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self._processes.call_all("evaluate", [(feed,) for feed in feeds])
        losses, states = zip(*results, strict=True)
        return StepResult(np.array(losses), _joined_rows(states), 0.0, {})

    def snapshot(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = self._processes.first.snapshot()
        return found

    def replica_distances(self) -> dict[str, np.ndarray]:
        first, *others = self._processes.call_all("snapshot")
        return {
            name: np.array([0.0, *(np.abs(each[name] - array).max() for each in others)])
            for name, array in first.items()
        }

    def decoder(self) -> Decoder:
        return Decoder(self._processes.first.network)

    def peak_memory(self) -> list[int]:
        """Return the peak memory of each process, in bytes."""
        found: list[Any] = self._processes.call_all("peak_memory")
        return found


class _DataParallelReplica(Replica):
    """A replica whose gradients are summed over all replicas."""

    def __init__(self, spec: Spec, threads: int, replicas: int):
        super().__init__(spec, threads)
        self._replicas = replicas
        self._parallel: nn.Module = self.network
        if replicas > 1:
            self._parallel = DistributedDataParallel(self.network, gradient_as_bucket_view=True)

    def step(self, feed: Feed, rate: float) -> tuple[float, dict[str, np.ndarray], float]:
        """Train on this replica's rows; return its loss, its state and the gradient norm."""
        loss, state = self._parallel(tensors(feed))
        self.optimizer.zero_grad(set_to_none=True)
        # DDP averages the replicas' gradients, but these must be summed: the losses are shares
        (loss * self._replicas).sum().backward()
        norm = self.clip()
        self.update(rate)
        return loss.item(), arrays(state), norm


def _joined_rows(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the states of several replicas as one, rows first."""
    return {name: np.concatenate([each[name] for each in states]) for name in states[0]}
