"""The algebra of layouts: from the tensors of a side to the one both sides share, and back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from reprlib import repr as shortened
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.folder import crc32
from parity.trace.reduced import SAMPLE, Reduced, joined, reduce

Tensors = list[np.ndarray]

ALLOWED = (
    "transpose, axes: [...], reshape: [[from], [to]], blocks: [axis, [order]], "
    "concatenate: axis, or of parts of unequal sizes [axis, [sizes]], sum"
)


@dataclass(frozen=True)
class Layout:
    """Steps from the tensors of a side to the one that both sides share.

    `concatenate` and `sum` make one tensor of several; the others change each of them.

    Attributes:
      steps: name and value of each step:
        ("transpose", None): the transpose of a matrix.
        ("axes", (2, 0, 1)): as `numpy.transpose` takes them.
        ("reshape", ((6, 2), (12,))): from one shape to another, in C order; an axis may be -1.
        ("blocks", (0, (1, 0, 2))): blocks of equal size along an axis, block i being block
          order[i] of before.
        ("concatenate", 0): one after the other along an axis, equal parts; or of these
        sizes: (0, (4, 8)).
        ("sum", None): their sum. Gradients and slots of the terms are those of the sum.
    """

    steps: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def read(cls, steps: Any) -> "Layout":
        """Return the layout of a list of plain values: "transpose", {"axes": [1, 0]} ...

        Raises:
          UsageError: for anything else.
        """
        if isinstance(steps, Sequence) and not isinstance(steps, str):
            return cls(tuple(map(_read, steps)))
        raise UsageError(f"layout is {shortened(steps)}; allowed: a list of {ALLOWED}")

    @property
    def sums(self) -> bool:
        """Return whether it adds tensors, so that there is no way back to the very bits."""
        return any(name == "sum" for name, _ in self.steps)

    def apply(self, tensors: Sequence[np.ndarray], *, terms: bool = True) -> np.ndarray:
        """Return the shared tensor.

        Args:
          tensors: those of the side, in the order of its row.
          terms: whether they are weights, whose sum is taken; each gradient or slot of a term
            is that of the sum, and the first one stands for it.

        Raises:
          ValueError: if a step does not fit their shapes.
        """
        found = list(tensors)
        for name, value in self.steps:
            if name == "sum":
                found = [np.sum(found, axis=0)] if terms else found[:1]
            elif name == "concatenate":
                found = [
                    np.concatenate(found, axis=value if isinstance(value, int) else value[0])
                ]
            else:
                found = [_CHANGES[name](each, value) for each in found]
        if len(found) != 1:
            raise ValueError(f"{len(found)} tensors are left; allowed: concatenate or sum")
        return found[0]

    def apply_to_reduced(self, tensors: Sequence[Any], *, terms: bool) -> Reduced:
        """Return what stands for the shared tensor, some of whose tensors are `Reduced`.

        Args:
          terms: as for `apply`.

        Raises:
          ValueError: if a step does not fit their shapes.
        """
        if self.sums and not terms:
            rest = tuple(step for step in self.steps if step[0] != "sum")
            return Layout(rest).apply_to_reduced(tensors[:1], terms=terms)
        parts = [
            each if isinstance(each, Reduced) else reduce(each, SAMPLE, crc32(each))
            for each in tensors
        ]
        if not self.steps:
            return parts[0]
        shape = self.apply([np.broadcast_to(np.int8(0), each.shape) for each in parts]).shape
        sample = parts[0].sample
        if sample is not None:
            of_axes = all(name in ("transpose", "axes") for name, _ in self.steps)
            sample = self.apply([sample]) if of_axes else None
        return joined(
            parts, shape, self.steps, lambda shared: self.invert(shared, len(parts)), sample
        )

    def invert(self, shared: np.ndarray, number: int, *, terms: bool = True) -> Tensors:
        """Return the tensors of the side, so many: the way back.

        Of a sum the first term is all of it, and the others are zero; each gradient or slot of
        a term is that of the sum.

        Args:
          terms: whether they are weights, as for `apply`.

        Raises:
          ValueError: if a step does not fit.
        """
        found = [shared]
        for name, value in reversed(self.steps):
            if name == "sum":
                found += [np.zeros_like(shared) if terms else shared] * (number - 1)
            elif name == "concatenate":
                axis, sizes = (value, ()) if isinstance(value, int) else value
                cuts = list(accumulate(sizes[:-1])) if sizes else number
                found = list(np.split(found[0], cuts, axis=axis))
            else:
                found = [_CHANGES[name](each, _back(name, value)) for each in found]
        return found


def _transpose(array: np.ndarray, value: None) -> np.ndarray:
    return _axes(array, (1, 0))


def _axes(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    if array.ndim != len(axes):
        raise ValueError(f"has shape {list(array.shape)}; its name map allows {len(axes)} axes")
    return array.transpose(axes)


def _reshape(array: np.ndarray, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> np.ndarray:
    before, after = shapes
    fits = len(before) == array.ndim and all(
        size in (-1, found) for size, found in zip(before, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"has shape {list(array.shape)}; its name map allows {list(before)}")
    return array.reshape(after)


def _blocks(array: np.ndarray, value: tuple[int, tuple[int, ...]]) -> np.ndarray:
    axis, order = value
    parts = np.split(array, len(order), axis=axis)
    return np.concatenate([parts[place] for place in order], axis=axis)


_CHANGES: dict[str, Any] = {
    "transpose": _transpose,
    "axes": _axes,
    "reshape": _reshape,
    "blocks": _blocks,
}


def _back(name: str, value: Any) -> Any:
    """Return the value of the step that undoes one."""
    if name == "axes":
        return tuple(map(int, np.argsort(value)))
    if name == "reshape":
        return value[::-1]
    return (value[0], tuple(map(int, np.argsort(value[1])))) if name == "blocks" else value


def _read(step: Any) -> tuple[str, Any]:
    name, value = step, None
    if isinstance(step, Mapping) and len(step) == 1:
        ((name, value),) = step.items()
    value = _tuples(value)
    numbers = tuple(_numbers(value))
    good = (
        step in ("transpose", "sum")
        or (name == "concatenate" and (numbers == (value,) or _is_sizes(value)))
        or (name == "axes" and numbers == value and _is_permutation(numbers))
        or (
            name == "blocks"
            and isinstance(value, tuple)
            and len(value) == 2
            and isinstance(value[0], int)
            and isinstance(value[1], tuple)
            and _is_permutation(value[1])
        )
        or (
            name == "reshape"
            and isinstance(value, tuple)
            and len(value) == 2
            and all(isinstance(each, tuple) and each.count(-1) <= 1 for each in value)
            and (-1 in numbers or prod(value[0]) == prod(value[1]))
        )
    )
    if not good:
        raise UsageError(f"a step of a layout is {shortened(step)}; allowed: {ALLOWED}")
    return name, value


def _is_sizes(value: Any) -> bool:
    match value:
        case (int(), tuple(sizes)):
            return len(sizes) > 1 and all(isinstance(n, int) and n > 0 for n in sizes)
    return False


def _is_permutation(numbers: Any) -> bool:
    return bool(numbers) and sorted(numbers) == list(range(len(numbers)))


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value
