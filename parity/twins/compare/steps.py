"""One step of two sides -> their distance on every rung, and the first tensor that differs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from parity.compare.tensors import Distance, Mismatch, Place, compare_tensor, magnitude
from parity.trace.rungs import rung_of
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE, RoundingMultiple, Tolerance
from parity.twins.oracle.rounding import Rounding
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec

# Where more than this share of the allowed difference is used, rounding is measured in more
# runs.
_NEAR = 0.5


def compare_step(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    sides: tuple[str, str],
    step: int,
    names: Iterable[str],
    dtype: str,
    *,
    judge: bool = True,
    known: Mapping[str, Distance] | None = None,
    seen: dict[str, Distance] | None = None,
    every: list[Mismatch] | None = None,
    rounding: Rounding | None = None,
) -> tuple[dict[str, Distance], Mismatch | None]:
    """Compare the tensors that two sides recorded of a step.

    Args:
      names: the tensors, in the order in which the first mismatch is searched.
      dtype: "float32" or "float64"; it decides the tolerances.
      judge: whether to compare the differences with the tolerances, or only measure them.
      known: rung -> the worst distance of earlier steps; it saves work while it stays the
        worst.
      seen: if given, it is filled with tensor -> distance.
      every: if given, all mismatches are added to it.
      rounding: the rounding error of the step, where b is the oracle's; the tolerances are then
        multiples of it.

    Returns:
      Rung -> distance, and the first mismatch. A tensor that only one side has is a mismatch.
    """
    names = list(names)
    distances: dict[str, Distance] = {}
    comparison = _Comparison(a, b, sides, step, names, dtype, rounding)
    first: Mismatch | None = None
    for name in names:
        if name not in a and name not in b:
            continue
        if name not in a or name not in b:
            has = sides[0] if name in a else sides[1]
            mismatch = Mismatch(sides, Place(step, name, ()), problem=f"only {has} has it")
        else:
            rung = rung_of(name)
            used = [each[rung].used or 0.0 for each in (known or {}, distances) if rung in each]
            distance, found = comparison.compare(name, used, judge=judge)
            distances.setdefault(rung, Distance()).add(distance)
            if seen is not None:
                seen[name] = distance
            if found is None:
                continue
            mismatch = found
        first = first or mismatch
        if every is not None:
            every.append(mismatch)
    return distances, first


class _Comparison:
    """Compares tensors of one step, each with the tolerance that applies to it."""

    def __init__(
        self,
        a: Mapping[str, np.ndarray],
        b: Mapping[str, np.ndarray],
        sides: tuple[str, str],
        step: int,
        names: list[str],
        dtype: str,
        rounding: Rounding | None,
    ):
        self._a, self._b, self._sides, self._step = a, b, sides, step
        self._names, self._dtype, self._rounding = names, dtype, rounding
        self._largest: dict[str, float] = {}

    def compare(
        self, name: str, used: list[float], *, judge: bool
    ) -> tuple[Distance, Mismatch | None]:
        """Compare one tensor.

        Args:
          used: the shares of the allowed difference seen before on its rung.
        """
        a, b, rung = self._a[name], self._b[name], rung_of(name)
        tolerance: Tolerance | RoundingMultiple | None = None
        measured: Rounding | None = None
        if judge:
            tolerance = TABLE[self._dtype, rung]
            measured = self._rounding if rung in ONE_STEP_TIMES else None
        if measured is not None:
            accepted = self._by_the_last_steps(name, used, measured)
            if accepted is not None:
                return accepted, None
            tolerance = RoundingMultiple(ONE_STEP_TIMES[rung], measured.scale(name))
        of_kind = 0.0
        if tolerance is not None and tolerance.step:
            of_kind = self._largest_of_kind(name.split("/")[0])
        most = max(used, default=0.0)
        distance, mismatch = compare_tensor(
            a, b, self._sides, self._step, name, tolerance, most, of_kind
        )
        near = (distance.used or 0.0) > max(_NEAR, most)
        if measured is not None and (mismatch or near) and measured.refine(name):
            tolerance = RoundingMultiple(ONE_STEP_TIMES[rung], measured.scale(name))
            return compare_tensor(a, b, self._sides, self._step, name, tolerance)
        return distance, mismatch

    def _by_the_last_steps(
        self, name: str, used: list[float], rounding: Rounding
    ) -> Distance | None:
        """Return the distance of a tensor that needs no measurement of this step, or None.

        Its share is one of the bound that the last steps let expect: at most `_NEAR`, for that
        bound may be far below the one that a measurement gives.
        """
        expected = rounding.expected(name)
        if expected is None:
            return None
        likely, least = expected
        times = ONE_STEP_TIMES[rung_of(name)]
        distance, mismatch = compare_tensor(
            self._a[name],
            self._b[name],
            self._sides,
            self._step,
            name,
            RoundingMultiple(times, likely),
            max(used, default=0.0),
        )
        share = distance.used or 0.0
        if mismatch is None and distance.absolute <= times * least and share <= _NEAR:
            return distance
        return None

    def _largest_of_kind(self, kind: str) -> float:
        if kind not in self._largest:
            alike = (n for n in self._names if n in self._b and n.startswith(f"{kind}/"))
            self._largest[kind] = max((magnitude(self._b[n]) for n in alike), default=0.0)
        return self._largest[kind]


def first_in_loop(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    mismatch: Mismatch,
    loop: Iterable[str],
    dtype: str,
    rounding: Rounding | None = None,
) -> Mismatch:
    """Return the mismatch that is computed first, where a loop over time computes the tensors.

    In a loop, every tensor of a time step affects all of the next one. So the first mismatch is
    at the earliest time step, and within it in the tensor that is computed first.

    Args:
      mismatch: the mismatch in the first tensor that differs, in the order of names.
      loop: the names of the tensors [batch, time, ...] that one loop computes, in the order in
        which it does; a mismatch in any other tensor is returned as it is.
      rounding: as for `compare_step`.
    """

    def tolerance_of(name: str) -> Tolerance | RoundingMultiple:
        rung = rung_of(name)
        if rounding is None:
            return TABLE[dtype, rung]
        return RoundingMultiple(ONE_STEP_TIMES[rung], rounding.scale(name))

    names = list(loop)
    if mismatch.place.tensor not in names or mismatch.problem:
        return mismatch
    found = []
    for place, name in enumerate(names):
        if name not in a or name not in b or a[name].shape != b[name].shape:
            continue
        x, y = (np.asarray(each[name], np.float64) for each in (a, b))
        wrong = ~(np.abs(x - y) <= tolerance_of(name).allowed(x, y))
        steps = wrong.reshape(*wrong.shape[:2], -1).any(axis=(0, 2))
        if steps.any():
            found.append((int(np.argmax(steps)), place, name))
    _, _, name = min(found)
    step, sides = mismatch.place.step, mismatch.sides
    tolerance = tolerance_of(name)
    return compare_tensor(a[name], b[name], sides, step, name, tolerance)[1] or mismatch


def in_order_of_loop(spec: Spec, names: list[str]) -> list[str]:
    """Return the names, with those that a loop computes in the order of its steps."""
    loop = [f"forward/{name}" for name in NETWORKS[spec.network].loop(spec.model)]
    places = iter(loop)
    return [next(places) if name in loop else name for name in names]


def check_replicas(
    tensors: Mapping[str, np.ndarray],
    side: str,
    step: int,
    names: Iterable[str],
    every: list[Mismatch] | None = None,
) -> tuple[Distance, Mismatch | None]:
    """Check that all replicas of a side hold the same weights and optimizer state, to the bit.

    Args:
      every: as for `compare_step`.

    Returns:
      The worst distance from replica 0, and the first tensor in which a replica differs. A side
      whose replicas share one copy records no distances, and nothing can differ.
    """
    worst, first = Distance(used=0.0), None
    for name in names:
        if not name.startswith("replicas/") or name not in tensors:
            continue
        found = tensors[name]
        distance, mismatch = compare_tensor(
            found,
            np.zeros_like(found),
            (f"{side} replica", f"{side} replica 0"),
            step,
            name,
            TABLE["float64", "replicas"],
        )
        worst.add(distance)
        if mismatch is None:
            continue
        mismatch = replace(mismatch, within=side)
        first = first or mismatch
        if every is not None:
            every.append(mismatch)
    return worst, first
