"""The seam between the training loop and a framework: what a way of running replicas offers.

The loop knows nothing of a framework. It builds one `Strategy`, hands it global batches, and
gets back losses, states and what a trace records. How the rows are shared out, where the
gradients meet, and on which devices and processes all of it runs is the strategy's own affair.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from parity.spec.batch_io import StepInputs, StepResult
from parity.spec.spec import Spec
from parity.spec.strategies import StrategyEntry


@dataclass(frozen=True)
class Build:
    """What a strategy is built from beside the spec; nothing in it changes a result.

    Attributes:
      replicas: how many share each batch.
      device: "cpu" or "gpu".
      threads: CPU threads of each replica.
      kernels: "plain" for the textbook layers, "fast" for what replaces some of them.
      isolate: cut the path of computation between layers; each step is then fed the oracle's
        activations and gradients.
      evaluates: build what `evaluate` needs too; a traced run never calls it.
      log_device_placement: print which device each replica's parts run on.
    """

    replicas: int = 1
    device: str = "cpu"
    threads: int = 1
    kernels: str = "fast"
    isolate: bool = False
    evaluates: bool = True
    log_device_placement: bool = False


class Strategy(Protocol):
    """One training, running on some replicas; made as `Class(spec, build, entry)`.

    Making it builds the network and its update and loads the initial weights.

    Attributes:
      framework: the framework's name.
      entry: the strategy's entry in the framework's registry, with its traits.
      spec: what is trained.
      build: how it was built.
      replicas: how many replicas share each batch.
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
        """Train on one global batch; with `record`, return all that a trace holds too."""

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        """Compute the loss of one global batch, without dropout and without training on it."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return weights and optimiser state by canonical name, in canonical layout."""

    def replica_distances(self) -> dict[str, np.ndarray]:
        """Return how far each replica's copy of a tensor is from replica 0's, name ->
        [replicas]; empty where all replicas share one copy."""

    def profile(self) -> AbstractContextManager[list[Any]]:
        """Yield a list that holds the steps' Events once the context is left."""

    def decoder(self) -> Any:
        """Return a DecodingModel with the weights as they are now; of networks that decode."""
