"""What stands for a tensor that is not recorded whole: its statistics, and a sample of it."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.folder import crc32
from parity.trace.rungs import RUNGS, can_fit, fits

FULL, SAMPLE, STATISTICS = DETAILS = ("full", "sample", "statistics")
Detail = str | Mapping[str, str]

_SAMPLED = 1024  # the most elements of a sample
# Elements of float32 that are reduced at once: they stay in the cache. A quarter of them in
# float64, of which BLAS would multiply more in threads, waiting longer than it computes.
_BLOCK = 1 << 15
# Where float32 can hold the squares; elsewhere float64 does.
_SQUARES = 1e-12, 1e12
_GOLDEN = 0.6180339887498949
_KEYS = ("min", "max", "mean", "norm", "nan", "infinite")


def check_detail(detail: Any) -> None:
    """Check how much of tensors is to be recorded.

    Raises:
      UsageError: for a detail, or a pattern of names, that is not allowed.
    """
    rows = detail.items() if isinstance(detail, Mapping) else [("*", detail)]
    for pattern, each in rows:
        if each not in DETAILS:
            raise UsageError(f"detail is {each!r}; allowed: {', '.join(DETAILS)}")
        if not isinstance(pattern, str) or not set(pattern) & set("/*"):
            raise UsageError(f"detail of {pattern!r}; allowed: a pattern, such as 'forward/*'")
        if not can_fit(pattern):
            raise UsageError(
                f"detail of {pattern!r}: on no rung; allowed beginnings: {', '.join(RUNGS)}"
            )


def detail_of(name: str, detail: Detail) -> str:
    """Return how much of a tensor is recorded: the first pattern that fits counts."""
    rows = {"*": detail} if isinstance(detail, str) else detail
    return next((each for pattern, each in rows.items() if fits(name, pattern)), FULL)


@dataclass(frozen=True)
class Reduced:
    """A tensor that was not recorded whole.

    Attributes:
      dtype, shape: those of the whole tensor.
      min, max, mean, norm: of its finite elements, the norm being the root of the sum of their
        squares; 0 if there are none.
      nan, infinite: the number of its other elements.
      crc32: the checksum of the whole tensor; empty where it is unknown.
      sample: its elements at `places`, an array of as many axes; None: none were kept.
      parts, steps, split: what was recorded, the steps of the layout that makes this of it, and
        what undoes them; none where it is what was recorded.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    min: float
    max: float
    mean: float
    norm: float
    nan: int
    infinite: int
    crc32: str = ""
    sample: np.ndarray | None = None
    parts: tuple["Reduced", ...] = ()
    steps: tuple[tuple[str, Any], ...] = ()
    split: Callable[[np.ndarray], list[np.ndarray]] | None = None

    @property
    def size(self) -> int:
        """Return the number of elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def magnitude(self) -> float:
        """Return the largest magnitude of a finite element."""
        return max(-self.min, self.max)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without the checksum."""
        found = {"type": self.dtype.str, "shape": list(self.shape)}
        found |= {key: getattr(self, key) for key in _KEYS}
        return found if self.sample is None else found | {"sample": crc32(self.sample)}


def read_reduced(values: Any, digest: str, sample: np.ndarray | None) -> Reduced:
    """Return what `Reduced.to_json` returned.

    Args:
      digest: the checksum of the whole tensor.

    Raises:
      ValueError: for anything else, or another sample.
    """
    low, high, mean, norm, nan, infinite = numbers = [float(values[key]) for key in _KEYS]
    kept = values.get("sample")
    shape = tuple(map(int, values["shape"]))
    dtype = np.dtype(str(values["type"]))
    known = dtype.kind in "biuf" and min(shape, default=0) >= 0
    if not (known and all(map(math.isfinite, numbers))):
        raise ValueError("no statistics")
    if kept != (None if sample is None else crc32(sample)):
        raise ValueError("another sample")
    if sample is not None and (
        sample.dtype != dtype or sample.shape != tuple(map(len, places(shape)))
    ):
        raise ValueError("no sample of it")
    return Reduced(dtype, shape, low, high, mean, norm, int(nan), int(infinite), digest, sample)


