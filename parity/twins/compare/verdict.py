"""What the comparison of one run of the two networks found, and what a whole run did."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.compare.coverage import Coverage
from parity.compare.disagreement import checked_sides, departing_sides
from parity.compare.tensors import Distance, Mismatch
from parity.compare.verdict import Verdict
from parity.trace.rungs import CHECKS
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE, Tolerance
from parity.twins.compare.causes.confirmed import Confirmed
from parity.twins.compare.decoded_answers import Tie
from parity.twins.compare.intended_differences import IntendedDifference
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide

Tensors = Mapping[str, np.ndarray]


@dataclass
class RunVerdict(Verdict):
    """What the comparison of one run found: that of a `Verdict`, and what the oracle knows.

    Attributes:
      amplified: in float64, the place where rounding, amplified by the training, first exceeded
        the bound of free runs, if it did; from there on only single steps are judged.
      confirmed: the mistakes with which the oracle reproduces what those sides recorded; where
        there are several, the step cannot tell them apart.
      ties: the sentences that a side decoded differently where rounding can decide either way.
      isolated: whether every layer read the oracle's inputs.
      compared: the number of tensors in each step.
      coverage: the cases that the run met, and those that it did not.
      unchecked: the checks of whole runs that were not made -> why not.
      staleness: label -> staleness -> the number of its updates, for asynchronous sides.
      known: label -> by how much a side differs from the exact training on purpose.
      unmeasured: the steps that no rounding was measured in, because all differences are far
        within what the measurements before them allow.
    """

    amplified: Mismatch | None = None
    confirmed: list[Confirmed] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    isolated: bool = False
    compared: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    sides: dict[str, TrainedSide] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    staleness: dict[str, Counter[int]] = field(default_factory=dict)
    known: dict[str, IntendedDifference] = field(default_factory=dict)
    unmeasured: list[int] = field(default_factory=list)

    def add_update(self, side: str, step: int, recorded: Tensors) -> None:
        """Count the staleness of a step, if the side is asynchronous."""
        update = RecordedUpdate.of(recorded)
        if update is not None:
            self.staleness.setdefault(side, Counter())[step - update.read] += 1

    def add_check(self, found: Mismatch | None) -> None:
        """Add what a check of whole runs found; see parity/trace/rungs.py for their order."""
        if found is not None:
            self.mismatches.append(found)
            self.mismatches.sort(
                key=lambda each: CHECKS.index(each.check) if each.check else -1
            )

    def add_exact_check(
        self, check: str, sides: tuple[str, str], found: Mismatch | None
    ) -> None:
        """Add a check of two runs, or two numbers, that must be equal to the bit."""
        distance = Distance(used=0.0)
        if found is not None:
            values = list(found.values.values())
            apart = abs(values[0] - values[1]) if values else 0.0
            largest = max(map(abs, values), default=0.0)
            share = apart / largest if largest else 0.0
            distance = Distance(apart, share, found.place, math.inf)
        rungs = self.pairs.setdefault(sides, {})
        rungs.setdefault(check, Distance()).add(distance)
        self.add_check(found)

    def departing(self) -> list[str]:
        """Return the sides that depart from the oracle in the first tensor that differs.

        For a check of whole runs, return the sides that it was made on.
        """
        if self.mismatches and self.mismatches[0].check:
            return checked_sides(self.mismatches[0], self.sides)
        return departing_sides(self.mismatches)

    def free_run_bound(self, rung: str) -> Tolerance | None:
        """Return the tolerance that free runs are judged by; None where they are not judged."""
        if self.dtype == "float64" or self.isolated or rung not in ONE_STEP_TIMES:
            return TABLE[self.dtype, rung]
        return None

    def one_step_bound(self, rung: str) -> float | None:
        """Return the multiple of rounding that single steps are judged by; None where not."""
        # what one framework computes from another's checkpoint is judged as single steps are
        return None if self.isolated else ONE_STEP_TIMES.get(rung.replace("resume", "weight"))


@dataclass
class Outcome:
    """What a run found, as the report tells it.

    Attributes:
      spec: what was trained, with the size of the real vocabulary.
      sides: label -> side, of all verdicts and trainings.
      versions: name -> version of Python's packages and the frameworks, of all sides.
      verdicts: one for each precision.
      trainings: label -> what the side wrote to summary.json when it was trained by itself,
        without a trace.
    """

    spec: Spec
    sides: dict[str, TrainedSide] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    verdicts: list[RunVerdict] = field(default_factory=list)
    trainings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def matches(self) -> bool:
        """Return whether every precision's verdict is a match."""
        return all(verdict.matches for verdict in self.verdicts)
