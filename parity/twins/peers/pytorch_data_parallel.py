"""Data parallelism in PyTorch: one process per replica, and DistributedDataParallel.

Source: Li et al. 2020, arXiv:2006.15704 (DDP).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parity.twins.peers.pytorch_processes import Processes
from parity.twins.peers.pytorch_profiler import Profiler, phase
from parity.twins.peers.pytorch_replica import Feed, Replica, arrays, tensors
from parity.twins.peers.pytorch_strategy import PytorchStrategy, joined_rows
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.strategy import Build
from parity.twins.training.timeline import Event


class DataParallel(PytorchStrategy):
    """Trains a network on some replicas, each in a process of its own."""

    def __init__(self, spec: Spec, build: Build, entry: StrategyEntry):
        """Build the network on every replica."""
        arguments = [(spec, build.threads, build.replicas)] * build.replicas
        super().__init__(spec, build, entry, Processes(_DataParallelReplica, arguments))

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set weights and optimiser state on every replica, by canonical name and layout."""
        self.processes.call_all("load", [(snapshot,)] * self.replicas)

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
        record: bool = False,
    ) -> StepResult:
        """Train on one global batch."""
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self.processes.call_all("step", [(feed, learning_rate) for feed in feeds])
        losses, states, norms = zip(*results, strict=True)
        return StepResult(np.array(losses), joined_rows(states), norms[0], {})

    @contextmanager
    def profile(self) -> Iterator[list[Event]]:
        """Yield a list that has the Events of all replicas once the context is left."""
        names = [(f"replica {number}",) for number in range(self.replicas)]
        self.processes.call_all("start_profile", names)
        events: list[Event] = []
        try:
            yield events
        finally:
            for each in self.processes.call_all("stop_profile"):
                events += each

    def replica_distances(self) -> dict[str, np.ndarray]:
        """Return how far each replica is from replica 0, tensor name -> [replicas]."""
        first, *others = self.processes.call_all("snapshot")
        return {
            name: np.array([0.0, *(np.abs(each[name] - array).max() for each in others)])
            for name, array in first.items()
        }


class _DataParallelReplica(Replica):
    """A replica whose gradients are summed over all replicas."""

    def __init__(self, spec: Spec, threads: int, replicas: int):
        super().__init__(spec, threads)
        self._replicas = replicas
        self._parallel: nn.Module = self.network
        if replicas > 1:
            self._parallel = DistributedDataParallel(self.network, gradient_as_bucket_view=True)

    def start_profile(self, name: str) -> None:
        """Start PyTorch's profiler in this process, under a name."""
        self._profiler = Profiler(name)

    def stop_profile(self) -> list[Event]:
        """Stop the profiler, and return the Events of this process."""
        return self._profiler.stop()

    def step(self, feed: Feed, rate: float) -> tuple[float, dict[str, np.ndarray], float]:
        """Train on this replica's rows; return its loss, its state and the gradient norm."""
        with phase("forward"):
            loss, state = self._parallel(tensors(feed))
        with phase("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            # DDP averages the replicas' gradients, but these must be summed: the losses are
            # shares
            (loss * self._replicas).sum().backward()
        with phase("update"):
            norm = self.clip()
            self.update(rate)
        return loss.item(), arrays(state), norm
