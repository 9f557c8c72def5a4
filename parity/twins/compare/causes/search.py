"""The search for a confirmed cause: the oracle makes each suspected mistake in turn."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import numpy as np

from parity.base.errors import UsageError
from parity.compare.relation import meaning
from parity.compare.steps import StepBounds, compare_step
from parity.twins.compare.causes.suspects import suspects
from parity.twins.compare.causes.wrong_step import (
    Arrays,
    Change,
    Confirmed,
    Suspect,
    WrongStep,
    telling,
)
from parity.twins.compare.oracle_tensors import OracleTensors
from parity.twins.compare.rounding_bounds import bounds_of
from parity.twins.compare.tensor_axes import numbers_of
from parity.twins.oracle.optimizers import clip_by_global_norm, update_slots, update_weights
from parity.twins.oracle.perturbation import UNIT
from parity.twins.oracle.rounding import Rounding
from parity.twins.oracle.training import Oracle, as_float64
from parity.twins.spec.replaceable import replacing

_ABOVE = {clip_by_global_norm, update_slots, update_weights}
_BELOW = ("forward/", "loss/", "gradient/")

# A trial goes on only where the first wrong tensor comes this much closer, as a share of its
# difference, or this close, in unit roundoffs. Only then is it compared by the exact bounds.
_CLOSER, _CLOSE = 1e-3, 1024

# A difference of so many bounds tells mistakes apart. Near the bound, any mistake that changes
# little would do: a norm was once 1.1 bounds off by the order of its sum, and a norm that
# leaves out a small gradient fits that as well.
_CLEAR = 8.0

# A number is solved for only where so many elements differ: fewer would fit any number.
_FEWEST = 8
_MOST_STEPS = 12  # of a solution
_SHORT = 1e-6  # how far a short number may be from the solution, as a share of it


@dataclass
class Budget:
    """How long a search may take.

    Attributes:
      seconds: the time it may take.
      clock: returns the time in seconds.
      trials: the number of trials so far.
      tried: the names of the suspects that were tried.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    trials: int = 0
    tried: set[str] = field(default_factory=set)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    @property
    def is_spent(self) -> bool:
        """Return whether no time is left."""
        return self.clock() - self._started >= self.seconds


