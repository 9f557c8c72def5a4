"""Compare two sides, or a side with the oracle, on every rung of a training step."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from parity.compare.findings import Finding
from parity.compare.steps import StepBounds, compare_step
from parity.compare.tensors import Distance, Mismatch, compare_tensor
from parity.twins.compare.rounding_bounds import bounds_of
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.oracle.rounding import Rounding
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec

Tensors = Mapping[str, np.ndarray]


class PairComparison:
    """Compares pairs of one run.

    Args:
      spec: what was trained.
      names: the tensors of a step, in the order of computation.
    """

    def __init__(self, spec: Spec, names: list[str]):
        self._dtype = spec.training.dtype
        self._loop = [f"forward/{n}" for n in NETWORKS[spec.network].loop(spec.model)]
        self._batch = [name for name in names if name.startswith(("batch/", "schedule/"))]
        others = ("batch/", "schedule/", "read/", "replicas/", "decode/", "evaluate/")
        self._rest = [name for name in names if not name.startswith(others)]

    def compare(
        self,
        a: Tensors,
        b: Tensors,
        sides: tuple[str, str],
        step: int,
        known: Mapping[str, Distance] | None = None,
        *,
        judge: bool = True,
        rounding: Rounding | None = None,
    ) -> Finding:
        """Compare one step of a pair; of its mismatches, that which is computed first is kept.

        Args:
          known: as for `compare_step`.
          judge: whether to judge more than the batch, which is always exact.
          rounding: the rounding error of the step, where b is the oracle's.
        """
        batch, rest = list(self._batch), list(self._rest)
        if len({RecordedUpdate.of(each) is None for each in (a, b)}) > 1:
            # an asynchronous side with one worker, and one that is synchronous
            batch = [name for name in batch if not name.startswith("schedule/")]
        if _different_replicas(a, b):
            batch.remove("batch/sizes")
            rest.remove("loss/replicas")
        bounds = bounds_of(self._dtype, rounding) if judge else None
        found = compare_step(a, b, sides, step, batch, bounds_of(self._dtype))
        found += compare_step(a, b, sides, step, rest, bounds, known)
        if found.first is None:
            return found
        of_step = bounds_of(self._dtype, rounding)
        first = first_in_loop(a, b, found.first, self._loop, of_step)
        return replace(found, mismatches=(first,))


def _different_replicas(a: Tensors, b: Tensors) -> bool:
    return "batch/sizes" in a and len(a["batch/sizes"]) != len(b["batch/sizes"])


def first_in_loop(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    mismatch: Mismatch,
    loop: Iterable[str],
    bounds: StepBounds,
) -> Mismatch:
    """Return the mismatch that is computed first, where a loop over time computes the tensors.

    In a loop, every tensor of a time step affects all of the next one. So the first mismatch is
    at the earliest time step, and within it in the tensor that is computed first.

    Args:
      mismatch: the mismatch in the first tensor that differs, in the order of names.
      loop: the names of the tensors [batch, time, ...] that one loop computes, in the order in
        which it does; a mismatch in any other tensor is returned as it is.
      bounds: the bounds of the step.
    """
    names = list(loop)
    if mismatch.place.tensor not in names or mismatch.problem:
        return mismatch
    found = []
    for place, name in enumerate(names):
        if name not in a or name not in b or a[name].shape != b[name].shape:
            continue
        x, y = (np.asarray(each[name], np.float64) for each in (a, b))
        wrong = ~(np.abs(x - y) <= bounds.find(name).allowed(x, y))
        steps = wrong.reshape(*wrong.shape[:2], -1).any(axis=(0, 2))
        if steps.any():
            found.append((int(np.argmax(steps)), place, name))
    _, _, name = min(found)
    step, sides = mismatch.place.step, mismatch.sides
    tolerance = bounds.find(name)
    return compare_tensor(a[name], b[name], sides, step, name, tolerance)[1] or mismatch


def in_order_of_loop(spec: Spec, names: list[str]) -> list[str]:
    """Return the names, with those that a loop computes in the order of its steps."""
    loop = [f"forward/{name}" for name in NETWORKS[spec.network].loop(spec.model)]
    places = iter(loop)
    return [next(places) if name in loop else name for name in names]


def check_replicas(tensors: Tensors, side: str, step: int, names: Iterable[str]) -> Finding:
    """Check that all replicas of a side hold the same weights and optimizer state, to the bit.

    A side whose replicas share one copy records no distances, and nothing can differ.

    Args:
      names: the tensors of a step, in the order of computation.
    """
    held = [name for name in names if name.startswith("replicas/") and name in tensors]
    zeros = {name: np.zeros_like(tensors[name]) for name in held}
    sides = f"{side} replica", f"{side} replica 0"
    found = compare_step(tensors, zeros, sides, step, held, bounds_of("float64"))
    return replace(
        found, mismatches=tuple(replace(each, within=side) for each in found.mismatches)
    )
