"""Rounding perturbations: small changes of the results of exponentials, to measure rounding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

_active: ContextVar[Callable[[np.ndarray], np.ndarray] | None] = ContextVar(
    "perturbation", default=None
)


@contextmanager
def perturbation(change: Callable[[np.ndarray], np.ndarray]) -> Iterator[None]:
    """Change the results of all exponentials a little; see parity/oracle/rounding.py."""
    token = _active.set(change)
    try:
        yield
    finally:
        _active.reset(token)


def perturbed(x: np.ndarray) -> np.ndarray:
    """Apply the active rounding perturbation; the identity where none is active."""
    change = _active.get()
    return x if change is None else change(x)
