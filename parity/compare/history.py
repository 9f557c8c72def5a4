"""What a ladder saw at every step, small enough for a picture however long the run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.compare.tensors import Distance

MOST_POINTS = 1000

Tensors = Mapping[str, np.ndarray]


@dataclass
class _Point:
    """Equally many neighbouring steps.

    Attributes:
      step: the last of them.
      loss: side -> global loss of that step.
      replicas: side -> its replicas' shares of that loss, and the oracle's shares of the same
        rows.
      difference: of the pair, from `step` on the greatest over the point's steps, as are the
        two below; in units in the last place.
      from_oracle: side -> the same from the oracle.
      relative: tensor -> relative distance of the pair.
    """

    step: int
    loss: dict[str, float]
    replicas: dict[str, tuple[list[float], list[float]]]
    difference: float
    from_oracle: dict[str, float]
    relative: dict[str, float]

    def take_in(self, later: "_Point") -> None:
        self.step, self.replicas = later.step, later.replicas
        self.loss = later.loss or self.loss
        self.difference = _greater(self.difference, later.difference)
        for mine, other in (
            (self.from_oracle, later.from_oracle),
            (self.relative, later.relative),
        ):
            for name, value in other.items():
                mine[name] = _greater(mine.get(name, 0.0), value)


class History:
    """Losses of all sides, and how far the first pair was apart in every tensor, by steps.

    Up to MOST_POINTS steps are kept one by one. Of more, each point holds 2, 4, 8 ... steps:
    the greatest distance of them, and the losses of the last.

    Args:
      dtype: precision of the sides, for units in the last place.
      sides: their names.
      pair: the two whose tensors are held against each other; None if there is but one side.
    """

    def __init__(
        self,
        dtype: str = "float64",
        sides: Sequence[str] = (),
        pair: Sequence[str] | None = None,
    ):
        self._dtype, self._sides, self._pair = np.dtype(dtype), list(sides), pair
        self._points: list[_Point] = []
        self._span, self._in_last = 1, 0

    def add(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        oracle: Mapping[str, Tensors],
        distances: Mapping[str, Distance],
    ) -> None:
        """Take in a step.

        Args:
          tensors: side -> what it recorded.
          oracle: side -> what the oracle has for it, its losses shared as the side shares rows.
          distances: tensor -> distance of the pair; without a place where nothing was compared.
        """
        loss = {side: float(tensors[side]["loss/global"]) for side in self._sides}
        expected = {side: float(oracle[side]["loss/global"]) for side in self._sides}
        replicas = {
            side: (
                np.asarray(tensors[side]["loss/replicas"], np.float64).tolist(),
                np.asarray(oracle[side]["loss/replicas"], np.float64).tolist(),
            )
            for side in self._sides
        }
        point = _Point(
            step,
            loss | {"oracle": next(iter(expected.values()))},
            replicas,
            self._ulps(*(loss[side] for side in self._pair)) if self._pair else 0.0,
            {side: self._ulps(loss[side], expected[side]) for side in self._sides},
            {name: each.relative for name, each in distances.items() if each.where},
        )
        self._take_in(point)

    def add_pair(
        self, step: int, losses: Sequence[float | None], distances: Mapping[str, Distance]
    ) -> None:
        """Take in a step of a pair that has no oracle.

        Args:
          losses: of both sides; None where none was recorded.
          distances: as of `add`.
        """
        known = [loss for loss in losses if loss is not None]
        point = _Point(
            step,
            dict(zip(self._sides, known, strict=True)) if known else {},
            {},
            self._ulps(*known) if known else 0.0,
            {},
            {name: each.relative for name, each in distances.items() if each.where},
        )
        self._take_in(point)

    def _take_in(self, point: _Point) -> None:
        if self._points and self._in_last < self._span:
            self._points[-1].take_in(point)
            self._in_last += 1
            return
        if len(self._points) == MOST_POINTS:
            for first, second in zip(self._points[::2], self._points[1::2], strict=True):
                first.take_in(second)
            self._points = self._points[::2]
            self._span *= 2
        self._points.append(point)
        self._in_last = 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values; series have an entry a point, None where there is no number."""
        points = self._points
        tensors = list(dict.fromkeys(name for point in points for name in point.relative))
        found: dict[str, Any] = {
            "span": self._span,
            "steps": [point.step for point in points],
            "loss": {
                side: [_number(point.loss.get(side)) for point in points]
                for side in dict.fromkeys(side for point in points for side in point.loss)
            },
            "replica_loss": {
                side: {
                    whose: _by_replica([point.replicas[side][i] for point in points])
                    for i, whose in enumerate(("side", "oracle"))
                }
                for side in (points[0].replicas if points else ())
            },
            "from_oracle": {
                side: [_rounded(point.from_oracle[side], 6) for point in points]
                for side in (points[0].from_oracle if points else ())
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
            }
        return found

    def _ulps(self, a: float, b: float) -> float:
        """Return |a - b| in units in the last place of the greater, in the sides' precision."""
        with np.errstate(all="ignore"):  # what is not finite is left out when written
            unit = float(np.spacing(self._dtype.type(max(abs(a), abs(b)))))
            return abs(a - b) / unit if unit else 0.0


def _greater(a: float, b: float) -> float:
    return float(np.maximum(a, b))  # a NaN stays


def _number(value: float | None) -> float | None:
    """Return a number of JSON, which knows neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float | None, digits: int) -> float | None:
    value = _number(value)
    return None if value is None else float(f"{value:.{digits}g}")


def _by_replica(points: Sequence[Sequence[float]]) -> list[list[float | None]]:
    most = max(map(len, points), default=0)
    return [
        [_number(shares[i]) if i < len(shares) else None for shares in points]
        for i in range(most)
    ]
