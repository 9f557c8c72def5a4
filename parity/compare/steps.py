"""One step of two sides: how far each tensor is apart, and which by more than is allowed."""

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from parity.compare.by_statistics import compare_reduced
from parity.compare.findings import Finding, find_in_step
from parity.compare.tensors import (
    Allowance,
    Distance,
    Mismatch,
    Place,
    compare_tensor,
    magnitude,
    other_type,
)
from parity.trace.reduced import Reduced
from parity.trace.rungs import rung_of
from parity.trace.tolerances import Tolerance

Tensors = Mapping[str, np.ndarray]


class StepBounds:
    """How far the tensors of one step may be apart.

    A subclass that measures its bounds may accept a tensor before it measures, and measure
    again where a tensor comes near to its bound.

    Args:
      find: tensor -> its bound.
    """

    def __init__(self, find: Callable[[str], Allowance]):
        self.find = find

    def accepts(
        self, name: str, compare: Callable[[Allowance], tuple[Distance, Mismatch | None]]
    ) -> Distance | None:
        """Return the distance of a tensor that needs no measurement of its bound, or None.

        Args:
          compare: compares the tensor by a given bound.
        """
        return None

    def again(self, name: str, share: float, most: float) -> Allowance | None:
        """Return a more exact bound of a tensor that came near to its own; None if none is.

        Args:
          share: the share of the bound that was used; infinite for a mismatch.
          most: the largest share of its bound that was seen before on its rung.
        """
        return None


def compare_step(
    a: Tensors,
    b: Tensors,
    sides: tuple[str, str],
    step: int,
    names: Iterable[str],
    bounds: StepBounds | None,
    known: Mapping[str, Distance] | None = None,
    *,
    types: bool = False,
) -> Finding:
    """Compare the tensors that two sides recorded of a step.

    Args:
      names: the tensors, in the order in which the first mismatch is searched. One that only
        one side has is a mismatch.
      bounds: how far they may be apart; None to measure without judging.
      known: rung -> the worst distance of earlier steps; it saves work while it stays the
        worst.
      types: whether tensors must be of one type.
    """
    names = list(names)
    shares = {rung: worst.used or 0.0 for rung, worst in (known or {}).items()}
    largest: dict[str, float] = {}
    distances: dict[str, Distance] = {}
    mismatches = []
    for name in names:
        if name not in a or name not in b:
            if name in a or name in b:
                has = sides[0] if name in a else sides[1]
                place = Place(step, name, ())
                mismatches.append(Mismatch(sides, place, problem=f"only {has} has it"))
            continue
        rung, kind = rung_of(name), name.split("/", 1)[0]
        most = shares.get(rung, 0.0)

        def compare(
            bound: Allowance | None, most: float = most, name: str = name, kind: str = kind
        ) -> tuple[Distance, Mismatch | None]:
            if bound is not None and bound.step and kind not in largest:
                alike = (each for each in names if each in b and each.startswith(f"{kind}/"))
                largest[kind] = max((magnitude(b[each]) for each in alike), default=0.0)
            of_kind = largest.get(kind, 0.0)
            if isinstance(a[name], Reduced) or isinstance(b[name], Reduced):
                assert bound is None or isinstance(bound, Tolerance)  # no pair has another
                return compare_reduced(a[name], b[name], sides, step, name, bound, of_kind)
            return compare_tensor(a[name], b[name], sides, step, name, bound, most, of_kind)

        distance, mismatch = _judged(name, bounds, compare, most)
        if types:
            mismatch = other_type(a[name], b[name], sides, step, name) or mismatch
        distances[name] = distance
        shares[rung] = max(most, distance.used or 0.0)
        if mismatch is not None:
            mismatches.append(mismatch)
    return find_in_step(sides, distances, mismatches)


def _judged(
    name: str,
    bounds: StepBounds | None,
    compare: Callable[..., tuple[Distance, Mismatch | None]],
    most: float,
) -> tuple[Distance, Mismatch | None]:
    """Compare one tensor by its bound, and again by a more exact one where it comes near."""
    if bounds is None:
        return compare(None)
    accepted = bounds.accepts(name, compare)
    if accepted is not None:
        return accepted, None
    distance, mismatch = compare(bounds.find(name))
    better = bounds.again(name, math.inf if mismatch else distance.used or 0.0, most)
    return (distance, mismatch) if better is None else compare(better, 0.0)
