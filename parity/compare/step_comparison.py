"""Recorded steps one after another, up to the first mismatch and some steps beyond it.

The first step that has a mismatch decides the verdict. Steps after it are measured, to show how
the difference develops: see parity/compare/growth.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import numpy as np

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.compare.findings import Finding, Worst, join_findings
from parity.compare.growth import Growth, Pair
from parity.compare.step_series import MOST_POINTS, History
from parity.compare.tensors import Distance, Mismatch
from parity.trace.reader import Trace

Tensors = Mapping[str, np.ndarray]


class StepComparison(ABC):
    """Compares steps up to the last, or to the last one to measure after a mismatch.

    Args:
      after_mismatch: the number of steps to measure after the first that has a mismatch.

    Attributes:
      worst: pair -> rung -> the worst distance in the steps that were judged.
      mismatches: the mismatches of the first step that has any, in the order of computation.
      growth: how the difference develops; None if nothing differs or nothing is measured.
      steps: the number of steps judged.
    """

    def __init__(self, after_mismatch: int = 0):
        self._left = self._after = after_mismatch
        self.worst: Worst = {}
        self.mismatches: tuple[Mismatch, ...] = ()
        self.growth: Growth | None = None
        self.steps = 0

    @property
    def is_done(self) -> bool:
        """Return whether there is a mismatch, and no step after it is left to measure."""
        return bool(self.mismatches) and self._left <= 0

    def compare(
        self,
        steps: Iterable[Mapping[str, Tensors]],
        after_step: Callable[[], None] = lambda: None,
        numbers: Iterable[int] | None = None,
    ) -> None:
        """Compare steps, to the last or to the last one to measure after a mismatch.

        Once there is a mismatch, the verdict stands: a NaN in a later step, or a side that
        fails there, ends the comparison, and `growth` says so.

        Args:
          steps: for each step label -> what that side recorded.
          after_step: called after each.
          numbers: the numbers of the steps; from 0 on by default.

        Raises:
          UsageError, NumericFailure, SideFailed: for what goes wrong before any mismatch.
        """
        try:
            for step, tensors in zip(numbers or count(), steps, strict=False):
                self.step(step, tensors)
                after_step()
                if self.is_done:
                    return
        except (UsageError, NumericFailure, SideFailed) as error:
            if not self.mismatches:
                raise
            self._end_growth(str(error))
        else:
            self._end_growth("the run has no more steps")

    def step(self, step: int, tensors: Mapping[str, Tensors]) -> None:
        """Compare one step; after a mismatch, only measure how large the differences are.

        Args:
          tensors: label -> what that side recorded.

        Raises:
          UsageError: for a side that lacks a tensor, or holds one that it should not.
          NumericFailure: for a NaN or infinity on any side.
        """
        before = bool(self.mismatches)
        self._step(step, tensors, judge=not before)
        self._left -= before

    @abstractmethod
    def _step(self, step: int, tensors: Mapping[str, Tensors], *, judge: bool) -> None:
        """Judge a step, or measure it with `_add_growth` if the verdict stands."""

    def _add(self, findings: Iterable[Finding]) -> None:
        self.worst = join_findings(self.worst, findings)

    def _add_growth(
        self, step: int, distances: Callable[[], Mapping[Pair, Mapping[str, Distance]]]
    ) -> None:
        """Measure a step that is wrong or comes after one, if any are to be measured."""
        if self._after and self.mismatches:
            if self.growth is None:
                self.growth = Growth(self.mismatches[0].place.tensor)
            self.growth.add(step, distances())

    def _end_growth(self, reason: str) -> None:
        if self.growth is not None and not self.is_done:
            self.growth.ended = reason


def add_losses_after(
    history: History, traces: Mapping[str, Trace], numbers: Sequence[int], name: str
) -> None:
    """Add the losses of the steps after a mismatch that nothing else was measured in.

    Args:
      traces: label -> trace.
      numbers: the steps that all of them hold; of very many, some are read.
      name: the tensor that is the loss.
    """
    left = [step for step in numbers if history.last is None or step > history.last]
    try:
        for step in left[:: -(-len(left) // MOST_POINTS) or 1]:
            found = {label: trace.number(step, name) for label, trace in traces.items()}
            losses = {label: each for label, each in found.items() if each is not None}
            history.add_losses_after(step, losses)
    except UsageError:  # damaged: the verdict stands
        return


def common_steps(traces: Mapping[str, Trace]) -> tuple[list[int], dict[str, str]]:
    """Return the numbers of the steps that all traces hold, and which traces were cut.

    Args:
      traces: label -> trace.

    Returns:
      The numbers in the order recorded; and label -> where the trace was cut, as `Trace.cut`
      says it.

    Raises:
      UsageError: if they hold other steps, or none, or a trace that was not cut holds fewer.
    """
    numbers = {label: trace.numbers() for label, trace in traces.items()}
    cut = {label: where for label, trace in traces.items() if (where := trace.cut())}
    counts = ", ".join(
        f"{label} has {len(found)}" + (f", {cut[label]}" if label in cut else "")
        for label, found in numbers.items()
    )
    if not all(numbers.values()):
        raise UsageError(f"no steps to compare: {counts}")
    most, longest = max(numbers.items(), key=lambda each: len(each[1]))
    for label, found in numbers.items():
        if found == longest[: len(found)] and (len(found) == len(longest) or label in cut):
            continue
        only = min(set(longest) ^ set(found), default=None)
        where = f"only {label if only in found else most} has step {only}"
        raise UsageError(
            f"the traces hold different steps: {counts}; "
            f"{'in another order' if only is None else where}"
        )
    return min(numbers.values(), key=len), cut
