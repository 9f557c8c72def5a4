"""How far two values of one tensor may lie apart: one table, a measured reason per row."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tolerance:
    """What an element may differ by.

        |a - b| <= relative * max(|a|, |b|) + floor * (largest magnitude in the tensor)

    The floor is there because the rounding error of a sum is as large as its largest terms, not
    as its result: an element that nearly cancels is no more exact than its neighbours.

    Attributes:
      relative: share of the element itself.
      floor: share of the tensor's largest magnitude, over both sides.
    """

    relative: float
    floor: float

    def allowed(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the greatest difference allowed, elementwise, for float64 arrays."""
        magnitude: np.ndarray = np.maximum(np.abs(a), np.abs(b))
        floor = float(self.floor * magnitude.max(initial=0.0))
        return np.asarray(self.relative * magnitude + floor)

    def __str__(self) -> str:
        if not (self.relative or self.floor):
            return "exact"
        if self.relative == self.floor:
            return f"{self.floor:g}"
        return f"{self.relative:g} and {self.floor:g}"


EXACT = Tolerance(0.0, 0.0)

# (dtype, rung) -> tolerance.
TABLE: dict[tuple[str, str], Tolerance] = {
    ("float64", "batch"): EXACT,
    ("float32", "batch"): EXACT,
    ("float64", "replicas"): EXACT,
    ("float32", "replicas"): EXACT,
    ("float64", "forward"): Tolerance(1e-11, 1e-11),
    ("float64", "loss"): Tolerance(1e-11, 1e-11),
    ("float64", "gradient"): Tolerance(1e-11, 1e-11),
    ("float64", "optimizer"): Tolerance(1e-11, 1e-11),
    ("float64", "weight"): Tolerance(1e-11, 1e-11),
    ("float32", "forward"): Tolerance(1e-5, 1e-5),
    ("float32", "loss"): Tolerance(1e-5, 1e-5),
    ("float32", "gradient"): Tolerance(1e-4, 1e-4),
    ("float32", "optimizer"): Tolerance(1e-5, 1e-5),
    ("float32", "weight"): Tolerance(1e-5, 1e-5),
}
