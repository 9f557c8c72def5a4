"""What the comparison of one run found."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.compare.causes.confirmed import Confirmed
from parity.compare.coverage import Coverage
from parity.compare.decoded_answers import Tie
from parity.compare.disagreement import Disagreement, checked_sides, departing_sides
from parity.compare.growth import Growth
from parity.compare.known_differences import KnownDifference
from parity.compare.signatures import Evidence
from parity.compare.step_series import History
from parity.compare.tensors import ONE_STEP, ORACLE, Distance, Mismatch
from parity.oracle.replay import RecordedUpdate
from parity.spec.checks import CHECKS
from parity.trace.side import Side
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE, Tolerance

__all__ = ["ONE_STEP", "ORACLE", "Verdict"]

Tensors = Mapping[str, np.ndarray]


@dataclass
class Verdict:
    """What the comparison of one run found.

    Attributes:
      dtype: the precision of the run.
      pairs: (label, label) -> rung -> distance; the second may be the oracle's.
      mismatches: the mismatches of the first step that has any, in the order of computation; of
        an isolated run, all tensors that are wrong.
      oracle: label -> what the oracle, training by itself, expects of that side in that step,
        or in the last one. Sides may divide a batch among different numbers of replicas, so
        the losses of the replicas belong to one side.
      disagreement: which sides differ from the oracle in the first tensor that differs, and
        whether they agree with each other; None if nothing differs.
      growth: how large the differences are in that step and in those after it; None if nothing
        differs, or if no step after it was to be measured.
      steps: the number of steps compared, up to the first that has a mismatch.
      amplified: in float64, the place where rounding, amplified by the training, first exceeded
        the bound of free runs, if it did; from there on only single steps are judged.
      evidence: label -> what that side has in the first tensor that differs, for the sides that
        depart from the oracle in it, or for both sides where that cannot be said.
      confirmed: the mistakes with which the oracle reproduces what those sides recorded; where
        there are several, the step cannot tell them apart.
      ties: the sentences that a side decoded differently where rounding can decide either way.
      history: losses and distances step by step, for the figures.
      isolated: whether every layer read the oracle's inputs.
      compared: the number of tensors in each step.
      coverage: the cases that the run met, and those that it did not.
      sides: label -> side, for the labels in `pairs`, `mismatches` and `evidence`.
      unchecked: the checks of whole runs that were not made -> why not.
      staleness: label -> staleness -> the number of its updates, for asynchronous sides.
      known: label -> by how much a side differs from the exact training on purpose.
      cut: label -> where a trace ends whose writer was killed or failed; only the steps that
        all traces hold are compared.
      unmeasured: the steps that no rounding was measured in, because all differences are far
        within what the measurements before them allow.
    """

    dtype: str
    pairs: dict[tuple[str, str], dict[str, Distance]] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    oracle: Mapping[str, Tensors] = field(default_factory=dict)
    disagreement: Disagreement | None = None
    growth: Growth | None = None
    steps: int = 0
    amplified: Mismatch | None = None
    evidence: dict[str, Evidence] = field(default_factory=dict)
    confirmed: list[Confirmed] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    history: History = field(default_factory=History)
    isolated: bool = False
    compared: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    sides: dict[str, Side] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    staleness: dict[str, Counter[int]] = field(default_factory=dict)
    known: dict[str, KnownDifference] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)
    unmeasured: list[int] = field(default_factory=list)

    def add_update(self, side: str, step: int, recorded: Tensors) -> None:
        """Count the staleness of a step, if the side is asynchronous."""
        update = RecordedUpdate.of(recorded)
        if update is not None:
            self.staleness.setdefault(side, Counter())[step - update.read] += 1

    def add_check(self, found: Mismatch | None) -> None:
        """Add what a check of whole runs found; see parity/spec/checks.py for their order."""
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

    @property
    def matches(self) -> bool:
        """Return whether nothing differed by more than is allowed."""
        return not self.mismatches

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