class CauseSearch:
    """Tries the suspects of one case.

    Args:
      case: the step that differs.
      expected: computes what a trace should hold.
      names: the tensors of a step, in the order of computation.
      budget: how long the search may take.
    """

    def __init__(
        self, case: WrongStep, expected: OracleTensors, names: Sequence[str], budget: Budget
    ):
        self._case, self._expected, self._budget = case, expected, budget
        others = ("replicas/", "read/", "decode/", "batch/")
        self._names = [name for name in names if not name.startswith(others)]
        self._names.append("batch/learning_rate")
        self._drifted = any(name.startswith("replicas/") for name in case.wrong)
        self._few = _few_rows(case) if case.is_first and case.kind == "forward" else None

    def confirmed(self) -> list[Confirmed]:
        """Return the mistakes that reproduce the case; several cannot be told apart."""
        found: list[Confirmed] = []
        if not self._is_clear():
            return found
        explained = False  # without a free number, which is the better explanation
        for suspect in self._in_order():
            if suspect.solve and (explained or not self._decides_a_number()):
                continue
            if self._budget.is_spent:
                break
            self._budget.tried.add(suspect.name)
            for change in self._ways(suspect):
                self._budget.trials += 1
                distance = self._reproduces(suspect, change)
                if distance is not None:
                    value = ""
                    if change.value is not None:
                        value = telling(change.value, suspect.guesses[0])
                        if "by {}" in suspect.sentence:
                            known = numbers_of(self._case.spec, self._case.recorded)
                            value += meaning(change.value, known)
                    sentence = suspect.sentence.replace("{}", value)
                    found.append(
                        Confirmed(
                            suspect.name,
                            sentence,
                            suspect.faults,
                            distance,
                            steps=(self._case.place,),
                            value=change.value,
                        )
                    )
                    explained = explained or suspect.solve is None
                    break
        return found

    def holds(self, cause: Confirmed) -> float | None:
        """Return how far the oracle is from the case with a cause; None if it does not fit.

        Where the case has no such suspect, the mistake changes nothing of it.
        """
        named = [each for each in suspects(self._case) if each.name == cause.suspect]
        ways: Iterable[Change] = named[0].ways if named else (Change({}),)
        if named and named[0].solve is not None and cause.value is not None:
            ways = (named[0].solve(cause.value),)
        tried = (self._distance(way, self._tensors(self._case, way)) for way in ways)
        return min((each for each in tried if each is not None), default=None)

    def _is_clear(self) -> bool:
        """Return whether a wrong tensor is far enough beyond its bound; see _CLEAR."""
        case = self._case
        sides = "side", "oracle"
        bounds = self._bounds(case.expected)
        found = compare_step(case.recorded, case.expected, sides, case.step, case.wrong, bounds)
        used = [distance.used for distance in found.distances.values()]
        return not all(share is not None and share <= _CLEAR for share in used)

    def _in_order(self) -> list[Suspect]:
        """Return the suspects that may explain the first wrong tensor, solved ones last."""
        case = self._case
        return sorted(
            (
                suspect
                for suspect in suspects(case)
                if case.kind in suspect.starts
                and fnmatchcase(case.first, suspect.where)
                and (suspect.apart or not self._drifted)
            ),
            key=lambda suspect: suspect.solve is not None,
        )

    def _ways(self, suspect: Suspect) -> Iterator[Change]:
        if suspect.solve is None:
            yield from suspect.ways
            return
        number = self._solved(suspect)
        if number is None:
            return
        # people write short numbers: the solution is off by rounding
        for near in dict.fromkeys((float(f"{number:.4g}"), number)):
            if abs(near - number) <= _SHORT * abs(number):
                yield suspect.solve(near)

    def _decides_a_number(self) -> bool:
        case = self._case
        wrong = [name for name in case.wrong if name in case.expected]
        return sum(_count_apart(case.recorded[n], case.expected[n]) for n in wrong) >= _FEWEST

    def _solved(self, suspect: Suspect) -> float | None:
        """Return the number that brings the oracle closest to what is wrong first."""
        assert suspect.solve is not None
        case = self._few if self._few is not None and suspect.by_row else self._case
        # of gradients and weights all; of the forward pass the first, on which others depend
        few = case.kind == "forward"
        names = [case.first] if few else [n for n in case.wrong if n.startswith(case.kind)]
        target = _joined(case.recorded, names)

        def apart(number: float) -> np.ndarray | None:
            assert suspect.solve is not None
            self._budget.trials += 1
            try:
                found = _joined(self._tensors(case, suspect.solve(number)), names)
            except (UsageError, FloatingPointError):  # no value that the spec allows
                return None
            return found - target if np.isfinite(found).all() else None

        (x0, x1), best = suspect.guesses[:2], None
        r0 = apart(x0)
        if r0 is not None:
            best = float(np.abs(r0).max(initial=0.0)), x0
        for _ in range(_MOST_STEPS):
            r1 = apart(x1)
            if r0 is None or r1 is None or self._budget.is_spent:
                break
            worst = float(np.abs(r1).max(initial=0.0))
            if best is None or worst < best[0]:
                best = worst, x1
            elif worst >= best[0] and x1 != suspect.guesses[1]:
                break
            slope = (r1 - r0) / (x1 - x0) if x1 != x0 else np.zeros_like(r1)
            curve = float(slope @ slope)
            if not curve or not np.isfinite(curve):
                break
            x0, r0, x1 = x1, r1, x1 - float(slope @ r1) / curve
            if x1 == x0:
                break
        return None if best is None else best[1]

    def _reproduces(self, suspect: Suspect, change: Change) -> float | None:
        """Return how far the oracle is from the side with a change; None if it does not fit."""
        few = [self._few] if self._few is not None and suspect.by_row else []
        for case in (*few, self._case):
            found = self._tensors(case, change)
            if not _is_close(case, found):
                return None
        return self._distance(change, found)

    def _distance(self, change: Change, found: Mapping[str, np.ndarray]) -> float | None:
        """Return how far computed tensors are from the side's; None if one is too far."""
        case = self._case
        with replacing(change.replacements, add=True):
            bounds = self._bounds(found)
            sides = ("side", "oracle")
            names = [name for name in self._names if name in found]
            first = [names[-1], case.first]  # the schedule, and what is likeliest to differ
            for few in (first, names):
                compared = compare_step(case.recorded, found, sides, case.step, few, bounds)
                if compared.mismatches:
                    return None
        wrong = (name for name in case.wrong if name in found)
        return max(
            (_relative(case.recorded[n], found[n], case.expected[n]) for n in wrong),
            default=0.0,
        )

    def _bounds(self, found: Mapping[str, np.ndarray]) -> StepBounds:
        """Return how far the side may be from what the oracle, as it is now, computed."""
        case = self._case
        rounding = Rounding(
            case.spec,
            case.snapshot,
            case.state,
            case.inputs,
            case.recorded,
            found,
            read=case.read,
        )
        return bounds_of(case.spec.training.dtype, rounding)

    def _tensors(self, case: WrongStep, change: Change) -> Mapping[str, np.ndarray]:
        """Return what the oracle expects of the step, with a change."""
        rate = case.rate if change.rate is None else change.rate
        found: Arrays = dict(case.expected)
        # no warning of an overflow: a suspect that overflows is rejected anyway
        with np.errstate(all="ignore"), replacing(change.replacements, add=True):
            if set(change.replacements) - _ABOVE:
                oracle = Oracle(case.spec, case.snapshot)
                oracle.state = {name: as_float64(part) for name, part in case.state.items()}
                computed = oracle.step(case.inputs, rate, case.sizes, case.read)
                found |= {n: a for n, a in computed.items() if n.startswith(_BELOW)}
            if case is self._case and (set(change.replacements) & _ABOVE or change.rate):
                found |= self._expected.above_gradients(case.snapshot, case.recorded, rate)
        found["batch/learning_rate"] = np.array(rate)
        return found


