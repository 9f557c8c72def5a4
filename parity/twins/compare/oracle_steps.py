"""What the oracle expects each side to record: in single steps, and training by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parity.compare.findings import Finding
from parity.compare.tensors import ONE_STEP, ORACLE
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.compare.read_weights import check_read_weights
from parity.twins.oracle.recent_rounding import RecentRounding
from parity.twins.oracle.replay import (
    PastWeights,
    RecordedUpdate,
    Replay,
    state_of_rows,
    weights_of,
)
from parity.twins.oracle.rounding import Rounding
from parity.twins.oracle.run_parallel import run_parallel
from parity.twins.oracle.training import Arrays, Oracle, as_float64
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import snapshot_names
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.side import TrainedSide

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
      asynchronous: label -> side, of those that are asynchronous.
      alike: label -> label of the first side that computes the same rows with nearly the same
        weights in each step; None if all sides do.

    Attributes:
      known: the sides that differ from the exact training on purpose.
      rounding: label -> the rounding error of the step that was compared last.
    """

    def __init__(
        self,
        expected: OracleTensors,
        known: IntendedDifferences,
        asynchronous: Mapping[str, TrainedSide] | None = None,
        alike: Mapping[str, str] | None = None,
    ):
        self._expected, self._spec, self.known = expected, expected.spec, known
        self._before: dict[str, Tensors] = {}
        self._alike = alike or {}
        initial = weights_of(initial_snapshot(self._spec))
        self._past = {
            label: PastWeights(
                side.replicas, expected.batches_per_epoch, initial, side.greatest_staleness
            )
            for label, side in (asynchronous or {}).items()
        }
        # side -> worker -> the recurrent state that its last update left
        self._left: dict[str, dict[int, Arrays]] = {side: {} for side in self._past}
        self.rounding: dict[str, Rounding] = {}
        # sides whose rounding errors are alike -> those of the last steps
        self._recent: dict[tuple[str | None, tuple[Any, ...]], RecentRounding] = {}

    def expected(
        self, side: str, inputs: StepInputs, step: int, recorded: Tensors
    ) -> dict[str, np.ndarray]:
        """Return what the oracle expects, given the side's weights and state before it."""
        with self.known.oracle_of(side):
            return self.exact(side, inputs, step, recorded)

    def exact(
        self, side: str, inputs: StepInputs, step: int, recorded: Tensors
    ) -> dict[str, np.ndarray]:
        """Return the same, but of the exact training, whatever the side does on purpose."""
        start = self.start(side, recorded)
        oracle = Oracle(self._spec, start.snapshot)
        if start.left is not None and inputs.carry:
            oracle.state = {name: as_float64(array) for name, array in start.left.items()}
        sizes = [int(size) for size in recorded["batch/sizes"]]
        gradients = oracle.differentiate(inputs, sizes, start.read)
        expected = self._expected.with_batch(gradients, step, recorded)
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
        if before is None:
            snapshot: Tensors = initial_snapshot(self._spec)
        else:
            snapshot = {name: before[name] for name in snapshot_names(self._spec)}
        if side in self._past:
            worker, read = self._past[side].expected(_update(recorded))
            rows = recorded["batch/lengths"].size
            left = state_of_rows(self._left[side].get(worker), rows)
            return Start(snapshot, self._past[side].at(read), left)
        left = None if before is None else self._state_after(before)
        return Start(snapshot, None, left)

    def state(self, start: Start, inputs: StepInputs) -> Tensors:
        """Return the recurrent state that a step starts from."""
        if start.left is not None and inputs.carry:
            return start.left
        return zero_state(self._spec, inputs.rows)

    def check_read_weights(self, side: str, recorded: Tensors, step: int) -> Finding:
        """Check the weights that a worker read, if the side is asynchronous."""
        sides = side, ONE_STEP
        if side not in self._past:
            return Finding(sides, {})
        read, mismatch = check_read_weights(recorded, self._past[side], side, step)
        return Finding(sides, {"replicas": read}, (mismatch,) if mismatch else ())

    def remember(self, tensors: Mapping[str, Tensors]) -> None:
        """Keep what the sides recorded: the next step starts from it."""
        self._before = dict(tensors)
        for side, past in self._past.items():
            order = past.expected(_update(tensors[side]))
            past.add(order, weights_of(tensors[side]))
            self._left[side][order.worker] = self._state_after(tensors[side])

    def _group(self, side: str) -> tuple[str | None, tuple[Any, ...]]:
        """Return a value that is equal for sides whose rounding errors are alike."""
        return self._alike.get(side), self.known.kind(side)

    def _state_after(self, recorded: Tensors) -> dict[str, np.ndarray]:
        state = NETWORKS[self._spec.network].state(self._spec.model)
        return {name: recorded[f"forward/{name}"] for name in state}

    def _expected_schedule(self, side: str, recorded: Tensors) -> dict[str, np.ndarray]:
        """Return how an asynchronous side can have ordered a step: as recorded, if possible."""
        if side not in self._past:
            return {}
        past = self._past[side]
        update = _update(recorded)
        worker, read = past.expected(update)
        values = {
            "worker": worker,
            "batch": past.step_of(worker),
            "read": read,
            "first_row": past.first_rows(update.of_rows)[worker],
        }
        return {f"schedule/{name}": np.array(value) for name, value in values.items()}


