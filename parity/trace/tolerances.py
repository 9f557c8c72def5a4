"""How far two values of a tensor may be apart: one table, each row with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.rungs import RUNGS, WITNESS, can_fit


@dataclass(frozen=True)
class Tolerance:
    """How much the elements of a tensor may differ.

        |a - b| <= relative * max(|a|, |b|) + floor * (largest magnitude in the tensor)
                   + step * (largest magnitude in all tensors of the kind at that step)

    The floor is there because the rounding error of a sum is as large as that of its largest
    terms, not of its result: an element that nearly cancels is no more exact than its
    neighbours. A whole tensor can be such a remainder. Only the differences between the
    gradients of its inputs pass through a softmax, so the kernels of an attention may have
    gradients far below the rounding error of the gradients that they are computed from. The
    last term is for them.

    Attributes:
      relative: share of the element itself.
      floor: share of the largest magnitude in the tensor, on either side.
      step: share of the largest magnitude in all tensors of the kind (all gradients) at that
        step.
      reason: why it is that large; a report prints it for a tolerance that a user declares.
    """

    relative: float
    floor: float
    step: float = 0.0
    reason: str = field(default="", kw_only=True, compare=False)

    def allowed(self, a: np.ndarray, b: np.ndarray, largest: float = 0.0) -> np.ndarray:
        """Return the largest difference allowed, elementwise, for float64 arrays.

        Args:
          largest: the largest magnitude in all tensors of the kind at that step.
        """
        magnitude: np.ndarray = np.maximum(np.abs(a), np.abs(b))
        floor = float(self.floor * magnitude.max(initial=0.0) + self.step * largest)
        return np.asarray(self.relative * magnitude + floor)

    def __str__(self) -> str:
        if not (self.relative or self.floor or self.step):
            return "exact"
        step = f", {self.step:g} of the step" if self.step else ""
        if self.relative == self.floor:
            return f"{self.floor:g}{step}"
        return f"{self.relative:g} of the element, {self.floor:g} of the tensor{step}"

    def smallest(self, largest: float) -> float:
        """Return a difference that is allowed in every element.

        Args:
          largest: the largest magnitude in both tensors.
        """
        return self.floor * largest


EXACT = Tolerance(0.0, 0.0)

# float64, free runs of 200 steps on WikiText-2 (vocabulary 10,000, dropout, clipping): the
# largest difference between the frameworks, or from the oracle, relative to the tensor's
# largest magnitude, was 6.4e-13 in forward and weight (Adam), 2.5e-13 in gradient, 1.9e-13 in
# optimizer, 7.6e-16 in loss. It comes from the order of the sums in products, and from the last
# bits of exp and tanh. Adam divides by the root of the second moment: the relative rounding
# error of a tiny gradient becomes one of the whole step. The bound is 16 times the worst. SGD
# stayed below 3e-14, except for streamed text at learning rate 1: that training amplifies
# rounding beyond the bound (`tiny` at step 73, `tf2fluid` at step 40), and the
# comparison recognizes this.
_FREE_RUN = Tolerance(1e-11, 1e-11)

# (dtype, rung) -> tolerance for free runs in float64, and decoded sentences.
# Free runs in float32 are measured but not judged; the unit roundoff there is 6e-8.
TABLE: dict[tuple[str, str], Tolerance] = {
    ("float64", "batch"): EXACT,
    ("float32", "batch"): EXACT,
    ("float64", "replicas"): EXACT,
    ("float32", "replicas"): EXACT,
    ("float64", "forward"): _FREE_RUN,
    ("float64", "loss"): _FREE_RUN,
    # seen 2.3e-11 relative to itself in one scalar, the scale of an attention, whose gradient
    # nearly cancelled at one of 50 steps: 7.6e-17 of the step's largest gradient
    ("float64", "gradient"): Tolerance(1e-11, 1e-11, step=3e-16),
    ("float64", "optimizer"): _FREE_RUN,
    ("float64", "weight"): _FREE_RUN,
    ("float64", "decode"): _FREE_RUN,
    ("float64", "evaluation"): _FREE_RUN,
    # seen 9.5e-7: products of up to 200 terms, through all layers and time steps
    ("float32", "forward"): Tolerance(1e-5, 1e-5),
    # seen 1.4e-7: one sum over the batch's tokens
    ("float32", "loss"): Tolerance(2e-6, 2e-6),
    # seen 1.3e-5, where gates saturate: 1 - f is zero in float32 but not in float64, and the
    # other terms of the bias's gradient nearly cancel. The last number, a sixth of the unit
    # roundoff, is for the kernels of an attention: seen 3e-4 of the largest magnitude in a
    # tensor where that was 5e-8
    ("float32", "gradient"): Tolerance(1e-4, 1e-4, step=1e-8),
    # seen 1.5e-7: a few operations on each element
    ("float32", "optimizer"): Tolerance(1e-6, 1e-6),
    # seen 8.1e-8: a few operations on each element
    ("float32", "weight"): Tolerance(1e-6, 1e-6),
    # seen 4.5e-7: sums of up to 20 log probabilities, divided by the length penalty. Where the
    # weights amplify rounding more (seen 4.2e-5), 7 times the rounding error of the scores
    # counts
    ("float32", "decode"): Tolerance(1e-5, 1e-5),
    # a mean over the tokens of a batch, as in "loss". Where the weights, or the state that is
    # carried over all batches of a text, amplify rounding more, 7 times the measured rounding
    # error of the losses counts
    ("float32", "evaluation"): Tolerance(2e-6, 2e-6),
    # the same weights, the same searches: as in "decode"
    ("float64", "answers"): _FREE_RUN,
    ("float32", "answers"): Tolerance(1e-5, 1e-5),
    # A run that is resumed or repeated computes what it computed before: every bit. (What one
    # framework resumes from the other's checkpoint is judged like a single step. So is what a
    # witness computes from its batches, which must be those of the sides.)
    **{
        (dtype, rung): EXACT
        for dtype in ("float64", "float32")
        for rung in ("resume", "repeat", "untraced", "counting", WITNESS)
    },
}


def check_declared(tolerances: Mapping[Any, Any]) -> None:
    """Check the tolerances that a user declares.

    Args:
      tolerances: rung, or pattern of names such as "gradient/conv_*" -> tolerance.

    Raises:
      UsageError: for a key that is on no rung, a bound that is negative or not below 1, or a
        tolerance without a reason.
    """
    for key, tolerance in tolerances.items():
        alone = (*RUNGS.values(), "gradient_norm")
        if not isinstance(key, str) or not (key in alone or ("/" in key and can_fit(key))):
            raise UsageError(
                f"tolerance of {key!r}: on no rung; allowed: a rung, or a pattern RUNG/NAME"
            )
        if not isinstance(tolerance, Tolerance):
            raise UsageError(f"tolerance of {key!r} is {tolerance!r}; allowed: a Tolerance")
        for name in ("relative", "floor", "step"):
            value = getattr(tolerance, name)
            known = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not known or not 0 <= value < 1:
                raise UsageError(
                    f"tolerance of {key!r}: {name} is {value!r}; allowed: from 0 to below 1"
                )
        reason: object = tolerance.reason
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError(f"tolerance of {key!r}: no reason; allowed: why it is that large")
