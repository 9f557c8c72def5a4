"""How far a step of one of the networks may be from another, or from the oracle's."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parity.compare.steps import StepBounds
from parity.compare.tensors import Allowance, Distance, Mismatch
from parity.trace.rungs import rung_of
from parity.trace.tolerances import TABLE
from parity.twins.oracle.rounding import Rounding

# rung -> how far one step of a side may be from the oracle's, as a multiple of the rounding
# error that parity/twins/oracle/rounding.py measures for each tensor of each step; in either
# precision. The worst seen is over 500 random runs (`python -m parity sweep`). The multiple
# allows for chance: the largest error in a tensor is once or twice its mean over many runs,
# seldom more.
ONE_STEP_TIMES: dict[str, float] = {
    # seen 3.5
    "forward": 7.0,
    # seen 4.6: one number, whose own last place is half of that
    "loss": 7.0,
    # seen 5.5, once, and otherwise 5.1: in kernels of layers whose gates saturate; 2.9 in the
    # norm and in clipping
    "gradient": 7.0,
    # seen 4.0: m and v are rounded three times
    "optimizer": 7.0,
    # seen 4.0: in float64, where the oracle itself rounds too, by one unit roundoff
    "weight": 7.0,
}


@dataclass(frozen=True)
class RoundingMultiple:
    """How much the elements of a tensor may differ, as a multiple of its rounding error.

    Attributes:
      times: the multiple.
      rounding: the size of the rounding error, one number for all elements or one for each.
      step: as for a `Tolerance`; always 0 here.
    """

    times: float
    rounding: float | np.ndarray
    step: float = 0.0

    def allowed(self, a: np.ndarray, b: np.ndarray, largest: float = 0.0) -> np.ndarray:
        """Return the largest difference allowed, elementwise, for float64 arrays."""
        return np.asarray(np.broadcast_to(self.times * self.rounding, a.shape))

    def smallest(self, largest: float) -> float:
        """Return a difference that is allowed in every element."""
        return self.times * float(np.min(self.rounding, initial=np.inf))


# Where more than this share of the allowed difference is used, rounding is measured in more
# runs.
_NEAR = 0.5


def bounds_of(dtype: str, rounding: Rounding | None = None) -> StepBounds:
    """Return the bounds of a step.

    Args:
      dtype: "float32" or "float64".
      rounding: the rounding error of the step, where one side is the oracle's; the bounds are
        then multiples of it, on the rungs that the oracle computes.
    """
    if rounding is not None:
        return _RoundingBounds(dtype, rounding)
    return StepBounds(lambda name: TABLE[dtype, rung_of(name)])


class _RoundingBounds(StepBounds):
    """Multiples of the rounding error that is measured for each tensor of the step."""

    def __init__(self, dtype: str, rounding: Rounding):
        self._dtype, self._rounding = dtype, rounding
        super().__init__(self._find)

    def _find(self, name: str) -> Allowance:
        times = ONE_STEP_TIMES.get(rung_of(name))
        if times is None:
            return TABLE[self._dtype, rung_of(name)]
        return RoundingMultiple(times, self._rounding.scale(name))

    def accepts(
        self, name: str, compare: Callable[[Allowance], tuple[Distance, Mismatch | None]]
    ) -> Distance | None:
        """Return the distance of a tensor that the bounds of the last steps allow, or None.

        Its share is one of the bound that the last steps let expect: at most `_NEAR`, for that
        bound may be far below the one that a measurement gives.
        """
        times = ONE_STEP_TIMES.get(rung_of(name))
        expected = None if times is None else self._rounding.expected(name)
        if times is None or expected is None:
            return None
        likely, least = expected
        distance, mismatch = compare(RoundingMultiple(times, likely))
        share = distance.used or 0.0
        if mismatch is None and distance.absolute <= times * least and share <= _NEAR:
            return distance
        return None

    def again(self, name: str, share: float, most: float) -> Allowance | None:
        """Return the bound that more runs of the oracle give to a tensor near to its own."""
        near = math.isinf(share) or share > max(_NEAR, most)
        if rung_of(name) not in ONE_STEP_TIMES or not near:
            return None
        return self._find(name) if self._rounding.refine(name) else None
