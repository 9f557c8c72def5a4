"""Random rounding perturbations for one run of the oracle, to measure rounding.

The results of exponentials are moved, and sums are taken in another order. See
parity/twins/oracle/rounding.py for what the runs are for.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

Axes = int | tuple[int, ...] | None

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}  # unit roundoff

# How many unit roundoffs the results of exponentials are moved by: one, and more where gates
# are saturated. The errors of tanh and sigmoid, measured on 800,000 numbers in [-12, 12] and
# around zero: TensorFlow's are at most 6.9 and 3.2 (float64), 5.6 and 7.4 (float32), Paddle's
# 2.6 and 2.5, 6.2 and 2.5, most of the largest beyond 3; the root mean squares of all are 0.6
# to 1.5.
_EXPONENTIALS, _SATURATED, _FROM = 1.0, 5.0, 0.95

# The runs scale the terms of a sum by a number between 1 and this. It is close to 1, because
# the largest term of a softmax is exactly 1 in every engine: just below the next power of two,
# the partial sums would be rounded half as much.
_SCALED = 1.05

# A sum of two numbers errs by at most half a unit in its last place, and by 0.42 unit roundoffs
# of it on average (the root mean square). With 16 parts, what is drawn for a product errs like
# one that is summed term by term: for the gradient of what is projected to 680 words, with 4 to
# 64 units, by 18 to 27 unit roundoffs of its largest element, and 18 to 24. PyTorch's MKL takes
# products in float64 so (19 to 26). NumPy's OpenBLAS sums in more parts, the narrower the more,
# and errs by 5 to 17.
_OF_A_SUM, _PARTS = 0.42, 16

# The number of terms to sum at a time: they fit into a core's cache, in float64 with all of
# their partial sums.
_BLOCK = {"float32": 2**17, "float64": 2**15}

Tensors = Mapping[str, np.ndarray]


class RoundingNoise:
    """The random perturbations of one run, the same whenever it is repeated."""

    def __init__(self, run: int, dtype: str = "float32"):
        self._run, self._dtype = run, np.dtype(dtype)
        self._magnified = UNIT["float32"] / UNIT[dtype]
        self._draw = np.random.Generator(np.random.PCG64(run))

    def any(self, array: np.ndarray, units: float | np.ndarray = 1.0) -> np.ndarray:
        """Return an array in float32, each element moved by up to so many unit roundoffs."""
        # in place and in float32, because it may be the softmax of a large vocabulary
        moved = self._draw.random(np.shape(array), np.float32)  # in [0, 1)
        moved -= np.float32(0.5)
        moved *= np.float32(2 * UNIT["float32"]) * units
        moved *= array
        moved += array
        return moved

    def exponentials(self, array: np.ndarray) -> np.ndarray:
        """Return the results of exponentials, moved."""
        size = np.abs(array)
        saturated = (size > _FROM) & (size <= 1)
        units = np.where(saturated, np.float32(_SATURATED), np.float32(_EXPONENTIALS))
        return self.any(array, units)

    def sum(self, array: np.ndarray, axes: Axes) -> np.ndarray:
        """Return a sum along axes, kept as axes of size 1, one term after another.

        Of two axes, the first varies slowest in some runs (batch-major) and the second in
        others (time-major). Its terms are scaled by a number of each run's own: where one term
        exceeds all others, as in the softmax of a confident network, the partial sums hardly
        move from run to run, and would all be rounded alike.
        """
        summed = _listed(axes, array.ndim)
        if not array.size:  # an asynchronous worker may have no real token
            return np.asarray(array.sum(axis=tuple(summed), keepdims=True))
        others = [axis for axis in range(array.ndim) if axis not in summed]
        kept = [1 if axis in summed else size for axis, size in enumerate(array.shape)]
        if self._run % 2:
            summed.reverse()
        terms = np.transpose(array, [*summed, *others])
        terms = terms.reshape(array.size // math.prod(kept), -1)
        by = self._dtype.type(self._draw.uniform(1, _SCALED))
        width = max(1, _BLOCK[self._dtype.name] // len(terms))
        from_worse_end = self._magnified_from_worse_end
        if self._dtype == np.float32:
            from_worse_end = _from_worse_end
        total = np.concatenate(
            [
                from_worse_end(terms[:, start : start + width] * by)
                for start in range(0, terms.shape[1], width)
            ]
        )
        return np.asarray((total / by).astype(np.float32).reshape(kept))

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return a matrix product, each of its sums taken one term after another.

        That would take long. So it is taken in a few parts, and the rounding of the partial
        sums, each of the size that it has at the end of its part, is drawn.
        """
        total = np.zeros((len(a), b.shape[1]), np.float32)
        squares = np.zeros_like(total)
        parts = np.array_split(a, _PARTS, axis=1), np.array_split(b, _PARTS)
        for left, right in zip(*parts, strict=True):
            total += left @ right
            squares += len(right) * total**2
        error = np.float32(_OF_A_SUM * UNIT["float32"]) * np.sqrt(squares)
        return total + error * self._draw.standard_normal(total.shape, np.float32)

    def _magnified_from_worse_end(self, terms: np.ndarray) -> np.ndarray:
        """Return `_from_worse_end` of float64 terms, its errors magnified to those of float32.

        They are rounded as float64 is, and what that loses is magnified. Small terms may be
        below the last place of float32, where they would all be lost alike, or not be rounded
        at all.
        """
        from_last = _larger_from_last(terms, terms.sum(axis=0))
        if from_last.any():
            terms = np.where(from_last, terms[::-1], terms)
        partial_sums = np.cumsum(terms, axis=0)
        total: np.ndarray = partial_sums[-1]
        before, after, added = partial_sums[:-1], partial_sums[1:], terms[1:]
        taken = after - before
        missed = (before - (after - taken)) + (added - taken)  # exact; Knuth's TwoSum
        return np.asarray(total - (self._magnified - 1) * missed.sum(axis=0))

    def weights(self, snapshot: Tensors) -> dict[str, np.ndarray]:
        """Return the moved weights of a snapshot: parameter name -> array."""
        return {
            name.split("/", 1)[1]: self.any(array)
            for name, array in snapshot.items()
            if name.startswith("weight/")
        }


