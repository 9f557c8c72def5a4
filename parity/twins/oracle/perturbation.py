"""Rounding perturbations: small changes of the oracle's arithmetic, to measure rounding.

The results of exponentials are moved, and sums are taken in another order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import numpy as np

Axes = int | tuple[int, ...] | None


class Perturbation(Protocol):
    """How one run of the oracle rounds; see parity/twins/oracle/rounding.py."""

    def exponentials(self, array: np.ndarray) -> np.ndarray:
        """Return the results of exponentials, moved a little."""

    def sum(self, array: np.ndarray, axes: Axes) -> np.ndarray:
        """Return the sum along some axes, kept as axes of size 1, in an order of its own."""


_active: ContextVar[Perturbation | None] = ContextVar("perturbation", default=None)


@contextmanager
def perturbation(change: Perturbation) -> Iterator[None]:
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
