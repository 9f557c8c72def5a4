"""The interface between the training loop and a framework: `Strategy`, and how one is built.

The loop depends on no framework. It builds one `Strategy`, gives it global batches (in one of
several processes, its own rows of them), and gets back losses, states and tensors of a trace.
The strategy alone decides how rows are shared among replicas, how gradients are combined, and
which devices and processes are used.
"""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.asynchronous_schedule import WorkerRows
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult
from parity.twins.spec.strategies import StrategyEntry, StrategySettings

_LOOPS = ("loop_over_time", "scan")  # functions that take one step after another


@dataclass(frozen=True)
class Build:
    """How to build a strategy, apart from the spec; nothing but `settings` changes a result.

    Attributes:
      replicas: the number of replicas that share each batch.
      device: the kind of device that replicas run on, "cpu" or "gpu".
      threads: the number of CPU threads of each replica.
      kernels: "plain" for textbook layers, "fast" to replace some of them by faster code.
      evaluates: whether to build what `evaluate` needs.
      log_device_placement: whether to print the device that each replica runs on.
      settings: the strategy's own settings.
      group: the processes that share the training, of which this is one.
    """

    replicas: int = 1
    device: str = "cpu"
    threads: int = 1
    kernels: str = "fast"
    evaluates: bool = True
    log_device_placement: bool = False
    settings: StrategySettings = field(default_factory=StrategySettings)
    group: ProcessGroup = field(default_factory=ProcessGroup)


class Strategy(Protocol):
    """A training that runs on some replicas.

    The constructor, `Class(spec, build, entry)`, builds the network and its update and loads
    the initial weights. It raises UsageError for devices, addresses or settings that cannot be
    used. The methods are described here, once for all frameworks.

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
        """Set weights and optimiser state on every replica.

        Args:
          snapshot: name -> array in canonical layout; with several processes, rank 0's counts.
        """

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
        record: bool = False,
    ) -> StepResult:
        """Train on one global batch.

        Args:
          inputs: StepInputs, in one of several processes perhaps of its own rows alone.
          state: name -> recurrent state before the batch, [batch, layers, hidden].
          learning_rate: the learning rate of this step.
          record: whether to return all tensors that a trace records.

        Returns:
          StepResult, with the losses of all replicas. In one of several processes its state has
          zeros for the rows of others; with `record`, rank 0 returns the state of all rows and
          all tensors, and the others return no tensors.
        """

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        """Compute the loss of one global batch, without dropout and without an update.

        Args:
          inputs: StepInputs without masks.
          state: name -> recurrent state before the batch, [batch, layers, hidden].

        Returns:
          StepResult with a gradient norm of 0.
        """

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return weights and optimiser state, name -> array in canonical layout."""

    def replica_distances(self) -> dict[str, np.ndarray]:
        """Return each replica's greatest absolute distance from replica 0, name -> [replicas].

        Unless every distance is exactly zero, the replicas have drifted apart. Empty if all
        replicas share one copy.
        """

    def sources(self) -> dict[str, str]:
        """Return name of a tensor, or first part of names -> the lines of code that made it.

        In one of several processes, they are those of its own replicas.
        """

    def profile(self) -> AbstractContextManager[list[Any]]:
        """Yield a list that is filled with the Events of the steps when the context is left.

        Use it only once in a process: a framework's profiler may not survive a second start.
        """

    def decoder(self) -> Any:
        """Return a DecodingModel with the current weights, if the network can decode."""


class OnlyAnswers:
    """The part of a `Strategy` that answers questions: neither network nor update is built."""

    def __init__(
        self, framework: str, entry: StrategyEntry, spec: Spec, build: Build, decoder: Any
    ):
        self.framework, self.entry, self.spec, self.build = framework, entry, spec, build
        self.replicas, self.load = build.replicas, decoder.load
        self.decoder = lambda: decoder


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

        The strategy keeps the gradient for the worker's `update`.

        Args:
          part: the worker's rows and the step that they belong to.
          state: name -> recurrent state before the batch, [batch, layers, hidden].
          record: whether to return all tensors of a trace but the weights and the optimiser's
            state.
        """

    def update(self, worker: int, learning_rate: float) -> None:
        """Update the shared weights and the one optimiser state with a worker's gradient."""


Frame = tuple[str, int, str]  # file, line, function


def calls_within(frames: Iterable[Frame], package: str) -> str:
    """Return the calls within a package that led to something, such as an operation.

    Of the calls in one file the last one stands for all: they lead from layer to network.
    Those of a folder `strategies` are left out where there are others, and a loop over time
    with all that it calls: what it repeats stands in the call before.

    Args:
      frames: a call stack, the outermost call first.
      package: the file of a module at the top of the package.

    Returns:
      Such as "tf_impl/layers.py:31 (linear), from tf_impl/networks.py:70 (seq2seq)", with
      paths relative to the folder that holds the package; empty if no call is from it.
    """
    folder = Path(package).parent
    mine = [
        (Path(file).relative_to(folder.parent), line, function)
        for file, line, function in takewhile(lambda frame: frame[2] not in _LOOPS, frames)
        # nameless: a script's own lines, and comprehensions
        if Path(file).is_relative_to(folder) and not function.startswith("<")
    ]
    calls = [each for each in mine if "strategies" not in each[0].parts] or mine[-1:]
    last = {file.as_posix(): f"{line} ({function})" for file, line, function in calls}
    texts = [f"{file}:{place}" for file, place in last.items()]
    return ", called by ".join(texts[::-1])


def definition(made: Any) -> str:
    """Return where a function or class is defined: "data/pair_batches.py:9 (PairBatches)"."""
    file = made.__module__.replace(".", "/") + ".py"
    return f"{file}:{inspect.getsourcelines(made)[1]} ({made.__qualname__})"
