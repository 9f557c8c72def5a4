"""Why two recorded trainings differ, as far as what they recorded shows it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parity.compare.refit import (
    SOME,
    Fit,
    Moves,
    difference,
    held_in_float32,
    of_parameters,
    refit_both,
)
from parity.compare.relation import (
    SAME,
    Axis,
    ends_of_rows,
    explanations,
    lengths_by_padding,
)
from parity.compare.tensors import Mismatch, flips, magnitude
from parity.trace.reader import Trace
from parity.trace.rungs import rung_of

Tensors = Mapping[str, np.ndarray]

_FIRST_STEPS = 20  # that are refitted, and more where the first wrong one is later
_MOST_STEPS = 100
_LAST_DIGITS = 1e-3  # of a tensor, up to which constants in float32 may be what moves it
_OF_STEP = ("optimizer", "weight")
_ADDED_TO_NORM = 1e-6  # by torch.nn.utils.clip_grad_norm_
_EPSILONS = 8  # of the largest gradient, up to which one may be zero in exact arithmetic


@dataclass(frozen=True)
class Explanation:
    """What explains a difference.

    Attributes:
      tensor: the tensor that differs.
      sentence: why, or how.
    """

    tensor: str
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def explain(
    traces: Sequence[Trace], labels: Sequence[str], mismatches: Sequence[Mismatch]
) -> tuple[Explanation, ...]:
    """Return what explains the first mismatches of two traces in the same names and layouts.

    Args:
      mismatches: of the first step that has any, in the order of computation.
    """
    if not mismatches or mismatches[0].check:
        return ()
    if mismatches[0].within:
        return _between_ranks(traces[labels.index(mismatches[0].within)], mismatches[0])
    return tuple(_Search(traces, labels, mismatches).found())


def _between_ranks(trace: Trace, mismatch: Mismatch) -> tuple[Explanation, ...]:
    """Return how a tensor of one rank is made of that of another of the same side."""
    place = mismatch.place
    trace.read(place.step)
    (_, one), (_, other) = trace.unequal(place.step)[place.tensor]
    a, b = mismatch.sides
    return tuple(
        Explanation(place.tensor, says.format(a=a, b=b)) for says in explanations(other, one)
    )


class _Search:
    def __init__(
        self, traces: Sequence[Trace], labels: Sequence[str], mismatches: Sequence[Mismatch]
    ):
        self._traces, self._labels = traces, labels
        self._wrong = [each.place.tensor for each in mismatches]
        self._first, self._step = self._wrong[0], mismatches[0].place.step
        self._rung = rung_of(self._first)
        self._now: list[Tensors] = [trace.read(self._step) for trace in traces]
        self._step_before: dict[int, Tensors] = {}

    def found(self) -> Iterator[Explanation]:
        if not all(self._first in tensors for tensors in self._now):
            return  # not recorded whole
        if told := self._no_larger_than_rounding():
            yield Explanation(self._first, told)
            return
        if self._step and self._rung == "gradient" and (told := self._accumulated()):
            yield Explanation(self._first, told)
            return
        if told := self._clipped_before():
            yield Explanation(self._first, told)
            return
        if self._rung in _OF_STEP and (told := self._changed_alone()):
            yield Explanation(self._first, told)
            return
        if (self._rung in _OF_STEP or self._step) and (told := self._refitted()):
            yield Explanation(self._first, told)
            return
        if told := self._still():
            yield Explanation(self._first, told)
            return
        if self._rung == "gradient":
            if told := self._clipped_by_more():
                yield Explanation(self._first, told)
                return
            yield from self._kinks()
        if (told := self._related(self._first)) and self._rung not in _OF_STEP:
            yield Explanation(self._first, told + self._alike(told))

    def _related(self, name: str) -> str:
        """Say how one of a tensor's two versions is made of the other; empty if unknown."""
        a, b = (each.get(name) for each in self._now)
        if a is None or b is None or a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
            return ""
        if np.array_equal(a, b):
            return "the values are equal, their types are not"
        for tokens in (n for n in self._now[0] if n.startswith("batch/")):
            lengths = lengths_by_padding(self._now[0][tokens])
            if rung_of(name) != "batch" and (says := ends_of_rows(b, a, lengths)):
                return self._labelled(f"{says}, by {tokens}")
        axes = [Axis("row"), Axis("time step")] if self._is_timed(a) else []
        for says in explanations(b, a, axes):
            return self._labelled(says)
        return ""

    def _labelled(self, says: str) -> str:
        return says.format(a=self._labels[0], b=self._labels[1])

    def _is_timed(self, array: np.ndarray) -> bool:
        batches = [x for n, x in self._now[0].items() if n.startswith("batch/")]
        return array.ndim == 3 and any(
            x.ndim in (2, 3) and x.shape[:2] == array.shape[:2] for x in batches
        )

    def _alike(self, told: str) -> str:
        """Say that all other tensors of the kind differ in the same way, if they do."""
        kind = self._first.partition("/")[0]
        others = [n for n in self._wrong[1:] if n.partition("/")[0] == kind]
        if not others or any(self._related(name) != told for name in others):
            return ""
        if len(others) == 1:
            return f"; so is the only other of {kind} that differs"
        return f"; so are all {len(others)} others of {kind} that differ"

    def _no_larger_than_rounding(self) -> str:
        """Say that a gradient is next to nothing on both sides, if what differs is of one."""
        parts = self._first.split("/")[1:]
        names = {"gradient": parts, "weight": parts, "optimizer": parts[:-1]}
        name = "gradient/" + "/".join(names.get(self._rung, ()))
        if not all(name in tensors for tensors in self._now):
            return ""
        if self._rung == "weight":  # what a rate of up to 1 makes of them, and not a decay
            a, b = (each[self._first].astype(np.float64) for each in self._now)
            moved = sum(magnitude(each[name]) for each in self._now)
            if a.shape != b.shape or magnitude(a - b) > moved:
                return ""
        shares = []
        for tensors in self._now:
            gradients = [x for n, x in tensors.items() if n.startswith("gradient/")]
            most = max(map(magnitude, gradients))
            shares.append(magnitude(tensors[name]) / most if most else 1.0)
        epsilon = float(np.finfo(str(self._traces[0].header["dtype"])).eps)
        if max(shares) > _EPSILONS * epsilon:
            return ""
        return (
            f"{name} is no larger than rounding on both sides, {max(shares):.0e} of the "
            "step's largest gradient: `parity bounds` measures how far such may be apart"
        )

    def _accumulated(self) -> str:
        """Say that one side's gradients hold those of the step before, if they do."""
        numbers = self._traces[0].numbers()
        if self._step - 1 not in numbers:
            return ""
        before = [self._before(side) for side in range(2)]
        wrong = [name for name in self._wrong if name.startswith("gradient/")]
        wrong = [n for n in wrong if all(n in each for each in (*before, *self._now))]
        for mine, label in enumerate(self._labels):
            own, other = self._now[mine], self._now[1 - mine]
            if wrong and all(_close(own[n] - other[n], before[mine][n]) for n in wrong):
                step = self._step
                return (
                    f"the gradient of step {step} in {label} holds that of step {step - 1}, "
                    "too, as where nothing sets it to zero in between"
                )
        return ""

    def _wrong_on_both(self, kind: str) -> list[str]:
        """Return the tensors of a kind that differ, of those that both sides recorded whole."""
        wrong = (name for name in self._wrong if name.startswith(kind))
        return [name for name in wrong if all(name in each for each in self._now)]

    def _clipped_before(self) -> str:
        """Say that one side's gradients are those that the other one clipped, if they are."""
        wrong = self._wrong_on_both("gradient/")
        for mine, label in enumerate(self._labels if wrong else ()):
            other = self._traces[1 - mine].whole.read(self._step)
            clipped = {n: other[f"clipped_{n}"] for n in wrong if f"clipped_{n}" in other}
            if all(n in clipped and _close(self._now[mine][n], clipped[n]) for n in wrong):
                return (
                    f"the gradients of {label} are those of {self._labels[1 - mine]} after "
                    f"clipping: {label} recorded what its optimiser was given"
                )
        return ""

    def _changed_alone(self) -> str:
        """Say that one side alone changes its gradients before the update, if it does.

        Where what the optimisers keep of a weight agrees, both were given the same: a chain of
        optax clips unseen.
        """
        slots = self._first.replace("weight/", "optimizer/", 1) + "/"
        kept = (n for n in self._now[0] if n.startswith(slots) and self._now[0][n].ndim)
        if self._rung == "weight" and any(n in self._now[1] for n in kept):
            return ""
        changed = [
            any(
                not np.array_equal(x, step.get(name.removeprefix("clipped_"), x))
                for name, x in step.items()
                if name.startswith("clipped_gradient/")
            )
            for step in (trace.whole.read(self._step) for trace in self._traces)
        ]
        if changed[0] == changed[1]:
            return ""
        one, other = self._labels if changed[0] else reversed(self._labels)
        return (
            f"{one} changes its gradients before the update, as by clipping them; {other} has "
            "no such change on record"
        )

    def _clipped_by_more(self) -> str:
        """Say that one side adds to the norm that it clips by, as PyTorch does, if it does."""
        wrong = self._wrong_on_both("clipped_gradient/")
        if not wrong:
            return ""
        for mine, (trace, label) in enumerate(zip(self._traces, self._labels, strict=True)):
            gradients = (
                array.astype(np.float64).ravel()
                for name, array in trace.whole.read(self._step).items()
                if name.startswith("gradient/")
            )
            norm = math.hypot(*map(np.linalg.norm, gradients))
            own, other = self._now[mine], self._now[1 - mine]
            # what is left over of c / norm without that of c / (norm + added)
            factor = _ADDED_TO_NORM / norm if norm else 0.0
            if all(_close(other[n] - own[n], factor * own[n]) for n in wrong):
                return (
                    f"{label} clips by the norm + {_ADDED_TO_NORM:g}, as PyTorch's "
                    f"clip_grad_norm_ does, {self._labels[1 - mine]} by the norm"
                )
        return ""

    def _refitted(self) -> str:
        """Say in what the optimisers' steps differ, if both can be refitted."""
        numbers = self._traces[0].numbers()
        last = max(self._step + 1, min(len(numbers), _FIRST_STEPS))
        # beyond a step that is not recorded, what moved a weight is not known
        numbers = [each for place, each in enumerate(numbers[:last]) if each == place]
        if last > _MOST_STEPS or len(numbers) <= self._step:
            return ""
        dtype = str(self._traces[0].header["dtype"])
        moves = [_moves(trace, numbers) for trace in self._traces]
        facts = [trace.header.get("facts", {}) for trace in self._traces]
        fits = refit_both(moves, dtype, facts)
        if fits is None:
            return ""
        parameter = ""
        if self._rung in _OF_STEP:
            parts = self._first.split("/")[1:]
            names = ("/".join(parts), "/".join(parts[:-1]))
            parameter = next((n for n in names if moves[0] and n in moves[0][0]), "?")
        if told := difference(fits, moves, dtype, self._labels, parameter):
            return told
        return self._held(fits, moves, numbers, parameter) if dtype == "float32" else ""

    def _held(
        self, fits: Sequence[Fit], moves: Sequence[Moves], numbers: Sequence[int], name: str
    ) -> str:
        """Say that a side holds 1 - beta2 in float32, if it is a matter of the last digits."""
        a, b = (each[self._first].astype(np.float64) for each in self._now)
        if a.shape != b.shape or np.abs(a - b).max() > _LAST_DIGITS * np.abs(a).max():
            return ""
        squares: list[list[np.ndarray]] = [[], []]
        if self._rung == "optimizer" and all(name in step for each in moves for step in each):
            slot = self._first.partition("/")[2]
            squares = [
                [_of(tensors, "optimizer")[slot] for _, tensors in trace.steps(numbers)]
                for trace in self._traces
            ]
        return held_in_float32(fits, moves, squares, self._labels, name)

    def _still(self) -> str:
        """Say which weights one side alone leaves as they were, if the first is one of them."""
        if not self._first.startswith("weight/"):
            return ""
        for mine, label in enumerate(self._labels):
            still = [n for n in self._wrong if self._stands(mine, n)]
            if still[:1] == [self._first] and not self._stands(1 - mine, self._first):
                names = [each.removeprefix("weight/") for each in still]
                return f"{of_parameters(names, 'do not move')} in step {self._step} of {label}"
        return ""

    def _stands(self, side: int, name: str) -> bool:
        """Return whether a weight is, to the bit, what it was before the step."""
        if not name.startswith("weight/") or name not in self._now[side]:
            return False
        if not self._step:
            before, own = self._now[side], name.replace("weight/", "initial/", 1)
        elif self._step - 1 in self._traces[side].numbers():
            before, own = self._before(side), name
        else:
            return False
        return own in before and np.array_equal(self._now[side][name], before[own])

    def _before(self, side: int) -> Tensors:
        """Return a side's tensors of the step before."""
        if side not in self._step_before:
            self._step_before[side] = self._traces[side].read(self._step - 1)
        return self._step_before[side]

    def _kinks(self) -> Iterator[Explanation]:
        """Yield the outputs that are zero on one side alone, where those before agree."""
        a, b = self._now
        for name in a:
            if not name.startswith("forward/") or name in self._wrong or name not in b:
                continue
            if count := flips(a[name], b[name]):
                yield Explanation(
                    self._first,
                    f"a kink: {count:,} of {a[name].size:,} elements of {name} are zero on one "
                    "side alone, by rounding; their gradients are all or nothing",
                )
                return


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or not b.any():
        return False
    return float(np.abs(a - b).max()) <= SAME * float(np.abs(b).max())


def _moves(trace: Trace, numbers: Sequence[int]) -> Moves:
    """Return some elements of each parameter's gradient, and weight before and after."""
    steps: list[dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]] = []
    before: dict[str, np.ndarray] = {}
    for _, tensors in trace.steps(numbers):
        if not steps:
            before = _of(tensors, "initial")
        gradients = _of(tensors, "gradient") | _of(tensors, "clipped_gradient")
        after = _of(tensors, "weight")
        steps.append(
            {
                name: (gradients[name], before[name], weight)
                for name, weight in after.items()
                if name in gradients
                and name in before
                and gradients[name].shape == before[name].shape == weight.shape
            }
        )
        before = after
    return steps if all(steps) else []


def _of(tensors: Tensors, kind: str) -> dict[str, np.ndarray]:
    """Return name -> some elements, as float64, of the tensors of a kind."""
    found = {}
    for full, array in tensors.items():
        own, _, name = full.partition("/")
        if own == kind and array.dtype.kind == "f":
            flat = array.reshape(-1)
            places = np.linspace(0, len(flat) - 1, min(len(flat), SOME)).astype(int)
            found[name] = flat[np.unique(places)].astype(np.float64)
    return found
