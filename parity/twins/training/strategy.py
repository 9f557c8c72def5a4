"""The interface between the training loop and a framework: `Strategy`, and how one is built.

The loop depends on no framework. It builds one `Strategy`, gives it global batches (in one of
several processes, its own rows of them), and gets back losses, states and tensors of a trace.
The strategy alone decides how rows are shared among replicas, how gradients are combined, and
which devices and processes are used.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult
from parity.twins.spec.strategies import StrategyEntry, StrategySettings
from parity.twins.spec.worker_rows import WorkerRows


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
      group: the processes that share the training, of which this is one.
    """

    replicas: int = 1
    device: str = "cpu"
    threads: int = 1
    kernels: str = "fast"
    isolate: bool = False
    evaluates: bool = True
    log_device_placement: bool = False
    settings: StrategySettings = field(default_factory=StrategySettings)
    group: ProcessGroup = field(default_factory=ProcessGroup)


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


class AsynchronousStrategy(Strategy, Protocol):
    """A training in which every replica is a worker, with a copy of the weights of its own.

    A worker reads the shared weights, computes a gradient with its copy, and then updates the
    shared weights, again and again. Whoever calls `read` and `update` sees to it that one of
    them runs at a time; `compute` runs in the worker's thread, beside those of other workers.
    `step` is not there: no single call trains on a global batch.
    """

    def read(self, worker: int) -> None:
        """Copy the shared weights, all at once, to a worker's own copy."""

    def compute(
        self, part: WorkerRows, state: Mapping[str, np.ndarray], record: bool = False
    ) -> StepResult:
        """Compute the loss and the clipped gradient of a worker's rows with its own copy.

        With `record`, also return all tensors of a trace but the weights and the optimiser's
        state. The strategy keeps the gradient for the worker's `update`.
        """

    def update(self, worker: int, learning_rate: float) -> None:
        """Update the shared weights and the one optimiser state with a worker's gradient."""