def _update(recorded: Tensors) -> RecordedUpdate:
    update = RecordedUpdate.of(recorded)
    assert update is not None, "an asynchronous side records the order of its updates"
    return update


class OracleSteps:
    """Lets the oracle take the steps of all sides.

    Sides that compute the same rows with the same weights share one oracle: all synchronous
    sides do, and the asynchronous ones that keep to one schedule. Another asynchronous side has
    an oracle of its own, which replays what the side did. A side with a known difference has
    one that trains as it does, and the difference is measured.

    Args:
      expected: computes what a trace should hold.
      sides: label -> side.
      known: the sides that differ from the exact training on purpose.
      free_runs: whether the oracle also trains by itself.

    Attributes:
      one_step: computes what the oracle expects of single steps.
    """

    def __init__(
        self,
        expected: OracleTensors,
        sides: Mapping[str, TrainedSide],
        known: IntendedDifferences,
        *,
        free_runs: bool,
    ):
        self._expected = expected
        self._leader: dict[str, str] = {}  # label -> label of the first side with its oracle
        for label, side in sides.items():
            leaders = (each for each in self._leader if _share(sides[each], side))
            self._leader[label] = self._leader.get(next(leaders, label), label)
        free = {label: side for label, side in sides.items() if not side.synchronous}
        self.one_step = OneStep(expected, known, free, self._leader)
        initial, per_epoch = initial_snapshot(expected.spec), expected.batches_per_epoch
        self._leaders = list(dict.fromkeys(self._leader.values()))
        self._oracles: dict[str, Oracle | Replay] = {
            leader: Replay(expected.spec, initial, sides[leader].replicas, per_epoch)
            if leader in free
            else Oracle(expected.spec, initial)
            for leader in (self._leaders if free_runs else ())
        }
        self._known = known
        self._deviating = {side: Oracle(expected.spec, initial) for side in known.found}

    def groups(self, tensors: Mapping[str, Tensors]) -> list[dict[str, Tensors]]:
        """Return what was recorded, label -> tensors, apart for each oracle."""
        return [
            {side: tensors[side] for side, leader in self._leader.items() if leader == each}
            for each in self._leaders
        ]

    def inputs(self, step: int, tensors: Mapping[str, Tensors]) -> dict[str, StepInputs]:
        """Return label -> the inputs of that side's step, by the batch that was recorded."""
        found = {each: self._expected.inputs(step, tensors[each]) for each in self._leaders}
        return {side: found[leader] for side, leader in self._leader.items()}

    def take(
        self, step: int, tensors: Mapping[str, Tensors], inputs: Mapping[str, StepInputs]
    ) -> dict[str, dict[str, Tensors]]:
        """Take one step.

        Args:
          step: the step's number.
          tensors: label -> what that side recorded.
          inputs: what `inputs` returned for the step.

        Returns:
          `ONE_STEP`, and with free runs `ORACLE` -> label -> what the oracle expects of that
          side.
        """
        found = run_parallel(
            [
                *(
                    partial(self._expected.step, oracle, inputs[side], step, tensors[side])
                    for side, oracle in self._oracles.items()
                ),
                *(
                    partial(self.one_step.expected, side, inputs[side], step, recorded)
                    for side, recorded in tensors.items()
                ),
            ]
        )
        exact = dict(zip(self._oracles, found, strict=False))
        one_steps = dict(zip(tensors, found[len(exact) :], strict=True))
        expected: dict[str, Mapping[str, Tensors]] = {ONE_STEP: one_steps}
        if exact:
            shared = {side: exact[self._leader[side]] for side in tensors}
            deviating = self._deviating_runs(step, tensors, inputs, shared, one_steps)
            expected[ORACLE] = shared | deviating
        # the oracle sums its losses over the rows that each of the side's replicas had
        return {
            kind: {
                side: with_replica_losses(each[side], tensors[side], inputs[side])
                for side in tensors
            }
            for kind, each in expected.items()
        }

    def _deviating_runs(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: Mapping[str, StepInputs],
        exact: Mapping[str, Tensors],
        one_steps: Mapping[str, Tensors],
    ) -> dict[str, Tensors]:
        """Take a step as each side with a known difference does, and measure the difference.

        Args:
          tensors, inputs: as for `take`.
          exact: label -> what the free run of the exact oracle holds.
          one_steps: label -> what is expected of one step of that side.
        """
        found: dict[str, Tensors] = {}
        for side, oracle in self._deviating.items():
            recorded = tensors[side]
            with self._known.oracle_of(side):
                found[side] = self._expected.step(oracle, inputs[side], step, recorded)
            self._known.add_losses(side, step, recorded, exact[side])
            if self._known.has_effect(side, recorded):
                at_same_weights = self.one_step.exact(side, inputs[side], step, recorded)
                self._known.add(side, step, recorded, one_steps[side], at_same_weights)
        return found


def _share(a: TrainedSide, b: TrainedSide) -> bool:
    return a.synchronous == b.synchronous and a.takes_steps_of(b)
