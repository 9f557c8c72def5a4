"""What the comparison of two trainings found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.compare.disagreement import Disagreement
from parity.compare.explanation import Explanation
from parity.compare.findings import Pair
from parity.compare.growth import Growth
from parity.compare.step_series import History
from parity.compare.tensors import Distance, Mismatch
from parity.trace.side import Side

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Evidence:
    """What a side recorded of the first wrong tensor, and what it should have recorded.

    Attributes:
      found, expected: recorded and expected values; None where they cannot be compared.
      wrong: the names of all tensors of that step that are wrong, given what the side itself
        recorded on the rung below.
    """

    found: np.ndarray | None = None
    expected: np.ndarray | None = None
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What the comparison of two trainings found, put together once from its findings.

    Attributes:
      dtype: the precision of the run.
      pairs: (label, label) -> rung -> distance; the second may be the oracle's.
      mismatches: the mismatches of the first step that has any, in the order of computation.
      oracle: label -> what the oracle, training by itself, expects of that side in that step,
        or in the last one; empty where there is no oracle. Sides may divide a batch among
        different numbers of replicas, so the losses of the replicas belong to one side.
      disagreement: which sides differ from the oracle in the first tensor that differs, and
        whether they agree with each other; None if nothing differs.
      growth: how large the differences are in that step and in those after it; None if nothing
        differs, or if no step after it was to be measured.
      steps: the number of steps compared, up to the first that has a mismatch.
      evidence: label -> what that side has in the first tensor that differs, for the sides that
        depart from the oracle in it, or for both sides where that cannot be said.
      history: losses and distances step by step, for the figures.
      sides: label -> side, for the labels in `pairs`, `mismatches` and `evidence`.
      explanations: what explains the first mismatch, or how one of its values is made of the
        other.
      cut: label -> where a trace ends whose writer was killed or failed; only the steps that
        all traces hold are compared.
      sources: label -> name of a tensor, or first parts of names -> the lines of code that made
        it, as far as the side recorded them.
    """

    dtype: str
    pairs: Mapping[Pair, Mapping[str, Distance]] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    oracle: Mapping[str, Tensors] = field(default_factory=dict)
    disagreement: Disagreement | None = None
    growth: Growth | None = None
    steps: int = 0
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    history: History = field(default_factory=History)
    sides: Mapping[str, Side] = field(default_factory=dict)
    cut: Mapping[str, str] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def matches(self) -> bool:
        """Return whether nothing differed by more than is allowed."""
        return not self.mismatches
