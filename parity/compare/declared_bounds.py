"""How much the tensors of a pair may differ: as its owner declares, or by default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shortened
from typing import Any

from parity.base.errors import UsageError
from parity.compare.measured_bounds import TIMES, MeasuredBounds
from parity.trace.reader import Trace
from parity.trace.rungs import RUNGS, fits, rung_of, rungs
from parity.trace.tolerances import EXACT, TABLE, Tolerance, check_declared

NOBODY = "nobody"
MEASURED = "parity bounds"
COMPARER = "whoever compares"

# The bounds in float32 of what nobody declared. This project's own bounds are for one step from
# a known state; here each side goes on from where its own rounding has taken it. A stable
# training adds the rounding of each step to what it has accumulated, so the bound grows by as
# much with each step. The state of an optimizer, computed from gradients, is as inexact as they
# are, and a weight is as inexact as what is computed with it. An image classifier in Paddle and
# in Keras used at most a tenth of these bounds in 200 steps. A training that amplifies rounding
# needs a declared tolerance, or float64. A bound above the last number would say little.
_INHERITS = {"optimizer": "gradient", "weight": "forward"}
_MOST_BY_DEFAULT = 1e-2
_GROWS = (
    "this project's bounds for one step in float32, times the number of steps so far, at most "
    f"{_MOST_BY_DEFAULT:g}"
)
_CONSTANT = "this project's bounds for free runs in float64"
_SAME = "what was read must be equal to the bit"
_MEASURED = (
    f"{TIMES:g} times the largest distance of {{runs}} runs of {{side}} with every number "
    "moved by a unit in the last place, for each tensor and step"
)
_NOISE = "nothing but rounding in each of the runs: zero in exact arithmetic"


@dataclass
class Bound:
    """How much some tensors of a pair may differ, and who declared it.

    Attributes:
      applies: the rung, or the pattern of names, that the bound is for.
      tolerance: the bound at step 0.
      declared: the label of the side that declared it, or `NOBODY`.
      grows: whether the bound is multiplied by the number of steps so far.
      tensors: the number of tensors that it was used for.
    """

    applies: str
    tolerance: Tolerance
    declared: str = NOBODY
    grows: bool = False
    tensors: int = 0

    def at(self, step: int) -> Tolerance:
        """Return the tolerance of a step."""
        if not self.grows:
            return self.tolerance
        return replace(
            self.tolerance,
            **{
                name: min(getattr(self.tolerance, name) * (step + 1), _MOST_BY_DEFAULT)
                for name in ("relative", "floor", "step")
            },
        )

    def is_for(self, rung: str) -> bool:
        """Return whether the bound is for tensors of a rung, as far as its key shows."""
        return rung_of_key(self.applies) in (rung, None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "applies": self.applies,
            "relative": self.tolerance.relative,
            "floor": self.tolerance.floor,
            "step": self.tolerance.step,
            "grows": self.grows,
            "allowed": str(self),
            "declared": self.declared,
            "reason": self.tolerance.reason,
            "tensors": self.tensors,
        }

    def __str__(self) -> str:
        if self.declared == MEASURED:
            return f"at most {self.tolerance.floor:g}"
        return f"{self.tolerance}{' a step' if self.grows else ''}"


def rung_of_key(key: str) -> str | None:
    """Return the rung that a declared tolerance is for; None for a pattern over rungs."""
    prefix = key.split("/", 1)[0]
    if key in RUNGS.values():
        return key
    return None if set(prefix) & set("*?[") else rung_of(prefix)


class Bounds:
    """Finds the bound of each tensor: the first pattern that fits, or the bound of its rung.

    Args:
      dtype: the precision of the sides.
      declared: rung, or pattern of names -> tolerance, and who declared it.
      measured: takes the place of the bound of a rung that nobody declared.
    """

    def __init__(
        self,
        dtype: str,
        declared: Mapping[str, tuple[Tolerance, str]],
        measured: MeasuredBounds | None = None,
    ):
        self._dtype, self._measured = dtype, measured
        self._declared = {key: Bound(key, *found) for key, found in declared.items()}
        self._default: dict[str, Bound] = {}
        self._of: dict[str, Bound] = {}

    def find(self, name: str) -> Bound:
        """Return the bound of a tensor."""
        if name not in self._of:
            self._of[name] = self._choose(name)
            self._of[name].tensors += 1
        return self._of[name]

    def at(self, name: str, step: int) -> Tolerance:
        """Return the tolerance of a tensor in a step.

        Raises:
          UsageError: if its bounds were measured, but not in this step.
        """
        bound = self.find(name)
        if bound.declared != MEASURED:
            return bound.at(step)
        assert self._measured is not None
        found = self._measured.at(name, step)
        floor = max(float(f"{found.floor:.2g}"), bound.tolerance.floor)
        bound.tolerance = replace(bound.tolerance, floor=floor)
        return found

    def used(self) -> list[Bound]:
        """Return the bounds that were used, in the order of the rungs."""
        found = [*self._declared.values(), *self._default.values()]
        order = [*rungs(), None]
        return sorted(
            (bound for bound in found if bound.tensors),
            key=lambda bound: order.index(rung_of_key(bound.applies)),
        )

    def unused(self, names: Sequence[str]) -> list[str]:
        """Return the declared keys that fit none of these tensors."""
        for name in names:
            self.find(name)
        return [
            key
            for key, bound in self._declared.items()
            if not bound.tensors
            and not any(fits(name, key) or rung_of(name) == key for name in names)
        ]

    def _choose(self, name: str) -> Bound:
        rung = rung_of(name)
        for key, bound in self._declared.items():
            if key != rung and fits(name, key):
                return bound
        if rung in self._declared:
            return self._declared[rung]
        if self._measured is not None and name in self._measured.tensors:
            bound = _of_measured(self._measured, name)
            return self._default.setdefault(f"{rung}: {bound.tolerance.reason}", bound)
        if rung not in self._default:
            grows = self._dtype == "float32" and TABLE[self._dtype, rung] != EXACT
            tolerance = TABLE[self._dtype, _INHERITS.get(rung, rung) if grows else rung]
            reason = _SAME if tolerance == EXACT else _GROWS if grows else _CONSTANT
            self._default[rung] = Bound(rung, replace(tolerance, reason=reason), grows=grows)
        return self._default[rung]


def _of_measured(measured: MeasuredBounds, name: str) -> Bound:
    """Return the bound, as reports show it, of tensors like one that was measured."""
    told = _MEASURED.format(runs=measured.runs, side=measured.side)
    told = _NOISE if name in measured.noise else told
    return Bound(rung_of(name), Tolerance(0.0, 0.0, reason=told), MEASURED)


def declared_tolerances(
    sides: Sequence[str], traces: Sequence[Trace], given: Mapping[str, Tolerance]
) -> dict[str, tuple[Tolerance, str]]:
    """Return rung, or pattern of names -> tolerance, and who declared it.

    Args:
      sides: the labels of the traces.
      given: the tolerances of whoever compares; they replace those of the traces.

    Raises:
      UsageError: if the traces declare different tolerances under one key.
    """
    check_declared(given)
    found = {key: (tolerance, COMPARER) for key, tolerance in given.items()}
    for side, trace in zip(sides, traces, strict=True):
        for key, tolerance in _from_header(trace).items():
            if key in given:
                continue
            if key not in found:
                found[key] = tolerance, side
                continue
            before, who = found[key]
            if before != tolerance:
                raise UsageError(
                    f"tolerance of {key!r}: {who} declares {before}, {side} {tolerance}; "
                    "allowed: one, or the same"
                )
            found[key] = before, f"{who} and {side}"
    return found


def _from_header(trace: Trace) -> dict[str, Tolerance]:
    path = trace.folder / "trace.json"
    try:
        stored = trace.header["tolerances"].items()
        found = {key: Tolerance(**values) for key, values in stored}
    except (AttributeError, TypeError):
        seen = shortened(trace.header["tolerances"])
        raise UsageError(
            f"{path}: tolerances cannot be read: {seen}; allowed: what a Recorder writes"
        ) from None
    check_declared(found)
    for key, values in stored:
        if not isinstance(values.get("reason", ""), str):
            seen = f"tolerance of {key!r}: reason is {shortened(values['reason'])}"
            raise UsageError(f"{path}: {seen}; allowed: text")
    return found
