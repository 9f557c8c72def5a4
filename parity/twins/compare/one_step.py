"""Single steps: the oracle starts each from what the side itself recorded."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.compare.tensors import Distance, Mismatch
from parity.twins.compare.expected_by_oracle import Expected, wide
from parity.twins.compare.known_differences import KnownDifferences
from parity.twins.compare.read_weights import check_read_weights
from parity.twins.oracle.recent_rounding import RecentRounding
from parity.twins.oracle.replay import PastWeights, RecordedUpdate, weights_of
from parity.twins.oracle.rounding import Rounding
from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import snapshot_names
from parity.twins.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Start:
    """What a side's step starts from.

    Attributes:
      snapshot: weights and optimizer state before the step.
      read: the weights that its gradient is computed with, if the side is asynchronous; None
        if they are those of the snapshot.
      left: the recurrent state that the step before left, of the same worker if the side is
        asynchronous; None at the first step.
    """

    snapshot: Tensors
    read: Tensors | None
    left: Tensors | None


class OneStep:
    """Computes each rung of a step in float64 from what a side recorded on the rung below.

    Args:
      expected: computes what a trace should hold.
      known: the sides that differ from the exact training on purpose.
      workers: label -> the number of workers, for the sides that are asynchronous.
      alike: label -> label of the first side that computes the same rows with nearly the same
        weights in each step; None if all sides do.

    Attributes:
      rounding: label -> the rounding error of the step that was compared last.
    """

    def __init__(
        self,
        expected: Expected,
        known: KnownDifferences,
        workers: Mapping[str, int] | None = None,
        alike: Mapping[str, str] | None = None,
    ):
        self._expected, self._spec, self._known = expected, expected.spec, known
        self._before: dict[str, Tensors] = {}
        self._alike = alike or {}
        initial = weights_of(initial_snapshot(self._spec))
        self._past = {
            side: PastWeights(number, expected.batches_per_epoch, initial)
            for side, number in (workers or {}).items()
        }
        # side -> worker -> the recurrent state that its last update left
        self._left: dict[str, dict[int, Tensors]] = {side: {} for side in self._past}
        self.rounding: dict[str, Rounding] = {}
        # sides whose rounding errors are alike -> those of the last steps
        self._recent: dict[tuple[str | None, tuple[Any, ...]], RecentRounding] = {}

    def expected(
        self, side: str, inputs: StepInputs, step: int, recorded: Tensors
    ) -> dict[str, np.ndarray]:
        """Return what the oracle expects, given the side's weights and state before it."""
        with self.oracle_of(side):
            return self.exact(side, inputs, step, recorded)

    def oracle_of(self, side: str) -> AbstractContextManager[None]:
        """Let the oracle train as a side does on purpose, within this context."""
        return self._known.oracle_of(side)

    def exact(
        self, side: str, inputs: StepInputs, step: int, recorded: Tensors
    ) -> dict[str, np.ndarray]:
        """Return the same, but of the exact training, whatever the side does on purpose."""
        start = self.start(side, recorded)
        oracle = Oracle(self._spec, start.snapshot)
        if start.left is not None and inputs.carry:
            oracle.state = {name: wide(array) for name, array in start.left.items()}
        expected = self._expected.step(oracle, inputs, step, recorded, start.read)
        rate = self._expected.rate(step, recorded)
        expected |= self._expected_schedule(side, recorded)
        return expected | self._expected.above_gradients(start.snapshot, recorded, rate)

    def measure(
        self, side: str, inputs: StepInputs, recorded: Tensors, exact: Tensors
    ) -> Rounding:
        """Return the rounding error of a side's step; it is measured once for sides alike.

        It is only measured where those of the last steps cannot tell.

        Args:
          exact: what the oracle expects of the step.
        """
        start, group = self.start(side, recorded), self._group(side)
        each_alike = (r for label, r in self.rounding.items() if self._group(label) == group)
        alike = next(each_alike, None)
        recent = self._recent.setdefault(group, RecentRounding())
        if alike is None:
            lengths = NETWORKS[self._spec.network].lengths.values()
            recent.begin(int(inputs.batch[name].sum()) for name in lengths)
        self.rounding[side] = Rounding(
            self._spec,
            start.snapshot,
            self.state(start, inputs),
            inputs,
            recorded,
            exact,
            alike,
            start.read,
            recent,
        )
        return self.rounding[side]

    def start(self, side: str, recorded: Tensors) -> Start:
        """Return what a side's step starts from.

        Args:
          side: the side's label.
          recorded: what it recorded of the step; of an asynchronous side, that says which
            worker took the step, and which weights it had read.
        """
        before = self._before.get(side)
        snapshot: Tensors = initial_snapshot(self._spec)
        if before is not None:
            snapshot = {name: before[name] for name in snapshot_names(self._spec)}
        if side in self._past:
            worker, read = self._past[side].expected(_update(recorded))
            left = self._left[side].get(worker)
            return Start(snapshot, self._past[side].at(read), left)
        left = None if before is None else self._state_after(before)
        return Start(snapshot, None, left)

    def state(self, start: Start, inputs: StepInputs) -> Tensors:
        """Return the recurrent state that a step starts from."""
        if start.left is not None and inputs.carry:
            return start.left
        return zero_state(self._spec, inputs.rows)

    def forget_rounding(self) -> None:
        """Forget the rounding errors of the step before."""
        self.rounding = {}

    def check_read_weights(
        self, side: str, recorded: Tensors, step: int
    ) -> tuple[Distance, Mismatch | None]:
        """Check the weights that a worker read, if the side is asynchronous."""
        if side not in self._past:
            return Distance(used=0.0), None
        return check_read_weights(recorded, self._past[side], side, step)

    def remember(self, tensors: Mapping[str, Tensors]) -> None:
        """Keep what the sides recorded: the next step starts from it."""
        self._before = dict(tensors)
        for side, past in self._past.items():
            order = past.expected(_update(tensors[side]))
            past.add(order, weights_of(tensors[side]))
            self._left[side][order.worker] = self._state_after(tensors[side])

    def _group(self, side: str) -> tuple[str | None, tuple[Any, ...]]:
        """Return a value that is equal for sides whose rounding errors are alike."""
        return self._alike.get(side), self._known.kind(side)

    def _state_after(self, recorded: Tensors) -> dict[str, np.ndarray]:
        state = NETWORKS[self._spec.network].state(self._spec.model)
        return {name: recorded[f"forward/{name}"] for name in state}

    def _expected_schedule(self, side: str, recorded: Tensors) -> dict[str, np.ndarray]:
        """Return how an asynchronous side can have ordered a step: as recorded, if possible."""
        if side not in self._past:
            return {}
        past = self._past[side]
        worker, read = past.expected(_update(recorded))
        values = {"worker": worker, "batch": past.step_of(worker), "read": read}
        return {f"schedule/{name}": np.array(value) for name, value in values.items()}


def _update(recorded: Tensors) -> RecordedUpdate:
    update = RecordedUpdate.of(recorded)
    assert update is not None, "an asynchronous side records the order of its updates"
    return update