def _joined(tensors: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([as_float64(tensors[name]).reshape(-1) for name in names])


def _few_rows(case: WrongStep) -> WrongStep | None:
    """Return the case with the rows alone in which the first wrong tensor is wrong most.

    Each row of a forward pass is computed by itself, so two rows show whether a mistake
    explains it.
    """
    found, expected = as_float64(case.recorded[case.first]), case.expected[case.first]
    if found.shape != expected.shape or len(found) < 4:
        return None
    by_row = np.abs(found - expected).reshape(len(found), -1).max(axis=1)
    rows = np.argsort(-by_row, kind="stable")[:2]
    inputs = replace(
        case.inputs,
        batch={name: array[rows] for name, array in case.inputs.batch.items()},
        masks={name: mask[rows] for name, mask in case.inputs.masks.items()},
    )
    recorded = {case.first: found[rows], "batch/sizes": np.array([len(rows)])}
    return replace(
        case,
        inputs=inputs,
        state={name: part[rows] for name, part in case.state.items()},
        recorded=recorded,
        expected={case.first: expected[rows]},
    )


def _is_close(case: WrongStep, found: Mapping[str, np.ndarray]) -> bool:
    """Return whether the first wrong tensor comes so close that a full trial is worth it."""
    recorded, expected = (
        as_float64(case.recorded[case.first]),
        as_float64(case.expected[case.first]),
    )
    tried = as_float64(found[case.first])
    if recorded.shape != tried.shape:
        return False
    before = float(np.abs(recorded - expected).max(initial=0.0))
    after = float(np.abs(recorded - tried).max(initial=0.0))
    size = float(np.abs(recorded).max(initial=0.0))
    return after <= max(_CLOSER * before, _CLOSE * UNIT[case.spec.training.dtype] * size)


def _count_apart(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.count_nonzero(a != b)) if a.shape == b.shape else 0


def _relative(recorded: np.ndarray, found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest magnitude.

    The mistake may leave nothing but rounding of a tensor, so the magnitudes that the tensor
    should have had count as well.
    """
    apart = float(np.abs(np.subtract(recorded, found, dtype=np.float64)).max(initial=0.0))
    size = max(float(np.abs(each).max(initial=0.0)) for each in (recorded, expected))
    return apart / size if size else apart
