"""How far a step of one of the networks may be from another, or from the oracle's."""

import math
from collections.abc import Callable

from parity.compare.steps import Bound, StepBounds
from parity.compare.tensors import Distance, Mismatch
from parity.trace.rungs import rung_of
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE, RoundingMultiple
from parity.twins.oracle.rounding import Rounding

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

    def _find(self, name: str) -> Bound:
        times = ONE_STEP_TIMES.get(rung_of(name))
        if times is None:
            return TABLE[self._dtype, rung_of(name)]
        return RoundingMultiple(times, self._rounding.scale(name))

    def accepts(
        self, name: str, compare: Callable[[Bound], tuple[Distance, Mismatch | None]]
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

    def again(self, name: str, share: float, most: float) -> Bound | None:
        """Return the bound that more runs of the oracle give to a tensor near to its own."""
        near = math.isinf(share) or share > max(_NEAR, most)
        if rung_of(name) not in ONE_STEP_TIMES or not near:
            return None
        return self._find(name) if self._rounding.refine(name) else None
