"""The sides of a comparison: which training each is, and what reports call it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Side:
    """One training that takes part in a comparison.

    Attributes:
      framework: what its owner calls it, such as "pytorch".
    """

    framework: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def labels_of(sides: Sequence[Side], folders: Sequence[Path]) -> list[str]:
    """Return what reports call the sides: their frameworks, told apart where they are alike.

    A label is for people alone: whoever needs to know the framework asks the `Side`.

    Args:
      folders: where each side's trace lies; added to labels that would otherwise be alike.
    """
    labels = [side.framework for side in sides]
    if len(set(labels)) == len(labels):
        return labels
    labels = [f"{label} ({folder})" for label, folder in zip(labels, folders, strict=True)]
    if len(set(labels)) == len(labels):
        return labels
    # a trace is compared with itself
    return [f"{label}, {number}" for number, label in enumerate(labels, start=1)]
