"""Compares tensors of which one side, or both, recorded statistics or a sample alone.

Where all elements are within their bounds, so are the statistics: no element is farther than
the bound of the largest one, nor then is the mean, and the norm not farther than that times the
root of the number of elements. So a mismatch here is one of elements, while a match says less.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.compare.tensors import Distance, Mismatch, Place, compare_tensor, of_each
from parity.trace.folder import crc32
from parity.trace.reduced import SAMPLE, Reduced, places, reduce
from parity.trace.tolerances import Tolerance

# What was compared, the least telling last.
CHECKSUMS, SAMPLES, STATISTICS = HOW = (
    "equal checksums",
    "statistics and a sample of elements",
    "statistics",
)
_ROUNDING = 64  # units roundoff that sums of other orders may be apart
Pair = tuple[Reduced, Reduced]


def compare_reduced(
    a: np.ndarray | Reduced,
    b: np.ndarray | Reduced,
    sides: tuple[str, str],
    step: int,
    name: str,
    tolerance: Tolerance | None,
    of_kind: float = 0.0,
) -> tuple[Distance, Mismatch | None]:
    """Compare two tensors of which at least one was not recorded whole.

    Args:
      tolerance: how much the elements may differ; None to measure nothing.
      of_kind: the largest magnitude in all tensors of this kind (all gradients) at this step.
    """
    place = Place(step, name, ())
    if a.shape != b.shape:
        problem = of_each("shape", list(a.shape), list(b.shape), sides)
        return Distance(), Mismatch(sides, place, problem=problem)
    if any(len(each.parts) > 1 and ("sum", None) in each.steps for each in _reduced(a, b)):
        problem = "a sum of tensors that were not recorded whole; record them in full"
        return Distance(), Mismatch(sides, place, problem=problem)
    pairs, whole = _pairs(a, b)
    if all(x.crc32 and x.crc32 == y.crc32 for x, y in pairs):
        return Distance(used=0.0, by=CHECKSUMS), None
    distance = Distance(by=STATISTICS)
    if tolerance is None:
        return distance, None
    known = all(x.crc32 and y.crc32 and x.dtype == y.dtype for x, y in pairs)
    if known and not (tolerance.relative or tolerance.floor or tolerance.step):
        problem = "the checksums differ, and they must be equal to the bit"
        return replace(distance, used=math.inf), Mismatch(sides, place, problem=problem)
    largest = max(each.magnitude for each in whole)
    wide = tolerance.floor * largest + tolerance.step * of_kind
    bound = tolerance.relative * largest + wide
    for x, y in pairs:
        for what, mine, other, allowed in _differences(x, y, bound, largest):
            apart = abs(mine - other)
            used = 0.0 if apart == 0 else apart / allowed if allowed else math.inf
            distance.used = max(distance.used or 0.0, used)
            if used > 1:
                problem = (
                    f"judged by statistics: {what} {mine:.9g} against {other:.9g}, "
                    f"{allowed:.3g} allowed"
                )
                return distance, Mismatch(sides, place, problem=problem)
    of_sample = replace(tolerance, floor=0.0, step=1.0)
    for x, y in pairs:
        if x.sample is None or y.sample is None:
            return distance, None
        found, wrong = compare_tensor(
            x.sample, y.sample, sides, step, name, of_sample, of_kind=wide
        )
        distance.used = max(distance.used or 0.0, found.used or 0.0)
        if wrong is not None:
            chosen = places(x.shape)
            index = [int(each[i]) for each, i in zip(chosen, wrong.place.index, strict=True)]
            u, v = wrong.values.values()
            problem = (
                f"judged by a sample of {wrong.size} elements: {wrong.count} differ, such as "
                f"{index} as recorded, {u!r} against {v!r}, {wrong.allowed:.3g} allowed"
            )
            return distance, Mismatch(sides, place, problem=problem)
    distance.by = SAMPLES
    return distance, None


def _reduced(*tensors: np.ndarray | Reduced) -> Iterator[Reduced]:
    return (each for each in tensors if isinstance(each, Reduced))


def _pairs(a: np.ndarray | Reduced, b: np.ndarray | Reduced) -> tuple[list[Pair], Pair]:
    """Return what of the two was recorded alike, and the two themselves.

    A whole tensor is brought into the layout in which the other one was reduced. Where the
    two were reduced in different layouts, what they are together is all there is.
    """
    if isinstance(a, Reduced) and isinstance(b, Reduced):
        if a.steps == b.steps and len(a.parts) == len(b.parts):
            return list(zip(a.parts or (a,), b.parts or (b,), strict=True)), (a, b)
        return [(a, b)], (a, b)
    if isinstance(a, Reduced):
        assert not isinstance(b, Reduced)
        mine = list(a.parts or (a,))
        arrays = [b] if a.split is None else a.split(b)
        pairs = [(x, _like(x, y)) for x, y in zip(mine, arrays, strict=True)]
        return pairs, (a, reduce(b))
    pairs, (x, y) = _pairs(b, a)
    return [(v, u) for u, v in pairs], (y, x)


def _like(reduced: Reduced, array: np.ndarray) -> Reduced:
    """Return a whole tensor reduced as another one was; integers of another width are equal."""
    if reduced.dtype.kind in "biu" and array.dtype.kind in "biu":
        array = array.astype(reduced.dtype)
    detail = "" if reduced.sample is None else SAMPLE
    return reduce(np.ascontiguousarray(array), detail, crc32(array))


def _differences(
    a: Reduced, b: Reduced, bound: float, largest: float
) -> Iterator[tuple[str, float, float, float]]:
    """Yield each statistic, its value on both sides and how far they may be apart."""
    kind = np.float32 if np.float32 in (a.dtype, b.dtype) else np.float64
    rounding = _ROUNDING * float(np.finfo(kind).eps) * largest
    yield "the number of NaN", a.nan, b.nan, 0.0
    yield "the number of infinities", a.infinite, b.infinite, 0.0
    yield "min", a.min, b.min, bound
    yield "max", a.max, b.max, bound
    yield "mean", a.mean, b.mean, bound + rounding
    yield "norm", a.norm, b.norm, (bound + rounding) * math.sqrt(a.size)
