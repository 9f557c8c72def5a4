"""How a difference develops in the steps after the first wrong one.

A mistake in the update makes two trainings part further with every step; a step that went wrong
once leaves a difference that may stay or vanish. The verdict is that of the first wrong step;
the steps after it are measured, not judged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.compare.tensors import ONE_STEP, ORACLE, Distance
from parity.trace.rungs import rung_of

# What is compared with what: the sides with each other, each side with the oracle that trains
# by itself, and each side with what the oracle computes from what the side recorded before.
BETWEEN, FREE_RUN, STEP_ALONE = "between_sides", "free_run", "one_step"
KINDS = (BETWEEN, FREE_RUN, STEP_ALONE)

GROWS, STAYS, SHRINKS, VANISHES = "grows", "stays", "shrinks", "vanishes"

# From which factor on a distance is said to have changed, and below which share of its first
# value it is said to have vanished.
_CHANGED, _GONE = 2.0, 1e-3

Series = list[float | None]  # a number for each step; None where nothing could be compared
Pair = tuple[str, str]


@dataclass(frozen=True)
class StepDistances:
    """The distances of one step, each the largest of any pair that is compared.

    A distance is the largest |a - b|, divided by the largest magnitude in the tensor.

    Attributes:
      step: the number of the step.
      of_tensor: kind of comparison -> the distance in the first wrong tensor.
      of_rungs: kind of comparison -> rung -> the largest distance of any of its tensors.
    """

    step: int
    of_tensor: Mapping[str, float]
    of_rungs: Mapping[str, Mapping[str, float]]


@dataclass
class Growth:
    """The distances in the first wrong step and in the steps after it.

    Attributes:
      tensor: the first wrong tensor.
      steps: the distances of each step; the first is that of the mismatch.
      ended: why there are fewer steps than were asked for; empty if there are not.
    """

    tensor: str
    steps: list[StepDistances] = field(default_factory=list)
    ended: str = ""

    def add(self, step: int, distances: Mapping[Pair, Mapping[str, Distance]]) -> None:
        """Add a step.

        Args:
          distances: (label, label) -> tensor -> how far the two are apart in it; without a
            place where they cannot be compared.
        """
        tensor: dict[str, float] = {}
        rungs: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
        for pair, of_pair in distances.items():
            kind = kind_of(pair)
            for name, each in of_pair.items():
                if each.where is None:
                    continue
                rung, worst = rung_of(name), rungs[kind]
                worst[rung] = _larger(worst.get(rung, 0.0), each.relative)
                if name == self.tensor:
                    tensor[kind] = _larger(tensor.get(kind, 0.0), each.relative)
        self.steps.append(StepDistances(step, tensor, rungs))

    @property
    def series(self) -> Series:
        """Return the distance in the first wrong tensor, by step, that decides the trend.

        It is the largest of all: sides that are wrong alike differ from the oracle alone.
        """
        return [max(each.of_tensor.values(), default=None) for each in self.steps]

    @property
    def trend(self) -> str:
        """Return GROWS, STAYS, SHRINKS or VANISHES; empty without two numbers."""
        known = [each for each in self.series if each is not None]
        if len(known) < 2 or not known[0]:
            return ""
        change = known[-1] / known[0]
        if change >= _CHANGED:
            return GROWS
        if change > 1 / _CHANGED:
            return STAYS
        return SHRINKS if change > _GONE else VANISHES

    def to_json(self) -> dict[str, Any]:
        """Return plain values: series with one entry for each step, None for no number."""
        rungs = dict.fromkeys(
            rung for each in self.steps for found in each.of_rungs.values() for rung in found
        )
        return {
            "tensor": self.tensor,
            "steps": [each.step for each in self.steps],
            "series": _rounded(self.series),
            "of_tensor": {
                kind: _rounded([each.of_tensor.get(kind) for each in self.steps])
                for kind in KINDS
            },
            "of_rungs": {
                rung: {
                    kind: _rounded([each.of_rungs[kind].get(rung) for each in self.steps])
                    for kind in KINDS
                }
                for rung in rungs
            },
            "trend": self.trend or None,
            "ended": self.ended or None,
        }


def kind_of(pair: Pair) -> str:
    """Return what a comparison of two labels compares."""
    return {ORACLE: FREE_RUN, ONE_STEP: STEP_ALONE}.get(pair[1], BETWEEN)


def _larger(a: float, b: float) -> float:
    return float(np.maximum(a, b))  # NaN if either is


def _rounded(series: Series) -> Series:
    return [
        float(f"{each:.3g}") if each is not None and math.isfinite(each) else None
        for each in series
    ]
