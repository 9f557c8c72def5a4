"""Tensors that must be equal in every bit: two runs of the same computation on one side."""

from collections.abc import Iterable, Mapping

import numpy as np

from parity.compare.tensors import Mismatch, Place

Tensors = Mapping[str, np.ndarray]


def first_difference(
    a: Tensors, b: Tensors, sides: tuple[str, str], step: int, names: Iterable[str]
) -> Mismatch | None:
    """Return the first tensor that differs in any bit, at its first element that differs.

    Args:
      names: the tensors to compare, in order.
    """
    for name in names:
        if name not in a or name not in b:
            has = sides[0] if name in a else sides[1]
            return Mismatch(sides, Place(step, name, ()), problem=f"only {has} has it")
        x, y = a[name], b[name]
        if x.shape != y.shape or x.dtype != y.dtype:
            seen = [f"{each.dtype} {list(each.shape)}" for each in (x, y)]
            return Mismatch(sides, Place(step, name, ()), problem=" against ".join(seen))
        differs = _bits(x) != _bits(y)
        if not differs.any():
            continue
        index = np.unravel_index(int(np.argmax(differs)), x.shape)
        return Mismatch(
            sides,
            Place(step, name, tuple(map(int, index))),
            dict(zip(sides, (float(x[index]), float(y[index])), strict=True)),
            0.0,
            int(np.count_nonzero(differs)),
            x.size,
        )
    return None


def _bits(array: np.ndarray) -> np.ndarray:
    """Return the elements as integers of their size, so that NaN equals itself."""
    contiguous = np.ascontiguousarray(array).reshape(-1)
    return contiguous.view(np.dtype(f"u{array.dtype.itemsize}"))
