"""What the comparison of two trainings found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from parity.compare.explanation import Explanation
from parity.compare.findings import Pair
from parity.compare.growth import Growth
from parity.compare.step_series import History
from parity.compare.tensors import Distance, Mismatch
from parity.trace.side import Side


@dataclass(frozen=True)
class Verdict:
    """What the comparison of two trainings found, put together once from its findings.

    Attributes:
      dtype: the precision of the run.
      pairs: (label, label) -> rung -> distance; the second may be the oracle's.
      mismatches: the mismatches of the first step that has any, in the order of computation.
      growth: how large the differences are in that step and in those after it; None if nothing
        differs, or if no step after it was to be measured.
      steps: the number of steps compared, up to the first that has a mismatch.
      history: losses and distances step by step, for the figures.
      sides: label -> side, for the labels in `pairs` and `mismatches`.
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
    growth: Growth | None = None
    steps: int = 0
    history: History = field(default_factory=History)
    sides: Mapping[str, Side] = field(default_factory=dict)
    cut: Mapping[str, str] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def matches(self) -> bool:
        """Return whether nothing differed by more than is allowed."""
        return not self.mismatches
