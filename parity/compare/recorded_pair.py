"""Compares two trainings that a `Recorder` recorded.

There is no oracle here: the report says where two sides part, not which of them is right. The
tensors of each step are judged in the order of computation (rung by rung, and within a rung as
the first side recorded them).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from reprlib import repr as shortened
from typing import Any

import numpy as np

from parity.base.errors import NumericFailure, UsageError
from parity.base.progress import ProgressBar
from parity.compare.by_statistics import HOW
from parity.compare.declared_bounds import Bound, Bounds, declared_tolerances
from parity.compare.explanation import explain
from parity.compare.measured_bounds import MeasuredBounds
from parity.compare.step_comparison import StepComparison, add_losses_after, common_steps
from parity.compare.step_series import History
from parity.compare.steps import StepBounds, compare_step
from parity.compare.tensors import Distance, Mismatch, check_numbers, compare_tensor
from parity.compare.verdict import Verdict
from parity.trace.reader import Trace
from parity.trace.reduced import Reduced
from parity.trace.rungs import fits, rung_of, rungs
from parity.trace.side import labels_of
from parity.trace.tolerances import EXACT, Tolerance

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PairVerdict(Verdict):
    """What the comparison of two recorded trainings found.

    Attributes:
      tensors: the names of the tensors, in the order of computation.
      loss: the name of the tensor that the figures show as the loss; None if there is none.
      bounds: the bounds that were used, in the order of the rungs.
      by_statistics: name of a tensor of which a side recorded no more -> what was compared
        instead of its elements, the least telling of all steps.
      not_judged: the tensors that in some step were empty, or allowed to differ by their own
        magnitude or more.
      batch: the shapes of what the first step read.
    """

    tensors: Sequence[str] = ()
    loss: str | None = None
    bounds: Sequence[Bound] = ()
    by_statistics: Mapping[str, str] = field(default_factory=dict)
    not_judged: Sequence[str] = ()
    batch: Sequence[Sequence[int]] = ()


def compare_pair(
    traces: Sequence[Trace],
    tolerances: Mapping[str, Tolerance] | None = None,
    after_mismatch: int = 0,
    measured: MeasuredBounds | None = None,
) -> PairVerdict:
    """Compare two trainings that a `Recorder` recorded, up to the first mismatch.

    Args:
      traces: the two.
      tolerances: rung, or pattern of names -> tolerance; they replace those that the traces
        declare under the same key.
      after_mismatch: the number of steps to measure after the first that has a mismatch.
      measured: bounds of tensors that nobody declares.

    Raises:
      UsageError: if the two cannot be compared, or one is damaged.
      NumericFailure: for a NaN or infinity.
    """
    a, b = sides = _labels(traces)
    first, second = traces
    if first.of_recorder != second.of_recorder:
        kinds = ["a Recorder's" if trace.of_recorder else "of a train.py" for trace in traces]
        raise UsageError(f"{a} is {kinds[0]}, {b} is {kinds[1]}; allowed: two of a kind")
    _check_same_run(sides, first.header, second.header)
    dtype = str(first.header["dtype"])
    if measured is not None and measured.dtype != dtype:
        raise UsageError(f"bounds of {measured.dtype}; allowed: of {dtype}, as both sides are")
    declared = declared_tolerances(sides, traces, tolerances or {})
    bounds = Bounds(dtype, declared, measured)
    comparison = _PairComparison((a, b), traces, History(dtype, (a, b)), bounds, after_mismatch)
    numbers, cut = common_steps({a: first, b: second})
    with ProgressBar("comparing", len(numbers), "step") as progress:
        comparison.compare(_steps_of(a, first, b, second, progress), numbers=numbers)
    if comparison.mismatches and comparison.loss is not None:
        add_losses_after(comparison.history, {a: first, b: second}, numbers, comparison.loss)
    return PairVerdict(
        dtype,
        comparison.worst,
        comparison.mismatches,
        growth=comparison.growth,
        steps=comparison.steps,
        history=comparison.history,
        sides={a: first.side, b: second.side},
        cut=cut,
        sources={a: first.sources, b: second.sources},
        tensors=comparison.tensors,
        loss=comparison.loss,
        bounds=bounds.used(),
        by_statistics=comparison.by_statistics,
        not_judged=list(comparison.not_judged),
        batch=comparison.batch,
        explanations=explain(traces, sides, comparison.mismatches),
    )


class _PairComparison(StepComparison):
    """Compares the steps of a pair by the bounds of its tensors."""

    def __init__(
        self,
        sides: tuple[str, str],
        traces: Sequence[Trace],
        history: History,
        bounds: Bounds,
        after_mismatch: int,
    ):
        super().__init__(after_mismatch)
        self._traces = dict(zip(sides, traces, strict=True))
        self._sides, self._bounds, self.history = sides, bounds, history
        self.tensors: list[str] = []
        self.loss: str | None = None
        self.by_statistics: dict[str, str] = {}
        self.not_judged: dict[str, None] = {}
        self.batch: list[list[int]] = []
        self.worst = {sides: {}}

    def _step(self, step: int, tensors: Mapping[str, Tensors], *, judge: bool) -> None:
        a, b = (tensors[side] for side in self._sides)
        self._check_numbers(step, a, b)
        if judge:
            self._judge(step, a, b)

        def distances() -> Mapping[tuple[str, str], Mapping[str, Distance]]:
            self.history.add_losses_after(step, self._losses(a, b))
            found = compare_step(a, b, self._sides, step, _in_order(a), None)
            return {self._sides: found.distances}

        self._add_growth(step, distances)

    def _check_numbers(self, step: int, a: Tensors, b: Tensors) -> None:
        """Check that both sides recorded finite numbers.

        Raises:
          NumericFailure: for the first tensor that has others, and the first one before it that
            differs.
        """
        names = _in_order(a)
        for place, name in enumerate(names):
            told = []
            for side, tensors in zip(self._sides, (a, b), strict=True):
                if name not in tensors:
                    continue
                try:
                    # batch/sizes says which replica had a row only in this project's trainings
                    check_numbers({name: tensors[name]}, side, step, [name])
                except NumericFailure as failure:
                    told.append(str(failure))
            if not told:
                continue
            bounds = StepBounds(lambda name: self._bounds.at(name, step))
            found = compare_step(a, b, self._sides, step, names[:place], bounds, types=True)
            if found.mismatches:
                told.append(
                    f"the first tensor that differs is {found.mismatches[0].place.tensor}"
                )
            raise NumericFailure("; ".join(told))

    def _judge(self, step: int, a: Tensors, b: Tensors) -> None:
        names = _in_order(a)
        if not self.tensors:
            self.tensors, self.loss = names, _loss(a)
            self.batch = [list(a[n].shape) for n in names if n.startswith("batch/")]
            unused = self._bounds.unused(names)
            # some tensors are there in later steps alone, such as a gradient once it is clipped
            lines = self._traces[self._sides[0]].lines() if unused else ()
            later = {name for line in lines for name in line["digests"]}
            for key in unused:
                if not any(fits(name, key) or rung_of(name) == key for name in later):
                    raise UsageError(f"tolerance of {key!r}: no tensor has such a name")
        bounds = StepBounds(lambda name: self._bounds.at(name, step))
        known = self.worst[self._sides]
        found = compare_step(a, b, self._sides, step, names, bounds, known, types=True)
        self._add([found])
        for name, distance in found.distances.items():
            before = self.by_statistics.get(name, distance.by)
            bound = self._bounds.at(name, step)
            if max(bound.relative, bound.floor, bound.step) >= 1 or 0 in a[name].shape:
                self.not_judged[name] = None
            if distance.by:
                self.by_statistics[name] = max(before, distance.by, key=HOW.index)
        wrong = [*self._between_ranks(step, names), *found.mismatches]
        self.mismatches = tuple(sorted(wrong, key=lambda each: names.index(each.place.tensor)))
        # neither is drawn where one is no single number, which is a mismatch
        losses = self._losses(a, b)
        both = losses if len(losses) == 2 else {}
        self.history.add(step, both, found.distances, [found.shares])
        self.steps += 1

    def _between_ranks(self, step: int, names: Sequence[str]) -> Iterator[Mismatch]:
        """Yield the tensors in which the ranks of one side differ, and should not.

        Raises:
          NumericFailure: if one of them is not finite there.
        """
        for side, trace in self._traces.items():
            for name, ranks in trace.unequal(step).items():
                (i, x), (j, y) = ranks
                labels = f"rank {i}", f"rank {j}"
                for label, array in zip(labels, (x, y), strict=True):
                    check_numbers({name: array}, f"{side}, {label}", step, [name])
                _, wrong = compare_tensor(x, y, labels, step, name, EXACT)
                if name in names and wrong is not None:
                    yield replace(wrong, within=side)

    def _losses(self, a: Tensors, b: Tensors) -> dict[str, float]:
        """Return label -> loss, of the sides whose loss is a single number."""
        losses = {
            side: _value(each, self.loss)
            for side, each in zip(self._sides, (a, b), strict=True)
        }
        return {side: loss for side, loss in losses.items() if loss is not None}


def _steps_of(
    a: str, first: Trace, b: str, second: Trace, progress: ProgressBar
) -> Iterator[dict[str, Tensors]]:
    """Yield side -> tensors for each step, and count the steps that are done."""
    for (_, of_a), (_, of_b) in zip(  # noqa: B905  one may go on where the other was cut
        first.everything(), second.everything()
    ):
        yield {a: of_a, b: of_b}
        progress.update()


def _labels(traces: Sequence[Trace]) -> list[str]:
    return labels_of([trace.side for trace in traces], [trace.folder for trace in traces])


def _check_same_run(sides: Sequence[str], a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Check that the headers of both sides describe one training."""
    for name in ("dtype", "run"):
        if a[name] == b[name]:
            continue
        seen = f"{shortened(a[name])} against {shortened(b[name])}"
        if name == "run" and isinstance(a[name], dict) and isinstance(b[name], dict):
            both = {key: (a[name].get(key), b[name].get(key)) for key in a[name] | b[name]}
            seen = "; ".join(
                f"{shortened(key)} {shortened(mine)} against {shortened(other)}"
                for key, (mine, other) in both.items()
                if mine != other
            )
        raise UsageError(
            f"{sides[0]} and {sides[1]} are not of the same run: {name} differs: {seen}"
        )


def _in_order(tensors: Tensors) -> list[str]:
    """Return names in the order of computation."""
    order = rungs()
    return sorted(tensors, key=lambda name: order.index(rung_of(name)))


def _loss(tensors: Tensors) -> str | None:
    """Return which tensor the figures show as the loss."""
    single = [n for n, each in tensors.items() if rung_of(n) == "loss" and _is_number(each)]
    return "loss/global" if "loss/global" in single else next(iter(single), None)


def _value(tensors: Tensors, name: str | None) -> float | None:
    if name is None or name not in tensors or not _is_number(tensors[name]):
        return None
    return float(tensors[name].reshape(()))


def _is_number(tensor: np.ndarray | Reduced) -> bool:
    return isinstance(tensor, np.ndarray) and tensor.size == 1
