"""Two tensors -> how far they are apart, and whether that is a mismatch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from parity.base.errors import NumericFailure
from parity.trace.reduced import Reduced
from parity.trace.rungs import rung_of

# What stands for a side's label where a side is compared with the oracle: when the oracle
# trains by itself, and when it computes one step from what the side recorded.
ORACLE = "oracle"
ONE_STEP = "oracle, one step"

_LAST_WHOLE = 2.0**53  # up to which float64 holds every whole number
_MOST_PARTS = 32  # of an axis in the map of a wrong tensor
_KINKED = 0.02  # the share of zeros from which an output is that of a kinked function, a ReLU


class Allowance(Protocol):
    """How much the elements of a tensor may differ; see `Tolerance`, which is one."""

    @property
    def step(self) -> float: ...

    def allowed(self, a: np.ndarray, b: np.ndarray, largest: float = 0.0) -> np.ndarray: ...

    def smallest(self, largest: float) -> float: ...


@dataclass(frozen=True)
class Place:
    """Where in a run: step, tensor and index of an element."""

    step: int
    tensor: str
    index: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"step": self.step, "tensor": self.tensor, "index": list(self.index)}

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}], step {self.step}"


@dataclass
class Distance:
    """The worst of many comparisons of one kind.

    Attributes:
      absolute: the largest |a - b|.
      relative: the largest |a - b|, divided by the largest magnitude in that tensor.
      where: the place of `relative`.
      used: the largest share of the allowed difference; above 1 is a mismatch. None: not
        judged.
      by: what was compared instead of the elements; empty: the elements were.
    """

    absolute: float = 0.0
    relative: float = 0.0
    where: Place | None = None
    used: float | None = None
    by: str = ""

    def add(self, other: "Distance") -> None:
        """Add another comparison."""
        self.absolute = max(self.absolute, other.absolute)
        if self.where is None or other.relative > self.relative:
            self.relative, self.where = other.relative, other.where
        if other.used is not None:
            self.used = max(self.used or 0.0, other.used)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        # JSON has neither infinity nor NaN: None where no difference is allowed and there is
        # one, and for the distance from what is no number
        numbers = {
            "worst_absolute": self.absolute,
            "worst_relative": self.relative,
            "used": self.used,
        }
        known = {n: x if math.isfinite(x or 0.0) else None for n, x in numbers.items()}
        return known | {"where": self.where.to_json() if self.where else None}


@dataclass(frozen=True)
class Mismatch:
    """One tensor of one step that differs by more than is allowed.

    Attributes:
      sides: the labels of the two sides.
      place: the element that exceeds the allowed difference most.
      values: label -> that side's value of the element.
      allowed: the difference allowed in the element.
      count: the number of elements that differ too much.
      size: the number of elements in the tensor.
      problem: what is wrong, instead of the values, where the tensors could not be compared.
      within: the side's label, where two parts of one side were compared with each other: its
        replicas, or two of its runs.
      check: the rung that found it, where that is not the tensor's own; see `CHECKS`.
      note: one more line about what was compared, where the labels do not say it all.
      shape: that of the tensor.
      shares: where in the tensor it is wrong, see `_share_map`; empty where it is one number.
      relative: the largest |a - b|, divided by the largest magnitude; None if not measured.
      made: how one side's tensor is made of the other's, as a sentence; empty if unknown. Only
        of checks: where steps are compared, a verdict has `explanations`.
    """

    sides: tuple[str, str]
    place: Place
    values: dict[str, float] = field(default_factory=dict)
    allowed: float = 0.0
    count: int = 0
    size: int = 0
    problem: str = ""
    within: str = ""
    check: str = ""
    note: str = ""
    shape: tuple[int, ...] = ()
    shares: tuple[str, ...] = ()
    relative: float | None = None
    made: str = ""

    @property
    def rung(self) -> str:
        """Return the rung that found it: the tensor's own, or that of a whole run."""
        return self.check or rung_of(self.place.tensor)


