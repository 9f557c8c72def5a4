"""A pair that is not ours: two trainings that a `Recorder` recorded, held against each other.

There is no oracle here: the report says where two sides part, not which of them is right. Each
tensor of each step is judged in the order of computation — rung by rung, within a rung as the
first side recorded it — and the comparison ends with the first step that has a mismatch.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.compare.history import History
from parity.compare.ladder import Verdict, rungs
from parity.compare.tensors import Distance, check_numbers, compare_tensor
from parity.report.values import verdict_values
from parity.trace.names import rung_of
from parity.trace.side import labels_of
from parity.trace.tolerances import EXACT, TABLE, Tolerance, check_declared
from parity.trace.trace import Trace

NOBODY = "nobody"
BLAME = "there is no oracle for this pair to say which side is right"

# In float32, what nobody declared. Our own bounds are for one step from a known place; here
# each side goes on from where its own rounding has led it. A stable training adds each step's
# rounding to what it has, so the bound is allowed once more with each step; an optimizer's
# state, made of gradients, is as inexact as they are, and a weight as what is computed with it.
# Of the example in parity/examples at most a tenth is used in 200 steps. A training that
# amplifies rounding needs a declared tolerance, or float64. A bound above the last number would
# say little.
_INHERITS = {"optimizer": "gradient", "weight": "forward"}
_MOST_BY_DEFAULT = 1e-2
_GROWS = (
    "this project's bounds of one step in float32, once more with each step, at most "
    f"{_MOST_BY_DEFAULT:g}"
)
_STANDS = "this project's bounds of free runs in float64"
_SAME = "what was read must be alike to the bit"

Tensors = Mapping[str, np.ndarray]


@dataclass
class Bound:
    """What some tensors of a pair may differ by, and who says so.

    Attributes:
      applies: a rung, or a pattern of names.
      tolerance: at step 0.
      declared: by whom.
      grows: whether it is allowed once more with each step.
      tensors: how many it was used for.
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
        return f"{self.tolerance}{' a step' if self.grows else ''}"


@dataclass
class OwnVerdict(Verdict):
    """What was found of a pair that is not ours.

    Attributes:
      tensors: names, in the order of computation.
      bounds: that were used, in the order of the rungs.
    """

    tensors: list[str] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)

    def allowed(self, rung: str) -> str:
        """Return what a rung allows, for people."""
        mine = [bound for bound in self.bounds if rung_of_key(bound.applies) in (rung, None)]
        return "; ".join(dict.fromkeys(map(str, mine)))


def rung_of_key(key: str) -> str | None:
    """Return the rung that a declared tolerance is for; None for a pattern over rungs."""
    prefix = key.split("/", 1)[0]
    return None if set(prefix) & set("*?[") else rung_of(prefix)


class _Bounds:
    """Finds the bound of each tensor: of the patterns the first that fits, or its rung's."""

    def __init__(self, dtype: str, declared: Mapping[str, tuple[Tolerance, str]]):
        self._dtype = dtype
        self._declared = {key: Bound(key, *found) for key, found in declared.items()}
        self._default: dict[str, Bound] = {}
        self._of: dict[str, Bound] = {}

    def find(self, name: str) -> Bound:
        if name not in self._of:
            self._of[name] = self._choose(name)
            self._of[name].tensors += 1
        return self._of[name]

    def used(self) -> list[Bound]:
        found = [*self._declared.values(), *self._default.values()]
        order = [*rungs(), None]
        return sorted(
            (bound for bound in found if bound.tensors),
            key=lambda bound: order.index(rung_of_key(bound.applies)),
        )

    def unused(self, names: Sequence[str]) -> list[str]:
        for name in names:
            self.find(name)
        return [
            key
            for key, bound in self._declared.items()
            if not bound.tensors
            and not any(fnmatchcase(name, key) or rung_of(name) == key for name in names)
        ]

    def _choose(self, name: str) -> Bound:
        rung = rung_of(name)
        for key, bound in self._declared.items():
            if key != rung and fnmatchcase(name, key):
                return bound
        if rung in self._declared:
            return self._declared[rung]
        if rung not in self._default:
            grows = self._dtype == "float32" and TABLE[self._dtype, rung] != EXACT
            tolerance = TABLE[self._dtype, _INHERITS.get(rung, rung) if grows else rung]
            reason = _SAME if tolerance == EXACT else _GROWS if grows else _STANDS
            self._default[rung] = Bound(rung, replace(tolerance, reason=reason), grows=grows)
        return self._default[rung]


