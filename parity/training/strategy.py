"""The interface between the training loop and a framework: `Strategy`, and how one is built.

The loop depends on no framework. It builds one `Strategy`, gives it global batches, and gets
back losses, states and the tensors of a trace. The strategy alone decides how rows are shared
among replicas, how gradients are combined, and which devices and processes are used.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from parity.spec.spec import Spec
from parity.spec.step_arrays import StepInputs, StepResult
from parity.spec.strategies import StrategyEntry, StrategySettings


@dataclass(frozen=True)
class Build:
    """How to build a strategy, apart from the spec; nothing but `settings` changes a result.

    Attributes:
      replicas: the number of replicas that share each batch.
      device: the kind of device that replicas run on, "cpu" or "gpu".
      threads: the number of CPU threads of each replica.
      kernels: "plain" for textbook layers, "fast" to replace some of them by faster code.
      isolate: whether to cut the network between its layers, so that each step can be fed the
        oracle's activations and gradients.
      evaluates: whether to build what `evaluate` needs.
      log_device_placement: whether to print the device that each replica runs on.
      settings: the strategy's own settings.
    """

    replicas: int = 1
    device: str = "cpu"
    threads: int = 1
    kernels: str = "fast"
    isolate: bool = False
    evaluates: bool = True
    log_device_placement: bool = False
    settings: StrategySettings = field(default_factory=StrategySettings)


class Strategy(Protocol):
    """A training that runs on some replicas.

    The constructor, `Class(spec, build, entry)`, builds the network and its update and loads
    the initial weights.

    Attributes:
      framework: the framework's name.
      entry: the strategy's entry in the framework's registry, with its traits.
      spec: the network, its text and its training.
      build: the settings that the strategy was built with.
      replicas: the number of replicas that share each batch.
    """

    framework: str
    entry: StrategyEntry
    spec: Spec
    build: Build
    replicas: int

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set weights and optimiser state on every replica, by canonical name and layout."""

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
        record: bool = False,
    ) -> StepResult:
        """Train on one global batch; with `record`, also return all tensors of a trace."""

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        """Compute the loss of one global batch, without dropout and without an update."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return weights and optimiser state by canonical name, in canonical layout."""

    def replica_distances(self) -> dict[str, np.ndarray]:
        """Return the greatest absolute difference between each replica's copy of a tensor and
        replica 0's, name -> [replicas]; empty if all replicas share one copy."""

    def profile(self) -> AbstractContextManager[list[Any]]:
        """Yield a list that is filled with the Events of the steps when the context is left."""

    def decoder(self) -> Any:
        """Return a DecodingModel with the current weights, if the network can decode."""