def _from_worse_end(terms: np.ndarray) -> np.ndarray:
    """Return the sum of each column, in float32, row after row from the end that errs more.

    An engine takes all rows from the same end. So a column is summed from the end where the
    partial sums are larger: runs that start at either end in turn show less than the engine
    that starts at the worse one.
    """
    total = _row_after_row(terms)
    from_last = _larger_from_last(terms, total)
    if from_last.any():
        total = np.where(from_last, _row_after_row(terms[::-1]), total)
    return total


def _row_after_row(terms: np.ndarray) -> np.ndarray:
    """Return the sum of each column, one row added after another."""
    if terms.shape[1] == 1:  # NumPy would take it for a list of numbers, and add in pairs
        return np.asarray(np.cumsum(terms, axis=0)[-1])
    return np.asarray(np.add.reduce(np.ascontiguousarray(terms), axis=0))


def _larger_from_last(terms: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return for each column whether its partial sums are larger from the last row on."""
    middle_first = (len(terms) - 1) / 2 - np.arange(len(terms), dtype=terms.dtype)
    found: np.ndarray = (middle_first @ terms) * total < 0
    return found


def _listed(axes: Axes, rank: int) -> list[int]:
    """Return axes as a list of numbers from 0 on."""
    if axes is None:
        return list(range(rank))
    return [axis % rank for axis in (axes if isinstance(axes, tuple) else (axes,))]


_active: ContextVar[RoundingNoise | None] = ContextVar("perturbation", default=None)


@contextmanager
def perturbation(change: RoundingNoise) -> Iterator[None]:
    """Round as a perturbation does, within this context."""
    token = _active.set(change)
    try:
        yield
    finally:
        _active.reset(token)


def perturbed(x: np.ndarray) -> np.ndarray:
    """Apply the active perturbation to results of exponentials; the identity without one."""
    change = _active.get()
    return x if change is None else change.exponentials(x)


def summed(x: np.ndarray, axis: Axes = None, *, keepdims: bool = False) -> np.ndarray:
    """Return a sum, in the order of the active perturbation; NumPy's own without one."""
    change = _active.get()
    if change is None:
        return np.asarray(x.sum(axis=axis, keepdims=keepdims))
    total = change.sum(x, axis)
    return total if keepdims else np.squeeze(total, axis)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a matrix product, as the active perturbation sums it; NumPy's own without one."""
    change = _active.get()
    found: np.ndarray = a @ b if change is None else change.product(a, b)
    return found
