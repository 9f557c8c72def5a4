"""Asynchronous training in PyTorch: Hogwild, with the weights in memory that processes share.

Each worker trains on its own rows without waiting for the others, as the workers of the
strategy `asynchronous` do; but it computes with the shared weights themselves, not with a copy
of them, and nothing is locked: a worker may read weights that another one is just writing.

Source: Recht et al. 2011, "Hogwild!"; docs.pytorch.org/docs/stable/notes/multiprocessing.html,
"Hogwild".
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from parity.twins.peers.pytorch_processes import Processes
from parity.twins.peers.pytorch_replica import Feed, Replica
from parity.twins.peers.pytorch_strategy import PytorchStrategy
from parity.twins.spec.schedule import FREE
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.spec.worker_rows import WorkerRows
from parity.twins.training.strategy import Build


class Hogwild(PytorchStrategy):
    """Runs each replica as a worker; an AsynchronousStrategy, see training/strategy.py.

    In a free schedule a worker is told to apply its update together with its next rows, so that
    no other worker waits for it. The order that the run records is then that in which the
    updates were due. In a given schedule an update is applied when it is due; that order is
    kept to exactly only where no worker reads while another one updates: with a staleness of 0.
    """

    def __init__(self, spec: Spec, build: Build, entry: StrategyEntry):
        """Build the network, and the workers that share it."""
        shared = Replica(spec, build.threads)
        shared.network.share_memory()
        states = [shared.optimizer.state.get(each, {}) for each in shared.trained]
        for state in states:
            for tensor in state.values():
                tensor.share_memory_()
        arguments = [(spec, build.threads, shared.network, states)] * build.replicas
        processes = Processes(_Worker, arguments, group=False)
        super().__init__(spec, build, entry, processes)
        self._is_free = (build.settings.schedule or FREE) == FREE
        self._due: dict[int, float] = {}  # worker -> the learning rate of an update that is due

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set the shared weights and the optimiser state, by canonical name and layout."""
        self._due.clear()
        self.processes.first.load(snapshot)

    def read(self, worker: int) -> None:
        """Do nothing: the workers compute with the shared weights."""

    def compute(
        self, part: WorkerRows, state: Mapping[str, np.ndarray], record: bool = False
    ) -> StepResult:
        """Compute the loss and the clipped gradient of a worker's rows."""
        (feed,) = split_feeds(self.spec, part.inputs, state, 1)
        due = self._due.pop(part.worker, None)
        loss, after, norm = self.processes.call(part.worker, "update_and_gradient", due, feed)
        return StepResult(np.array([loss]), after, norm, {})

    def update(self, worker: int, learning_rate: float) -> None:
        """Update the shared weights and the one optimiser state with a worker's gradient."""
        if self._is_free:
            self._due[worker] = learning_rate
        else:
            self.processes.call(worker, "update", learning_rate)

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        """Compute the loss of one global batch, without dropout and without an update."""
        self._settle()
        return super().evaluate(inputs, state)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return weights and optimiser state by canonical name, in canonical layout."""
        self._settle()
        return super().snapshot()

    def _settle(self) -> None:
        """Apply all updates that are due."""
        for worker, rate in self._due.items():
            self.processes.call(worker, "update", rate)
        self._due.clear()


class _Worker(Replica):
    """A worker, whose network and optimiser state lie in shared memory.

    Args:
      spec: the network, its text and its training.
      threads: the number of CPU threads.
      network: the shared network.
      states: the shared state of the optimiser, for each parameter.
    """

    def __init__(
        self,
        spec: Spec,
        threads: int,
        network: nn.Module,
        states: list[dict[str, torch.Tensor]],
    ):
        super().__init__(spec, threads, lambda: network)
        for parameter, state in zip(self.trained, states, strict=True):
            if state:
                self.optimizer.state[parameter] = state

    def update_and_gradient(self, rate: float | None, feed: Feed) -> tuple[Any, ...]:
        """Apply the update of the previous rows if it is due, and compute the next gradient."""
        if rate is not None:
            self.update(rate)
        return self.gradient(feed)