def compare_own(
    traces: Sequence[Trace], tolerances: Mapping[str, Tolerance] | None = None
) -> OwnVerdict:
    """Compare two trainings that a `Recorder` recorded, up to the first mismatch.

    Args:
      tolerances: rung, or pattern of names -> what is allowed, in place of what the traces
        themselves declare under the same key.

    Raises:
      UsageError: if the two cannot be held against each other, or one is damaged.
      NumericFailure: for a NaN or infinity.
    """
    a, b = sides = _labels(traces)
    first, second = traces
    if first.own != second.own:
        kinds = ["a Recorder's" if trace.own else "of a train.py" for trace in traces]
        raise UsageError(f"{a} is {kinds[0]}, {b} is {kinds[1]}; allowed: two of a kind")
    _check_same_run(sides, first.header, second.header)
    dtype = str(first.header["dtype"])
    bounds = _Bounds(dtype, _declared(sides, traces, tolerances or {}))
    verdict = OwnVerdict(dtype, {(a, b): {}}, sides={a: first.side, b: second.side})
    verdict.history = History(dtype, sides, (a, b))
    _check_steps(sides, [trace.numbers() for trace in traces])
    loss = None
    for (step, of_a), (_, of_b) in zip(first.steps(), second.steps(), strict=True):
        _check_names(sides, step, of_a, of_b)
        names = _ordered(of_a)
        if not verdict.tensors:
            verdict.tensors, loss = names, _loss(of_a)
            if unused := bounds.unused(names):
                raise UsageError(
                    f"tolerance of {unused[0]!r}: no tensor of step {step} is meant by it"
                )
        for side, tensors in zip(sides, (of_a, of_b), strict=True):
            # which replica had a row is known of this project's trainings only
            known = {name: each for name, each in tensors.items() if name != "batch/sizes"}
            check_numbers(known, side, step, names)
        seen = _compare_step(verdict, bounds, (a, b), step, of_a, of_b, names)
        verdict.history.add_pair(step, [_value(each, loss) for each in (of_a, of_b)], seen)
        verdict.steps += 1
        if not verdict.matches:
            break
    verdict.bounds = bounds.used()
    return verdict