def reduce(array: np.ndarray, detail: str = STATISTICS, digest: str = "") -> Reduced:
    """Return what stands for a tensor, reading it once.

    Args:
      detail: whether to keep a sample.
      digest: the checksum of the tensor, where it is known.
    """
    low, high, total, squares, nan, infinite = math.inf, -math.inf, 0.0, 0.0, 0, 0
    flat = array.reshape(-1)
    length = _BLOCK if array.dtype == np.float32 else _BLOCK // 4
    for start in range(0, flat.size, length):
        block = flat[start : start + length]
        if block.dtype.kind != "f" or block.itemsize < 4:
            block = block.astype(np.float64)
        least, most = float(block.min()), float(block.max())
        if not (math.isfinite(least) and math.isfinite(most)):
            nan += int(np.isnan(block).sum())
            infinite += int(np.isinf(block).sum())
            block = block[np.isfinite(block)]
            least = float(block.min(initial=math.inf))
            most = float(block.max(initial=-math.inf))
        low, high, largest = min(low, least), max(high, most), max(-least, most)
        with np.errstate(over="ignore", invalid="ignore"):
            total += float(block.sum(dtype=None if largest < _SQUARES[1] else np.float64))
            if _SQUARES[0] < largest < _SQUARES[1] or block.dtype == np.float64:
                squares += float(np.dot(block, block))
            elif largest:
                squares += float(np.square(block, dtype=np.float64).sum())
    count = array.size - nan - infinite
    mean = total / max(count, 1)
    if not math.isfinite(mean):  # the sum is beyond the largest number, the mean is not
        mean = float(np.divide(flat[np.isfinite(flat)], count, dtype=np.float64).sum())
    known = (low, high, mean) if count else (0.0, 0.0, 0.0)
    norm = min(math.sqrt(squares), sys.float_info.max)
    sample = np.array(array[np.ix_(*places(array.shape))]) if detail == SAMPLE else None
    return Reduced(array.dtype, array.shape, *known, norm, nan, infinite, digest, sample)


@lru_cache(4096)
def places(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return which indices of each axis a sample has: the same of all axes of one size.

    So the sample of a transposed tensor is the transposed sample.
    """
    most = _SAMPLED
    while math.prod(min(size, most) for size in shape) > _SAMPLED:
        most -= 1
    return [_spread(size, min(size, most)) for size in shape]


def _spread(size: int, count: int) -> np.ndarray:
    """Return so many indices of an axis: multiples of the golden ratio, which has no period."""
    if count == size:
        return np.arange(size)
    found, number = set[int](), 0
    while len(found) < count:
        number += 1
        found.add(int(number * _GOLDEN % 1 * size))
    return np.array(sorted(found))


def joined(
    parts: Sequence[Reduced],
    shape: tuple[int, ...],
    steps: tuple[tuple[str, Any], ...],
    split: Callable[[np.ndarray], list[np.ndarray]],
    sample: np.ndarray | None,
) -> Reduced:
    """Return what stands for a tensor that a layout makes of several, or of one.

    Args:
      steps: those of the layout.
      split: undoes the layout of a whole tensor.
      sample: the elements of the shared tensor at `places`, if they are known.
    """
    size = sum(each.size for each in parts) or 1
    return Reduced(
        parts[0].dtype,
        shape,
        min(each.min for each in parts),
        max(each.max for each in parts),
        sum(each.mean * each.size / size for each in parts),
        math.hypot(*(each.norm for each in parts)),
        sum(each.nan for each in parts),
        sum(each.infinite for each in parts),
        sample=sample,
        steps=steps,
        parts=tuple(parts),
        split=split,
    )
