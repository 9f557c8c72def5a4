"""Which sides differ from the oracle in the first wrong tensor, and whether they agree.

One side that differs has made a mistake. All sides that differ in the same way have not, or
all have made the same one: then the oracle is as suspicious as they are, and so is everything
that they share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from parity.compare.tensors import ONE_STEP, ORACLE, Mismatch, magnitude
from parity.trace.side import Side

Tensors = Mapping[str, np.ndarray]

# The kinds of disagreement, as report.json names them.
ONE_SIDE = "one side"
ONE_FRAMEWORK = "one framework"
SOME_ALIKE = "some sides alike"
ALL_ALIKE = "all sides alike"
DIFFERENTLY = "several sides differently"
SEVERAL = "several sides"  # which cannot be compared with each other
BETWEEN_SIDES = "only between sides"
BATCH = "batch"
CHECK = "check of whole runs"
REPLICAS = "replicas of one side"

# The tensors on the rung of a batch that the settings determine, not the text.
_SCHEDULED = ("batch/learning_rate", "schedule/")

# Two sides depart from the oracle in the same way if their departures differ by no more than
# this share of the smaller one, or by what is allowed. In float64 the two have come from the
# same weights but for rounding; in float32 training has amplified it (seen: 2e-3 after 200
# steps), and with the weights the size of a mistake changes a little.
_SAME = {"float64": 1e-6, "float32": 1e-2}


@dataclass(frozen=True)
class Disagreement:
    """Which sides differ from the oracle in one tensor, and whether they do so in the same way.

    All distances are relative: the largest |a - b|, divided by the largest magnitude in the
    tensor.

    Attributes:
      kind: one of the kinds above.
      groups: the labels of the sides that differ from the oracle; the sides of a group agree
        with each other.
      right: the labels of the other sides.
      within: the largest distance between two sides of one group; None where no two sides of a
        group could be compared.
      apart: the largest distance between sides of different groups, or between sides that do
        not differ from the oracle; None where there is none.
      from_oracle: label -> the distance of a side that differs; None if it cannot be computed.
    """

    kind: str
    groups: tuple[tuple[str, ...], ...] = ()
    right: tuple[str, ...] = ()
    within: float | None = None
    apart: float | None = None
    from_oracle: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def departing(self) -> list[str]:
        """Return the sides that differ from the oracle."""
        return sorted(side for group in self.groups for side in group)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "kind": self.kind,
            "sides": self.departing,
            "groups": [list(group) for group in self.groups],
            "right": list(self.right),
            "within": self.within,
            "apart": self.apart,
            "from_oracle": dict(self.from_oracle),
        }


def departing_sides(mismatches: Sequence[Mismatch]) -> list[str]:
    """Return the sides that differ from the oracle in the first tensor that differs.

    None does in a batch: the oracle reads the batches that the sides recorded.

    Args:
      mismatches: the mismatches of a step, in the order of computation.
    """
    if not mismatches or _is_text(mismatches[0]):
        return []
    found = set()
    for mismatch in mismatches:
        a, b = mismatch.sides
        if mismatch.place.tensor == mismatches[0].place.tensor:
            if mismatch.within:
                found.add(mismatch.within)
            elif b in (ORACLE, ONE_STEP):
                found.add(a)
    return sorted(found)


def checked_sides(mismatches: Sequence[Mismatch], sides: Mapping[str, Side]) -> list[str]:
    """Return the sides that the first mismatch of a check of whole runs is about.

    Where it compares each side with the oracle, or with itself, those are all that fail there.
    """
    first = mismatches[0]
    alike = [m for m in mismatches if m.place.tensor == first.place.tensor]
    named = {m.sides[0] for m in alike if m.sides[1] in (ORACLE, ONE_STEP)}
    named = named or {m.within for m in alike if m.within} or set(first.sides)
    return sorted(named & sides.keys())


def find_disagreement(
    mismatches: Sequence[Mismatch],
    sides: Mapping[str, Side],
    dtype: str,
    tensors: Mapping[str, Tensors] | None = None,
    expected: Mapping[str, Mapping[str, Tensors]] | None = None,
) -> Disagreement:
    """Return who differs from whom in the first tensor that differs.

    Args:
      mismatches: the mismatches of a step, in the order of computation; at least one.
      sides: label -> side, of all sides.
      dtype: the precision of the run.
      tensors: label -> what that side recorded of the step; without it, no distances are found.
      expected: `ORACLE` or `ONE_STEP` -> label -> what the oracle expects of that side, when it
        trains by itself or when it starts from what the side recorded.
    """
    first = mismatches[0]
    if first.check:
        named = checked_sides(mismatches, sides)
        right = tuple(label for label in sides if label not in named)
        if first.sides[1] in (ORACLE, ONE_STEP):
            kind = CHECK if named[1:] else ONE_SIDE
            name = first.place.tensor
            apart = {m.sides[0]: m.relative for m in mismatches if m.place.tensor == name}
            return Disagreement(kind, (tuple(named),), right, from_oracle=apart)
        return Disagreement(CHECK, tuple((label,) for label in named), right)
    departing = departing_sides(mismatches)
    right = tuple(label for label in sides if label not in departing)
    if first.within:
        return Disagreement(REPLICAS, ((first.within,),), right)
    view = _View(mismatches, tensors or {}, expected or {}, dtype)
    if not departing:
        kind = BATCH if _is_text(first) else BETWEEN_SIDES
        return Disagreement(kind, (), right, apart=view.distance(*first.sides))
    groups = _grouped(departing, view)
    inside = [view.distance(a, b) for group in groups for a, b in combinations(group, 2)]
    across = [
        view.distance(a, b)
        for one, other in combinations(groups, 2)
        for a in one
        for b in other
    ]
    kind = _kind(groups, sides)
    if kind == DIFFERENTLY and all(distance is None for distance in [*inside, *across]):
        kind = SEVERAL
    return Disagreement(
        kind,
        groups,
        right,
        _largest(inside),
        _largest(across),
        {side: view.from_oracle(side) for side in departing},
    )


def _is_text(mismatch: Mismatch) -> bool:
    """Return whether a tensor comes from the text, which the oracle reads from the sides."""
    return mismatch.rung == "batch" and not mismatch.place.tensor.startswith(_SCHEDULED)


def _kind(groups: Sequence[Sequence[str]], sides: Mapping[str, Side]) -> str:
    if len(groups) > 1:
        return DIFFERENTLY
    (group,) = groups
    if len(group) == 1:
        return ONE_SIDE
    framework_of = {label: side.framework for label, side in sides.items()}
    frameworks = {framework_of.get(label) for label in group}
    others = {framework_of[label] for label in sides if label not in group}
    if len(frameworks) == 1 and not frameworks & others:
        return ONE_FRAMEWORK
    return SOME_ALIKE if others else ALL_ALIKE


def _grouped(departing: Sequence[str], view: "_View") -> tuple[tuple[str, ...], ...]:
    """Put together the sides that agree, directly or through a third that both agree with."""
    groups: list[list[str]] = []
    for side in departing:
        alike = [group for group in groups if any(view.agree(side, each) for each in group)]
        others = [group for group in groups if group not in alike]
        groups = [*others, [*(each for group in alike for each in group), side]]
    return tuple(tuple(sorted(group)) for group in sorted(groups))


class _View:
    """The first wrong tensor, as each side recorded it and as the oracle expects it.

    Replicas' losses are compared in their sum where two sides have different numbers of them.
    """

    def __init__(
        self,
        mismatches: Sequence[Mismatch],
        tensors: Mapping[str, Tensors],
        expected: Mapping[str, Mapping[str, Tensors]],
        dtype: str,
    ):
        self._name, self._tensors, self._dtype = mismatches[0].place.tensor, tensors, dtype
        self._expected: dict[str, Tensors] = {}
        self._allowed: dict[str, float] = {}
        for mismatch in mismatches:
            side, other = mismatch.sides
            if mismatch.place.tensor == self._name and side in expected.get(other, {}):
                # one step, which is compared last, counts rather than the free run
                self._expected[side] = expected[other][side]
                self._allowed[side] = mismatch.allowed

    def agree(self, a: str, b: str) -> bool:
        """Return whether two sides depart from the oracle in the same way."""
        found = self._arrays(a, b)
        if found is None:
            return False
        name, x, y = found
        expected = [self._expected.get(side, {}).get(name) for side in (a, b)]
        smaller = 0.0
        if all(each is not None and np.shape(each) == x.shape for each in expected):
            x, y = x - expected[0], y - expected[1]
            smaller = min(magnitude(np.abs(x)), magnitude(np.abs(y)))
        slack = sum(self._allowed.get(side, 0.0) for side in (a, b))
        apart = magnitude(np.abs(x - y))
        return bool(apart <= max(slack, _SAME[self._dtype] * smaller))

    def distance(self, a: str, b: str) -> float | None:
        """Return the distance of two sides, or None if they cannot be compared."""
        found = self._arrays(a, b)
        return None if found is None else _relative(*found[1:])

    def from_oracle(self, side: str) -> float | None:
        """Return the distance of a side from what the oracle expects of it."""
        x = self._tensors.get(side, {}).get(self._name)
        y = self._expected.get(side, {}).get(self._name)
        if x is None or y is None or np.shape(x) != np.shape(y):
            return None
        return _relative(np.asarray(x, np.float64), np.asarray(y, np.float64))

    def _arrays(self, a: str, b: str) -> tuple[str, np.ndarray, np.ndarray] | None:
        names = [self._name, *(["loss/global"] if self._name == "loss/replicas" else [])]
        for name in names:
            found = [self._tensors.get(side, {}).get(name) for side in (a, b)]
            x, y = (None if each is None else np.asarray(each, np.float64) for each in found)
            if x is not None and y is not None and x.shape == y.shape:
                return name, x, y
        return None


def _relative(x: np.ndarray, y: np.ndarray) -> float:
    scale = max(magnitude(np.abs(x)), magnitude(np.abs(y)))
    return magnitude(np.abs(x - y)) / scale if scale else 0.0


def _largest(distances: Sequence[float | None]) -> float | None:
    return max((each for each in distances if each is not None), default=None)
