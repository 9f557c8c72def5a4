"""What a run found: the verdict of each precision, and what each side did by itself."""

from dataclasses import dataclass, field
from typing import Any

from parity.twins.compare.verdict import RunVerdict
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide


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
