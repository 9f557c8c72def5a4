"""What all ways of training in PyTorch share; each is a module beside this one."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.twins.peers.pytorch_decode import Decoder
from parity.twins.peers.pytorch_processes import Processes
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.strategy import Build


class PytorchStrategy:
    """A training in PyTorch; a Strategy, see parity/twins/training/strategy.py.

    Attributes:
      framework: the peer's name.
      spec: the network, its text and its training.
      build: the settings that it was built with.
      entry: its entry in the registry of the peer.
      replicas: the number of replicas that share each batch.
      processes: its processes, each with a Replica.
    """

    framework = "pytorch"

    def __init__(self, spec: Spec, build: Build, entry: StrategyEntry, processes: Processes):
        self.spec, self.build, self.entry = spec, build, entry
        self.replicas, self.processes = build.replicas, processes

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        """Compute the loss of one global batch, without dropout and without an update."""
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self.processes.call_all("evaluate", [(feed,) for feed in feeds])
        losses, states = zip(*results, strict=True)
        return StepResult(np.array(losses), joined_rows(states), 0.0, {})

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return weights and optimiser state by canonical name, in canonical layout."""
        found: dict[str, np.ndarray] = self.processes.first.snapshot()
        return found

    def replica_distances(self) -> dict[str, np.ndarray]:
        """Return nothing: there is one copy of each weight."""
        return {}

    def profile(self) -> AbstractContextManager[list[Any]]:
        """Raise an error: only one strategy can be profiled, which has its own method."""
        raise UsageError(
            f"--profile is given with --strategy {self.entry.name}; allowed for pytorch: "
            f"distributed-data-parallel"
        )

    def decoder(self) -> Decoder:
        """Return a DecodingModel with the current weights."""
        return Decoder(self.processes.first.network)

    def peak_memory(self) -> list[int]:
        """Return the peak memory of each process, in bytes."""
        return self.processes.call_all("peak_memory")


def joined_rows(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the states of several replicas as one, rows first."""
    return {name: np.concatenate([each[name] for each in states]) for name in states[0]}
