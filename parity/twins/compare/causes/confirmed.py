"""A confirmed cause, as a verdict holds it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Confirmed:
    """A mistake with which the oracle reproduces what a side recorded of every step.

    Attributes:
      suspect: the suspect's name.
      sentence: the mistake, as the end of "with ...".
      faults: the faults of the catalogue that the suspect stands for.
      distance: the largest distance between oracle and side in the tensors that were wrong,
        each divided by the largest magnitude in its tensor.
      sides: the labels of the sides that are reproduced.
      steps: the first and the last step that were tried, and are reproduced.
      value: the number of the mistake that was solved for; None if it has none.
    """

    suspect: str
    sentence: str
    faults: tuple[str, ...]
    distance: float
    sides: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "suspect": self.suspect,
            "sentence": self.sentence,
            "faults": list(self.faults),
            "distance": self.distance,
            "sides": list(self.sides),
            "steps": list(self.steps),
        }
