"""A training that recorded nothing, once it has ended: what it left, compared with the oracle.

Its first losses are those of the recorded run; of the steps after them nothing is recorded. But
checkpoints are kept, and the text is read here once more. From a checkpoint within an epoch the
oracle goes on for two steps: the loss of the first shows whether the weights and the recurrent
state are those of that step, and the loss of the second whether the update and the optimizer's
state are. The perplexities in the table are those that the oracle computes over the whole text
from the weights of the checkpoints.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parity.base.errors import UsageError
from parity.compare.findings import Finding
from parity.compare.tensors import ONE_STEP, Distance, Mismatch, Place, compare_tensor
from parity.trace.tolerances import TABLE
from parity.twins.compare.evaluation import perplexity_of
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES, RoundingMultiple
from parity.twins.oracle.perturbation import UNIT
from parity.twins.oracle.rounding import rounding_of_scores
from parity.twins.oracle.training import Oracle, evaluation_losses, recorded_weights
from parity.twins.run.measure_throughput import Training
from parity.twins.spec.spec import learning_rate
from parity.twins.spec.step_arrays import step_inputs
from parity.twins.trace.side import TrainedSide
from parity.twins.training.checkpoint import (
    Checkpoint,
    best_checkpoint,
    load_checkpoint,
    newest_first,
)
from parity.twins.training.text_source import TextSource

Tensors = Mapping[str, np.ndarray]

_GOES_ON = 2  # steps that the oracle takes from a checkpoint


class _Figures(NamedTuple):
    """Numbers of a step that a training wrote down, and how they follow from a checkpoint."""

    step: int
    name: str
    written: np.ndarray  # float64 [numbers]
    of: Callable[[Tensors], np.ndarray]  # from weights, parameter -> array
    checkpoint: Checkpoint


def find_unreadable(label: str, folder: Path) -> Finding | None:
    """Return the finding about a training that left a checkpoint not whole, if it left one.

    Args:
      label: the side that was trained.
      folder: the folder of the run.
    """
    try:
        _kept(folder)
    except UsageError as error:
        return _find_unreadable(label, error)
    return None


class FinishedTraining:
    """Compares what a training has left with the oracle.

    Args:
      label, side: the side that was trained.
      training: what it left.
      text: the text that it was trained on.
    """

    def __init__(self, label: str, side: TrainedSide, training: Training, text: TextSource):
        self._label, self._side, self._training, self._text = label, side, training, text

    def compare(self) -> Finding:
        """Return the first figure that is not the oracle's, or a checkpoint not whole."""
        sides, worst = (self._label, ONE_STEP), Distance()
        try:
            kept = _kept(self._training.folder)
        except UsageError as error:
            return _find_unreadable(self._label, error)
        for figures in self._figures(kept):
            dtype = figures.checkpoint.spec.training.dtype
            snapshot = figures.checkpoint.snapshot
            exact = figures.of(recorded_weights(snapshot))
            given = figures.written, exact, sides, figures.step, figures.name
            distance, mismatch = compare_tensor(*given, TABLE[dtype, "evaluation"])
            if mismatch is not None and mismatch.size:
                rounding = rounding_of_scores(snapshot, dtype, figures.of)
                rounding += UNIT[dtype] * float(np.max(figures.written))
                again = RoundingMultiple(ONE_STEP_TIMES["loss"], rounding)
                distance, mismatch = compare_tensor(*given, again)
            worst.add(distance)
            if mismatch is not None:
                place = Place(figures.step + sum(mismatch.place.index), figures.name, ())
                after = figures.checkpoint.step
                note = f"{self._label} without recording; the oracle starts from its checkpoint"
                note += f" after {after} steps"
                found = replace(mismatch, place=place, check="untraced", note=note)
                return Finding(sides, {"untraced": worst}, (found,))
        return Finding(sides, {"untraced": worst})

    def _figures(self, kept: list[Checkpoint]) -> Iterator[_Figures]:
        if self._side.synchronous:  # else a checkpoint does not tell what each worker does next
            yield from (self._steps_after(each) for each in kept[:-1])
        table = self._training.perplexities
        for each in kept if self._side.synchronous else kept[-1:]:
            if each.step in table:
                yield self._perplexity("valid", table[each.step], each)
        test = self._training.summary["test_perplexity"]
        if test is not None:
            best = best_checkpoint(self._training.folder / "checkpoints")
            tested = [each for each in kept if best is not None and each.step == best.step]
            yield self._perplexity("test", test, (tested or kept)[-1])

    def _steps_after(self, checkpoint: Checkpoint) -> _Figures:
        """Return the losses of the steps after a checkpoint, as the training wrote them."""
        spec, train = checkpoint.spec, self._text.train
        known = IntendedDifferences({self._label: self._side})
        rows = [row for row in self._training.rows if row[0] >= checkpoint.step][:_GOES_ON]
        inputs = [step_inputs(spec, row[0], train.batch(row[0])) for row in rows]

        def losses(weights: Tensors) -> np.ndarray:
            moved = {f"weight/{name}": array for name, array in weights.items()}
            oracle = Oracle(spec, {**checkpoint.snapshot, **moved})
            if checkpoint.state is not None:
                oracle.state = {
                    name: np.asarray(array, np.float64)
                    for name, array in checkpoint.state.items()
                }
            found = []
            for (step, _, _), each in zip(rows, inputs, strict=True):
                rate = learning_rate(spec.training, step // train.batches_per_epoch)
                with known.oracle_of(self._label):
                    result = oracle.step(each, rate, [each.rows])
                found.append(each.per_token(float(result["loss/global"])))
            return np.array(found)

        written = np.array([row[1] for row in rows])
        return _Figures(checkpoint.step, "losses.csv/loss", written, losses, checkpoint)

    def _perplexity(self, split: str, value: float | None, checkpoint: Checkpoint) -> _Figures:
        spec, batches = checkpoint.spec, getattr(self._text, split)
        every = range(batches.batches_per_epoch)
        read = (step_inputs(spec, step, batches.batch(step), train=False) for step in every)
        inputs = [each for each in read if each.num_tokens]

        tokens = np.array([each.num_tokens for each in inputs])

        def of(weights: Tensors) -> np.ndarray:
            losses = evaluation_losses(spec, weights, inputs)
            return np.array([perplexity_of(losses, tokens)])

        written = np.array([math.inf if value is None else value])
        name = f"perplexity/{split}"
        return _Figures(checkpoint.step - 1, name, written, of, checkpoint)


def _kept(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints of a run by step."""
    checkpoints = folder / "checkpoints"
    read = map(load_checkpoint, newest_first(checkpoints) if checkpoints.is_dir() else [])
    return sorted(read, key=lambda each: each.step)


def _find_unreadable(label: str, error: UsageError) -> Finding:
    sides, place = (label, ONE_STEP), Place(0, "checkpoints", ())
    found = Mismatch(sides, place, problem=str(error), within=label, check="untraced")
    return Finding(sides, {"untraced": Distance()}, (found,))
