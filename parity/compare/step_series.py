"""Losses and distances of every step, small enough for a figure however long the run is."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.compare.tensors import Distance

MOST_POINTS = 1000

# A share of nothing, where no difference is allowed and there is one: JSON has no infinity.
MOST_SHARE = 1e6


@dataclass
class _Point:
    """Several consecutive steps, as one point of a figure; every point has the same number.

    Attributes:
      step: the last of the steps.
      loss: label -> global loss of that step.
      difference: the largest difference of the pair's losses over the steps, in units in the
        last place.
      from_oracle: label -> the largest difference from the oracle's loss, in the same unit.
      relative: tensor -> the largest relative distance of the pair.
      shares: tensor -> the largest share of its bound that any judged comparison used.
    """

    step: int
    loss: dict[str, float]
    difference: float
    from_oracle: dict[str, float]
    relative: dict[str, float]
    shares: dict[str, float] = field(default_factory=dict)

    def merge(self, later: "_Point") -> None:
        self.step = later.step
        self.loss = later.loss or self.loss
        self.difference = _larger(self.difference, later.difference)
        for mine, other in (
            (self.from_oracle, later.from_oracle),
            (self.relative, later.relative),
            (self.shares, later.shares),
        ):
            for name, value in other.items():
                mine[name] = _larger(mine.get(name, 0.0), value)


class History:
    """The losses of all sides, and the distance of the first pair in every tensor, by step.

    Up to MOST_POINTS steps are kept one by one. In a longer run each point holds 2, 4, 8 ...
    steps: the largest distance in them, and the losses of the last.

    Args:
      dtype: the precision of the sides, for units in the last place.
      pair: the labels of the two whose tensors are compared; None if there is only one side.
    """

    def __init__(
        self,
        dtype: str = "float64",
        pair: Sequence[str] | None = None,
    ):
        self._dtype, self._pair = np.dtype(dtype), pair
        self._points: list[_Point] = []
        self._after: list[tuple[int, dict[str, float]]] = []
        self._span, self._in_last = 1, 0

    def add(
        self,
        step: int,
        losses: Mapping[str, float],
        distances: Mapping[str, Distance],
        shares: Iterable[Mapping[str, float]] = (),
        expected: Mapping[str, float] | None = None,
    ) -> None:
        """Add a step.

        Args:
          losses: label -> the loss of that side; empty where it is no single number.
          distances: tensor -> distance of the pair, without a place where shapes differ.
          shares: tensor -> the share of its bound that a comparison used: above 1 is a
            mismatch, and infinite where no difference is allowed.
          expected: label -> the loss that the oracle expects of that side, if there is one.
        """
        expected = expected or {}
        oracle = {"oracle": next(iter(expected.values()))} if expected else {}
        of_pair = [losses[side] for side in self._pair or () if side in losses]
        point = _Point(
            step,
            {**losses, **oracle},
            self._ulps(*of_pair) if of_pair else 0.0,
            {side: self._ulps(losses[side], each) for side, each in expected.items()},
            {name: each.relative for name, each in distances.items() if each.where},
        )
        for used in shares:
            for name, share in used.items():
                most = min(share, MOST_SHARE)
                point.shares[name] = _larger(point.shares.get(name, 0.0), most)
        self._append(point)

    def add_losses_after(self, step: int, losses: Mapping[str, float]) -> None:
        """Add the losses of a step after a mismatch, which is measured and not judged."""
        if self.last is None or step > self.last:
            self._after.append((step, dict(losses)))

    @property
    def last(self) -> int | None:
        """Return the last step that was added, after a mismatch or not."""
        if self._after:
            return self._after[-1][0]
        return self._points[-1].step if self._points else None

    @property
    def tensors(self) -> list[str]:
        """Return the names of the tensors that both sides have, in the order of computation."""
        return list(dict.fromkeys(name for each in self._points for name in each.relative))

    def _append(self, point: _Point) -> None:
        if self._points and self._in_last < self._span:
            self._points[-1].merge(point)
            self._in_last += 1
            return
        if len(self._points) == MOST_POINTS:
            for first, second in zip(self._points[::2], self._points[1::2], strict=True):
                first.merge(second)
            self._points = self._points[::2]
            self._span *= 2
        self._points.append(point)
        self._in_last = 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values: series with one entry for each point, None for no number."""
        points, tensors = self._points, self.tensors
        found: dict[str, Any] = {
            "span": self._span,
            "steps": [point.step for point in points],
            "loss": {
                side: [_number(point.loss.get(side)) for point in points]
                for side in dict.fromkeys(side for point in points for side in point.loss)
            },
            "from_oracle": {
                side: [_rounded(point.from_oracle[side], 6) for point in points]
                for side in (points[0].from_oracle if points else ())
            },
        }
        if self._after:
            found["after"] = {
                "steps": [step for step, _ in self._after],
                "loss": {
                    side: [_number(losses.get(side)) for _, losses in self._after]
                    for side in found["loss"]
                },
            }
        if self._pair is not None:
            found |= {
                "pair": list(self._pair),
                "difference": [_rounded(point.difference, 6) for point in points],
                "relative": {
                    name: [_rounded(point.relative.get(name), 3) for point in points]
                    for name in tensors
                },
                "used": {
                    name: [_rounded(point.shares.get(name), 3) for point in points]
                    for name in tensors
                },
            }
        return found

    def _ulps(self, a: float, b: float) -> float:
        """Return |a - b| in units in the last place of the larger, in the sides' precision."""
        with np.errstate(all="ignore"):  # to_json leaves out what is not finite
            unit = float(np.spacing(self._dtype.type(max(abs(a), abs(b)))))
            return abs(a - b) / unit if unit else 0.0


def _larger(a: float, b: float) -> float:
    return float(np.maximum(a, b))  # NaN if either is


def _number(value: float | None) -> float | None:
    """Return a number that JSON can hold: None for NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float | None, digits: int) -> float | None:
    value = _number(value)
    return None if value is None else float(f"{value:.{digits}g}")
