"""The oracle repeats an asynchronous training: its gradients at stale weights, its updates."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parity.twins.oracle.training import Arrays, Oracle
from parity.twins.spec.asynchronous_schedule import Update
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RecordedUpdate:
    """What a trace says of the order of an update.

    Attributes:
      worker: the worker that applied it.
      step: the step that its rows belong to.
      read: the version of the weights that its gradient was computed with.
      first_row: the place of its first row in the global batch.
      of_rows: the number of rows in the global batch.
    """

    worker: int
    step: int
    read: int
    first_row: int
    of_rows: int

    @classmethod
    def of(cls, recorded: Tensors) -> "RecordedUpdate | None":
        """Return what a recorded step says; None if its training is synchronous."""
        if "schedule/worker" not in recorded:
            return None
        names = ("worker", "batch", "read", "first_row", "of_rows")
        return cls(*(int(recorded[f"schedule/{name}"]) for name in names))


class PastWeights:
    """The versions of the weights that a worker may have read, and the workers' progress.

    A worker reads only after its own last update; once it has taken all steps of an epoch, only
    after all workers have. Older versions are dropped, except the one that each worker read
    last, which a worker most often uses by mistake.

    Args:
      workers: the number of workers.
      per_epoch: the number of steps of an epoch.
      initial: the initial weights.
      staleness: the greatest staleness of an update; None for no limit.
    """

    def __init__(
        self, workers: int, per_epoch: int, initial: Tensors, staleness: int | None = None
    ):
        self._per_epoch, self._staleness = per_epoch, staleness
        self._kept: dict[int, Tensors] = {0: initial}
        self._taken = [0] * workers  # the number of updates of each worker
        self._oldest = [0] * workers  # the oldest version that each worker may read next
        self._last_read = [0] * workers

    @property
    def newest(self) -> int:
        """Return the newest version, which is the number of the next update as well."""
        return max(self._kept)

    def expected(self, update: RecordedUpdate) -> Update:
        """Return the worker and the version of an update: as recorded, where they can be so.

        Rows belong to one worker, whoever says to have taken them.
        """
        worker = min(max(update.worker, 0), len(self._taken) - 1)
        starts = self.first_rows(update.of_rows)
        if update.first_row in starts:
            worker = starts.index(update.first_row)
        oldest = self._oldest[worker]
        if self._staleness is not None:
            oldest = max(oldest, self.newest - self._staleness)
        read = min(max(update.read, oldest), self.newest)
        return Update(worker, read)

    def first_rows(self, of_rows: int) -> list[int]:
        """Return the place of each worker's first row in a global batch of so many rows."""
        workers = len(self._taken)
        return [sum(split_rows(of_rows, workers)[:worker]) for worker in range(workers)]

    @property
    def versions(self) -> Mapping[int, Tensors]:
        """Return the weights of every version that is still known, by its number."""
        return self._kept

    def step_of(self, worker: int) -> int:
        """Return the step that a worker takes next."""
        return self._taken[worker]

    def at(self, version: int) -> Tensors:
        """Return the weights of a version."""
        return self._kept[version]

    def add(self, update: Update, weights: Tensors) -> None:
        """Add the weights after the next update."""
        worker = update.worker
        self._kept[self.newest + 1] = weights
        self._taken[worker] += 1
        self._oldest[worker] = self.newest
        if self._taken[worker] % self._per_epoch == 0:
            self._oldest[worker] = self._taken[worker] * len(self._taken)
        self._last_read[worker] = update.read
        oldest = min(*self._oldest, *self._last_read, self.newest)
        self._kept = {v: kept for v, kept in self._kept.items() if v >= oldest}


class Replay:
    """The oracle's training, update by update, in the order in which a side applied them.

    Args:
      spec: what is trained.
      snapshot: the weights and the optimiser's state that the training starts from.
      workers: the number of workers.
      per_epoch: the number of steps of an epoch.
    """

    def __init__(self, spec: Spec, snapshot: Tensors, workers: int, per_epoch: int):
        self._oracle = Oracle(spec, snapshot)
        self._past = PastWeights(workers, per_epoch, weights_of(self._oracle.snapshot))
        self._states: dict[int, Arrays | None] = {}

    def step(self, inputs: StepInputs, rate: float, recorded: Tensors) -> Arrays:
        """Apply one update and return all that a trace records of it.

        Args:
          inputs: the worker's rows.
          rate: the learning rate of their step.
          recorded: what the side recorded, for the order of the updates.
        """
        update = RecordedUpdate.of(recorded)
        assert update is not None
        order = self._past.expected(update)
        self._oracle.state = state_of_rows(self._states.get(order.worker), inputs.rows)
        found = self._oracle.step(inputs, rate, [inputs.rows], self._past.at(order.read))
        self._states[order.worker] = self._oracle.state
        self._past.add(order, weights_of(self._oracle.snapshot))
        return found


def state_of_rows(state: Arrays | None, rows: int) -> Arrays | None:
    """Return a recurrent state; None if it is of another number of rows.

    A worker's state never is, unless the order of the updates was recorded wrongly.
    """
    if state is None or any(len(array) != rows for array in state.values()):
        return None
    return state


def weights_of(snapshot: Tensors) -> dict[str, np.ndarray]:
    """Return the weights among the arrays of a snapshot, or of a recorded step."""
    return {name: array for name, array in snapshot.items() if name.startswith("weight/")}