def own_values(traces: Sequence[Trace], verdict: OwnVerdict, command: str) -> dict[str, Any]:
    """Return the report of such a pair, in the form of `parity.report.values.report_values`."""
    sides = _labels(traces)
    found = verdict_values(verdict)
    found["bounds"] = [bound.to_json() for bound in verdict.bounds]
    if "first_mismatch" in found:
        wrong = len(verdict.mismatches)
        found["first_mismatch"]["blame"] = (
            f"{wrong} of the step's {len(verdict.tensors)} tensors differ by more than is "
            f"allowed; {BLAME}"
        )
    versions = {"python": platform.python_version()} | {
        f"{side}: {name}": version
        for side, trace in zip(sides, traces, strict=True)
        for name, version in trace.header["versions"].items()
    }
    return {
        "verdict": found["verdict"],
        "network": "own",
        "pair": sides,
        "tensors": len(verdict.tensors),
        "preset": "-",
        "dtype": verdict.dtype,
        "replicas": [],
        "sides": {label: side.to_json() for label, side in verdict.sides.items()},
        "steps": verdict.steps,
        "versions": versions,
        "rungs": found["rungs"],
        "throughput": {},
        "first_mismatch": found.get("first_mismatch"),
        "runs": [found],
        "history": {verdict.dtype: verdict.history.to_json()},
        "trainings": {},
        "spec": traces[0].header["run"],
        "command": command,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _labels(traces: Sequence[Trace]) -> list[str]:
    return labels_of([trace.side for trace in traces], [trace.folder for trace in traces])


def _compare_step(
    verdict: OwnVerdict,
    bounds: _Bounds,
    sides: tuple[str, str],
    step: int,
    a: Tensors,
    b: Tensors,
    names: Sequence[str],
) -> dict[str, Distance]:
    """Compare a step, add to the verdict, and return tensor -> distance."""
    seen: dict[str, Distance] = {}
    largest: dict[str, float] = {}
    worst = verdict.pairs[sides]
    for name in names:
        rung, kind = rung_of(name), name.split("/", 1)[0]
        tolerance = bounds.find(name).at(step)
        if tolerance.step and kind not in largest:
            alike = (each for each in names if each.startswith(f"{kind}/"))
            largest[kind] = max(float(np.abs(b[each]).max(initial=0.0)) for each in alike)
        distance, mismatch = compare_tensor(
            a[name],
            b[name],
            sides,
            step,
            name,
            tolerance,
            worst[rung].used or 0.0 if rung in worst else 0.0,
            of_kind=largest.get(kind, 0.0),
        )
        seen[name] = distance
        worst.setdefault(rung, Distance()).add(distance)
        if mismatch is not None:
            verdict.mismatches.append(mismatch)
    return seen


def _check_same_run(sides: Sequence[str], a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """See that the headers of both sides are of one training."""
    for name in ("dtype", "run"):
        if a[name] == b[name]:
            continue
        seen = f"{a[name]!r} against {b[name]!r}"
        if name == "run" and isinstance(a[name], dict) and isinstance(b[name], dict):
            seen = "; ".join(
                f"{key} {a[name].get(key)!r} against {b[name].get(key)!r}"
                for key in a[name] | b[name]
                if a[name].get(key) != b[name].get(key)
            )
        raise UsageError(
            f"{sides[0]} and {sides[1]} are not of the same run: {name} differs: {seen}"
        )
    if a["dtype"] not in ("float64", "float32"):
        raise UsageError(f"{sides[0]}: dtype is {a['dtype']!r}; allowed: float64, float32")


def _check_steps(sides: Sequence[str], numbers: Sequence[list[int]]) -> None:
    a, b = numbers
    if a == b and a:
        return
    counts = ", ".join(f"{side} has {len(n)}" for side, n in zip(sides, numbers, strict=True))
    if not a or not b:
        raise UsageError(f"the traces hold different numbers of steps, or none: {counts}")
    only = min(set(a) ^ set(b), default=None)
    told = (
        "in another order" if only is None else f"only {sides[only not in a]} has step {only}"
    )
    raise UsageError(f"the traces hold different steps: {counts}; {told}")


def _check_names(sides: Sequence[str], step: int, a: Tensors, b: Tensors) -> None:
    told = [
        f"only {side} has {', '.join(sorted(mine.keys() - other.keys()))}"
        for side, mine, other in zip(sides, (a, b), (b, a), strict=True)
        if mine.keys() - other.keys()
    ]
    if told:
        raise UsageError(
            f"step {step}: the sides recorded different tensors: {'; '.join(told)}"
        )


def _declared(
    sides: Sequence[str], traces: Sequence[Trace], asked: Mapping[str, Tolerance]
) -> dict[str, tuple[Tolerance, str]]:
    """Return key -> tolerance and who declared it."""
    check_declared(asked)
    found = {key: (tolerance, "who compares") for key, tolerance in asked.items()}
    for side, trace in zip(sides, traces, strict=True):
        for key, tolerance in _from_header(trace).items():
            if key in asked:
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
    except (AttributeError, TypeError) as error:
        raise UsageError(f"{path}: tolerances cannot be read: {error}") from None
    check_declared(found)
    return found


def _ordered(tensors: Tensors) -> list[str]:
    """Return names in the order of computation."""
    order = rungs()
    return sorted(tensors, key=lambda name: order.index(rung_of(name)))


def _loss(tensors: Tensors) -> str | None:
    """Return which tensor is drawn as the loss."""
    single = [n for n, each in tensors.items() if rung_of(n) == "loss" and each.size == 1]
    return "loss/global" if "loss/global" in single else next(iter(single), None)


def _value(tensors: Tensors, name: str | None) -> float | None:
    return float(tensors[name].reshape(())) if name is not None and name in tensors else None
