"""What the comparison of one run of the two networks found, and what a whole run did."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.compare.coverage import Fact, join_facts
from parity.compare.explanation import Explanation
from parity.compare.findings import Finding, join_findings
from parity.compare.tensors import Mismatch
from parity.compare.verdict import Verdict
from parity.trace.rungs import WITNESS, rungs
from parity.trace.tolerances import TABLE, Tolerance
from parity.twins.compare.causes.wrong_step import Confirmed
from parity.twins.compare.decoded_answers import DecodedFinding, Tie
from parity.twins.compare.disagreement import (
    Disagreement,
    checked_sides,
    departing_sides,
)
from parity.twins.compare.intended_differences import IntendedDifference
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide

Tensors = Mapping[str, np.ndarray]


def explained(mismatches: Sequence[Mismatch]) -> tuple[Explanation, ...]:
    """Return how the first wrong tensor of a check is made, if its mismatch says so."""
    return tuple(Explanation(m.place.tensor, m.made) for m in mismatches[:1] if m.made)


@dataclass(frozen=True)
class Evidence:
    """What a side recorded of the first wrong tensor, and what it should have recorded.

    Attributes:
      found, expected: recorded and expected values; None where they cannot be compared.
      compared: the names of all tensors of that step that were compared.
      wrong: the names of those that are wrong, given what the side itself recorded on the rung
        below.
    """

    found: np.ndarray | None = None
    expected: np.ndarray | None = None
    compared: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunVerdict(Verdict):
    """What the comparison of one run found: that of a `Verdict`, and what the oracle knows.

    Attributes:
      oracle: label -> what the oracle, training by itself, expects of that side in that step,
        or in the last one; empty where it does not train by itself. Sides may divide a batch
        among different numbers of replicas, so the losses of the replicas belong to one side.
      disagreement: which sides differ from the oracle in the first tensor that differs, and
        whether they agree with each other; None if nothing differs.
      evidence: label -> what that side has in the first tensor that differs, for the sides that
        depart from the oracle in it, or for both sides where that cannot be said.
      amplified: in float64, the place where rounding, amplified by the training, first exceeded
        the bound of free runs, if it did; from there on only single steps are judged.
      confirmed: the mistakes with which the oracle reproduces what those sides recorded; where
        there are several, the step cannot tell them apart.
      causes_tried: the mistakes that were tried, by name; None if none was looked for.
      ties: the sentences that a side decoded differently where rounding can decide either way.
      coverage: the cases that the run met, and those that it did not.
      unchecked: the checks of whole runs that were not made -> why not.
      staleness: label -> staleness -> the number of its updates, for asynchronous sides.
      known: label -> by how much a side differs from the exact training on purpose.
      unmeasured: the steps that no rounding was measured in, because all differences are far
        within what the measurements before them allow.
    """

    oracle: Mapping[str, Tensors] = field(default_factory=dict)
    disagreement: Disagreement | None = None
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    amplified: Mismatch | None = None
    confirmed: Sequence[Confirmed] = ()
    causes_tried: Sequence[str] | None = None
    ties: tuple[Tie, ...] = ()
    coverage: tuple[Fact, ...] = ()
    sides: Mapping[str, TrainedSide] = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)
    staleness: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    known: Mapping[str, IntendedDifference] = field(default_factory=dict)
    unmeasured: Sequence[int] = ()

    def with_checks(self, findings: Iterable[Finding]) -> "RunVerdict":
        """Return the verdict with what checks of whole runs found, by their rungs."""
        findings = list(findings)
        decoded = [each for each in findings if isinstance(each, DecodedFinding)]
        mismatches = [*self.mismatches, *(m for each in findings for m in each.mismatches)]
        mismatches.sort(key=lambda m: rungs().index(m.check) if m.check else -1)
        return replace(
            self,
            pairs=join_findings(self.pairs, findings),
            mismatches=tuple(mismatches),
            explanations=self.explanations or explained(mismatches),
            ties=(*self.ties, *(tie for each in decoded for tie in each.ties)),
            coverage=join_facts(self.coverage, *(each.facts for each in findings)),
        )

    def departing(self) -> list[str]:
        """Return the sides that depart from the oracle in the first tensor that differs.

        For a check of whole runs, return the sides that it was made on.
        """
        if self.mismatches and self.mismatches[0].check:
            return checked_sides(self.mismatches, self.sides)
        return departing_sides(self.mismatches)

    def free_run_bound(self, rung: str) -> Tolerance | None:
        """Return the tolerance that free runs are judged by; None where they are not judged."""
        if self.dtype == "float64" or rung not in ONE_STEP_TIMES:
            return TABLE[self.dtype, rung]
        return None

    def one_step_bound(self, rung: str) -> float | None:
        """Return the multiple of rounding that single steps are judged by; None where not."""
        # what follows from a checkpoint is judged as single steps are
        of_steps = {"resume": "weight", "untraced": "loss", WITNESS: "weight"}.get(rung, rung)
        return ONE_STEP_TIMES.get(of_steps)


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
    sides: Mapping[str, TrainedSide] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    verdicts: list[RunVerdict] = field(default_factory=list)
    trainings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def matches(self) -> bool:
        """Return whether every precision's verdict is a match."""
        return all(verdict.matches for verdict in self.verdicts)