def compare_tensor(
    a: np.ndarray,
    b: np.ndarray,
    sides: tuple[str, str],
    step: int,
    name: str,
    tolerance: Allowance | None,
    known: float = 0.0,
    of_kind: float = 0.0,
) -> tuple[Distance, Mismatch | None]:
    """Compare two tensors element by element.

    Args:
      tolerance: how much the elements may differ; None to measure without judging.
      known: the largest share of the allowed difference seen before. Where the largest
        difference stays below that share of the smallest one allowed, no element is examined,
        and `used` is the share of that smallest one: a little too large, never above `known`.
      of_kind: the largest magnitude in all tensors of this kind (all gradients) at this step.

    Returns:
      The distance, and a mismatch if the shapes differ, or any element by more than is allowed.
      Nothing is transposed or broadcast to make the shapes fit.
    """
    if a.shape != b.shape:
        problem = of_each("shape", list(a.shape), list(b.shape), sides)
        return Distance(), Mismatch(sides, Place(step, name, ()), problem=problem)
    scale = max(magnitude(a), magnitude(b))
    if np.isinf(scale) and _may_be_infinite(name):  # equal ones do not differ, nor bound others
        equal = np.isinf(a) & (a == b)
        a, b = (np.where(equal, 0, each) for each in (a, b))
        scale = max(magnitude(a), magnitude(b))
    difference = np.asarray(np.subtract(a, b, dtype=np.float64))
    if not difference.size:
        return Distance(), None
    np.abs(difference, out=difference)
    if scale >= _LAST_WHOLE and a.dtype.kind in "iu" and b.dtype.kind in "iu":
        difference = np.maximum(difference, a != b)  # which float64 rounds away
    index = np.unravel_index(int(np.argmax(difference)), difference.shape)
    largest = float(difference[index])
    distance = Distance(
        absolute=largest,
        relative=largest / scale if scale else 0.0,
        where=Place(step, name, tuple(map(int, index))),
    )
    if tolerance is None:
        return distance, None
    smallest = tolerance.smallest(scale)
    if math.isfinite(largest) and largest <= smallest * min(known, 1.0):
        distance.used = 0.0 if largest == 0 else largest / smallest
        return distance, None
    whole = a, b
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    allowed = tolerance.allowed(a, b, of_kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        # a NaN must not count as no difference
        used = np.where(difference == 0, 0.0, difference / allowed)
    index = np.unravel_index(int(np.argmax(used)), used.shape)
    distance.used = float(used[index]) if not np.isnan(used[index]) else math.inf
    if distance.used <= 1:
        return distance, None
    mismatch = Mismatch(
        sides,
        Place(step, name, tuple(map(int, index))),
        dict(zip(sides, (each[index].item() for each in whole), strict=True)),
        float(allowed[index]),
        int(np.count_nonzero(~(used <= 1))),
        used.size,
        shape=used.shape,
        shares=_share_map(used) if used.size > 1 else (),
        relative=distance.relative,
    )
    return distance, mismatch


def _share_map(used: np.ndarray) -> tuple[str, ...]:
    """Return the largest share of the bound in each part of a tensor, as a map.

    Returns:
      A text for each part of the first axis, with a digit for each part of the second: 0 for
      equal, 1 to 5 for each fifth of the bound, 6 for more, 7, 8 and 9 for more than 10, 100
      and 1000 times the bound. A vector is one text. The largest of all further axes counts,
      and of neighbours where an axis is longer than `_MOST_PARTS`.
    """
    table = used.reshape(*used.shape[:2], -1).max(-1) if used.ndim > 1 else used[None]
    for axis, length in enumerate(table.shape):
        first = range(0, length, -(-length // _MOST_PARTS))
        table = np.maximum.reduceat(table, first, axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = np.nan_to_num(np.log10(table), nan=3).clip(0, 3)
    digits = np.where(table <= 1, np.ceil(5 * table), 6 + np.floor(beyond))
    return tuple("".join(f"{each:.0f}" for each in row) for row in digits.tolist())


def other_type(
    a: np.ndarray | Reduced,
    b: np.ndarray | Reduced,
    sides: tuple[str, str],
    step: int,
    name: str,
) -> Mismatch | None:
    """Return the mismatch of two tensors of different types; None if they are of one type.

    Equal values do not make up for it: 3.0 is no token, and a float32 in a run of float64 has
    lost digits that a later step may need. Integers are the exception, since JAX has none of 64
    bits, and so are truth values: nothing is lost where they are equal.
    """
    if a.dtype == b.dtype or (a.dtype.kind in "biu" and b.dtype.kind in "biu"):
        return None
    problem = of_each("type", a.dtype, b.dtype, sides)
    return Mismatch(sides, Place(step, name, ()), problem=problem)


def of_each(what: str, a: object, b: object, sides: tuple[str, str]) -> str:
    """Say what each of two sides has, such as "shape [3] in paddle-1, [4] in the oracle"."""
    return f"{what} {a} in {in_words(sides[0])}, {b} in {in_words(sides[1])}"


def in_words(side: str) -> str:
    """Return a side as sentences name it."""
    return f"the {ORACLE}" if side in (ORACLE, ONE_STEP) else side


def magnitude(array: np.ndarray | Reduced) -> float:
    """Return the largest magnitude in an array; NaN if it holds one, zero if it is empty."""
    if isinstance(array, Reduced):
        return array.magnitude
    if not array.size:
        return 0.0
    return float(np.maximum(float(array.max()), -float(array.min())))


def flips(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many elements of a kinked function's output are zero on one side alone."""
    if a.shape != b.shape or a.dtype.kind != "f" or not a.size:
        return 0
    zeros = (a == 0), (b == 0)
    if min(float(each.mean()) for each in zeros) < _KINKED:
        return 0
    return int((zeros[0] != zeros[1]).sum())


def check_numbers(
    tensors: Mapping[str, Any], side: str, step: int, names: Sequence[str]
) -> None:
    """Check that a recorded step holds only finite numbers, or infinities that mean something.

    Raises:
      NumericFailure: for the first NaN or infinity in the order of computation.
    """
    for name in names:
        array, infinite = tensors.get(name), _may_be_infinite(name)
        if isinstance(array, Reduced):
            if array.nan or (array.infinite and not infinite):
                found = f"{array.nan} NaN and {array.infinite} infinities"
                raise NumericFailure(f"{side}: {found} in {name}, step {step}")
        elif array is not None and not np.all(np.isfinite(array)):
            bad = np.isnan(array) if infinite else ~np.isfinite(array)
            if not bad.any():
                continue
            index = tuple(map(int, np.argwhere(bad)[0])) if array.ndim else ()
            place = Place(step, name, index)
            raise NumericFailure(f"{side}: {array[index]} in {place}{_replica(tensors, place)}")


def _may_be_infinite(name: str) -> bool:
    """Return whether infinities of a tensor mean something.

    In a batch they mask logits; a score of -inf means that a search found fewer hypotheses, a
    perplexity of inf that the exponential of the loss overflows.
    """
    return name.startswith(("batch/", "decode/")) or name.endswith("/perplexity")


def _replica(tensors: Mapping[str, np.ndarray], place: Place) -> str:
    """Return which replica computed an element of a tensor whose first axis is rows."""
    of_rows = ("forward/", "activation_gradient/")
    if not place.tensor.startswith(of_rows) or "batch/sizes" not in tensors:
        return ""
    bounds = np.cumsum(tensors["batch/sizes"])
    return f", replica {int(np.searchsorted(bounds, place.index[0], side='right'))}"
