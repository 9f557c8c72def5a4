"""The causes of a run's first mismatch: found in that step, kept if they hold in the others."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from parity.twins.compare.causes.search import Budget, CauseSearch
from parity.twins.compare.causes.wrong_step import Confirmed, WrongStep
from parity.twins.compare.oracle_steps import OneStep
from parity.twins.compare.oracle_tensors import OracleTensors
from parity.twins.compare.verdict import Evidence
from parity.twins.oracle.replay import RecordedUpdate, weights_of
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.side import TrainedSide

Tensors = Mapping[str, np.ndarray]

_MOST_BYTES = 2**27  # how much of the steps before the first wrong one is kept to be tried


class RunCauses:
    """Looks for the mistakes with which the oracle reproduces what sides recorded.

    The oracle starts each step from what the side itself recorded before it. A mistake that
    explains the first wrong step must leave the steps before right, and reproduce those after.

    Args:
      expected: computes what a trace should hold.
      names: the tensors of a step, in the order of computation.
      one_step: has what each side recorded before the step.
      sides: label -> side.
      seconds: how long the search in the first wrong step may take, all sides together.

    Attributes:
      tried: the names of the suspects that were tried in the first wrong step.
    """

    def __init__(
        self,
        expected: OracleTensors,
        names: list[str],
        one_step: OneStep,
        sides: Mapping[str, TrainedSide],
        seconds: float,
    ):
        self._expected, self._names, self._one_step = expected, names, one_step
        self._sides, self._seconds = sides, seconds
        self.tried: set[str] = set()
        self._before: deque[dict[str, WrongStep]] = deque()
        self._bytes = 0  # of what is kept
        self._first: dict[str, WrongStep] | None = None  # label -> the first wrong step
        self._held: dict[str, list[Confirmed]] = {}
        self._last: dict[str, tuple[Tensors, float]] = {}  # label -> as WrongStep.before

    def add(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: Mapping[str, StepInputs],
        exact: Mapping[str, Tensors],
        evidence: Mapping[str, Evidence] | None,
    ) -> list[Confirmed]:
        """Add the next step, and return the mistakes that reproduce all of them.

        Args:
          tensors: label -> what that side recorded.
          inputs: label -> the inputs of that side's step.
          exact: label -> what the oracle computes of the step, each rung from the recorded
            rung below.
          evidence: label -> evidence, for the sides that depart from the oracle; None as long
            as nothing is wrong.
        """
        if not self._seconds:
            return []
        cases = {
            side: self._case(side, step, tensors[side], inputs[side], exact[side])
            for side in (tensors if evidence is None else evidence)
        }
        if evidence is None:
            self._keep(cases)
            return []
        if self._first is not None:
            self._retain(cases)
        else:
            self._search(cases, evidence)
            while self._before:
                self._retain(self._before.pop())
        return self._merged()

    def _case(
        self, side: str, step: int, recorded: Tensors, own: StepInputs, exact: Tensors
    ) -> WrongStep:
        start, update = self._one_step.start(side, recorded), RecordedUpdate.of(recorded)
        before = self._last.get(side)
        self._last[side] = weights_of(start.snapshot), self._expected.rate(step, recorded)
        return WrongStep(
            self._expected.spec,
            step if update is None else update.step,
            self._expected.batches_per_epoch,
            start.snapshot,
            self._one_step.state(start, own),
            start.left,
            own,
            recorded,
            exact,
            "",
            (),
            start.read,
            self._sides[side],
            is_first=False,
            before=before,
            place=step,
        )

    def _keep(self, cases: dict[str, WrongStep]) -> None:
        """Keep a step that is right, and of those before it as many as there is room for."""
        self._before.append(cases)
        self._bytes += _size_of(cases)
        while self._bytes > _MOST_BYTES:
            self._bytes -= _size_of(self._before.popleft())

    def _search(self, cases: Mapping[str, WrongStep], evidence: Mapping[str, Evidence]) -> None:
        budget, self._first = Budget(self._seconds), {}
        for side, seen in evidence.items():
            wrong = tuple(name for name in self._names if name in seen.wrong)
            if not any(name in cases[side].expected for name in wrong):
                continue  # nothing that the oracle computes is wrong
            case = replace(cases[side], first=wrong[0], wrong=wrong, is_first=True)
            self._first[side] = case
            with self._one_step.known.oracle_of(side):
                search = CauseSearch(case, self._expected, self._names, budget)
                self._held[side] = search.confirmed()
        self.tried = budget.tried

    def _retain(self, cases: Mapping[str, WrongStep]) -> None:
        """Drop the causes that do not reproduce another step.

        What replicas compute that have drifted apart, no oracle knows: such a step shows
        nothing.
        """
        for side, case in cases.items():
            first = (self._first or {}).get(side)
            if first is None or case.follows_drift(first):
                continue
            case = replace(case, first=first.first, wrong=first.wrong)
            held = []
            with self._one_step.known.oracle_of(side):
                search = CauseSearch(case, self._expected, self._names, Budget(np.inf))
                for cause in self._held[side]:
                    distance = search.holds(cause)
                    if distance is not None:
                        steps = *cause.steps, case.place
                        steps = min(steps), max(steps)
                        distance = max(distance, cause.distance)
                        held.append(replace(cause, distance=distance, steps=steps))
            self._held[side] = held

    def _merged(self) -> list[Confirmed]:
        """Return the causes, each with all sides that it reproduces."""
        found: dict[str, Confirmed] = {}
        for side, causes in self._held.items():
            for cause in causes:
                before = found.get(cause.sentence, cause)
                found[cause.sentence] = replace(
                    cause,
                    distance=max(cause.distance, before.distance),
                    sides=(*before.sides, side),
                )
        return list(found.values())


def _size_of(cases: Mapping[str, WrongStep]) -> int:
    """Return how many bytes the tensors of a step take, of all its sides."""
    return sum(
        array.nbytes
        for case in cases.values()
        for array in (*case.recorded.values(), *case.expected.values())
    )
