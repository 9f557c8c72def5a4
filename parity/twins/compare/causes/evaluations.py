"""Mistakes of an evaluation, with which the oracle may reproduce what a side recorded of it.

An evaluation records its batches, and of each its number of tokens and its loss. From the
side's weights the oracle computes these anew with one mistake at a time. A mistake is confirmed
if what was wrong first is then right, in the validation text and in the test text.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from parity.compare.tensors import ONE_STEP, compare_tensor
from parity.trace.tolerances import EXACT, TABLE
from parity.twins.compare.causes.wrong_step import Confirmed
from parity.twins.oracle.training import (
    evaluation_losses,
    recorded_weights,
    replica_losses,
    token_losses,
)
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, dropout_masks
from parity.twins.trace.evaluated import SPLITS, Evaluation

Tensors = Mapping[str, np.ndarray]
Mistake = Callable[[str], Any]  # of a split's name

_FAULTS = {  # of the catalogue
    "rows counted as tokens": "evaluated-tokens-are-rows",
    "the loss of a batch divided by its rows": "evaluation-loss-per-row",
    "a state of zero for each batch": "evaluation-forgets-its-state",
    "a test text that goes on in the state of the other text": "evaluation-keeps-its-state",
    "activations multiplied by dropout's keep probability": "evaluation-scaled-by-keep",
    "activations multiplied by dropout's keep probability, in float32": (
        "evaluation-scaled-by-keep"
    ),
    "the rows of replica 0 alone": "evaluation-of-first-replica",
    "the rows of replica 0 in the place of all others": "evaluation-of-first-replica",
    "the initial weights": "evaluation-keeps-initial-weights",
    "the exponential of the mean of the batches' losses": "mean-of-batch-means",
    "the exponential of the sum of the batches' losses": "exponential-of-the-sum",
    "2 to the power of the mean loss": "perplexity-of-base-two",
    "a mean over all positions, padding included": "evaluation-counts-padding",
}


@dataclass(frozen=True)
class WrongEvaluation:
    """An evaluation of one side in which something is wrong.

    Attributes:
      spec: what was trained.
      step: the number of the step before it.
      side: the label of the side.
      replicas: how many the side has.
      splits: "valid" and "test" -> what the side recorded.
      weights: parameter -> array in float64, with which the side evaluated.
      before: in the same way the weights before the last step.
    """

    spec: Spec
    step: int
    side: str
    replicas: int
    splits: Mapping[str, Evaluation]
    weights: Tensors
    before: Tensors

    def losses(self, split: str, weights: Tensors | None = None) -> np.ndarray:
        """Return the loss of each batch of a split, [batches]."""
        inputs = self.splits[split].inputs
        given = self.weights if weights is None else weights
        return evaluation_losses(self.spec, given, inputs)

    def numbers(self, split: str, name: str) -> np.ndarray:
        """Return a number of each batch's inputs: its "rows", "num_tokens", "positions"."""
        return np.array([getattr(each, name) for each in self.splits[split].inputs])


def evaluation_causes(
    case: WrongEvaluation, part: str, seconds: float
) -> tuple[list[Confirmed], list[str]]:
    """Return the mistakes that reproduce what is wrong, and all that were tried.

    Args:
      part: what is wrong: "tokens_per_batch", "losses" or "perplexity".
      seconds: how long it may take.
    """
    last = time.monotonic() + seconds
    found, tried = list[Confirmed](), list[str]()
    for sentence, mistake in _MISTAKES[part](case):
        if time.monotonic() > last:
            break
        tried.append(sentence)
        apart = [_apart(case, part, split, mistake) for split in SPLITS]
        known = [each for each in apart if each is not None]
        if len(known) == len(apart):
            faults = (_FAULTS[sentence],) if sentence in _FAULTS else ()
            given = sentence, sentence, faults, max(known), (case.side,), (case.step,)
            found.append(Confirmed(*given))
    return found, tried


def _apart(case: WrongEvaluation, part: str, split: str, mistake: Mistake) -> float | None:
    """Return how far a split is from what a mistake makes of it; None if it is too far."""
    exact = part == "tokens_per_batch"
    recorded = {"tokens_per_batch": "tokens"}.get(part, part)
    tolerance = EXACT if exact else TABLE[case.spec.training.dtype, "evaluation"]
    with np.errstate(over="ignore"):
        tried = np.asarray(mistake(split))
    seen = np.asarray(getattr(case.splits[split], recorded))
    distance, wrong = compare_tensor(seen, tried, (case.side, ONE_STEP), 0, part, tolerance)
    return None if wrong else distance.relative


def _of_tokens(case: WrongEvaluation) -> Iterator[tuple[str, Mistake]]:
    yield "rows counted as tokens", lambda split: case.numbers(split, "rows")
    yield "positions counted as tokens", lambda split: case.numbers(split, "positions")


def _of_losses(case: WrongEvaluation) -> Iterator[tuple[str, Mistake]]:
    spec, splits = case.spec, case.splits

    def tokens(split: str) -> np.ndarray:
        return case.numbers(split, "num_tokens")

    def summed(split: str) -> np.ndarray:
        total: np.ndarray = case.losses(split) * tokens(split)
        return total

    def changed(split: str, change: Callable[[StepInputs], StepInputs]) -> np.ndarray:
        inputs = [change(each) for each in splits[split].inputs]
        return evaluation_losses(spec, case.weights, inputs)

    yield (
        "the loss of a batch divided by its rows",
        lambda split: summed(split) / case.numbers(split, "rows"),
    )
    yield (
        "the loss of a batch divided by all its positions",
        lambda split: summed(split) / case.numbers(split, "positions"),
    )
    yield "the loss of a batch summed", summed
    first = recorded_weights(initial_snapshot(spec))
    yield "the initial weights", lambda split: case.losses(split, first)
    yield "the weights before the last step", lambda split: case.losses(split, case.before)
    if any(each.carry for evaluated in splits.values() for each in evaluated.inputs):
        yield (
            "a state of zero for each batch",
            lambda split: changed(split, lambda each: replace(each, carry=False)),
        )

        def going_on(split: str) -> np.ndarray:
            if split == SPLITS[0]:
                return case.losses(split)
            first, *rest = splits[split].inputs
            inputs = [*splits[SPLITS[0]].inputs, replace(first, carry=True), *rest]
            return evaluation_losses(spec, case.weights, inputs)[-1 - len(rest) :]

        yield "a test text that goes on in the state of the other text", going_on
    keep_probability = getattr(spec.model, "keep", 1.0)
    if keep_probability < 1:

        def masks(each: StepInputs) -> dict[str, np.ndarray]:
            return dropout_masks(spec, case.step, each.batch)

        def scaled(each: StepInputs, keep: float) -> StepInputs:
            by = {name: np.full_like(mask, keep) for name, mask in masks(each).items()}
            return replace(each, masks=by)

        by_keep = "activations multiplied by dropout's keep probability"
        for sentence, keep in (
            (by_keep, keep_probability),
            (f"{by_keep}, in float32", float(np.float32(keep_probability))),
        ):
            yield sentence, partial(changed, change=partial(scaled, keep=keep))
        yield (
            "the dropout of the last step",
            lambda split: changed(split, lambda each: replace(each, masks=masks(each))),
        )
    for replica in range(case.replicas if case.replicas > 1 else 0):
        for times, ending in ((1, "alone"), (case.replicas, "in the place of all others")):

            def of_replica(split: str, replica: int = replica, times: int = times) -> Any:
                losses = [each[replica] for each in _by_replica(case, split)]
                return times * np.array(losses) / tokens(split)

            yield f"the rows of replica {replica} {ending}", of_replica


def _by_replica(case: WrongEvaluation, split: str) -> list[np.ndarray]:
    """Return for each batch the summed loss of each replica's rows, [replicas]."""
    return [
        replica_losses(each, 1.0, split_rows(len(each), case.replicas))
        for each in token_losses(case.spec, case.weights, case.splits[split].inputs)
    ]


def _of_perplexity(case: WrongEvaluation) -> Iterator[tuple[str, Mistake]]:
    def summed(split: str) -> float:
        return float(case.losses(split) @ case.numbers(split, "num_tokens"))

    def per(split: str, number: str) -> float:
        return summed(split) / float(case.numbers(split, number).sum())

    yield (
        "the exponential of the mean of the batches' losses",
        lambda split: np.exp(case.losses(split).mean()),
    )
    yield (
        "the exponential of the sum of the batches' losses",
        lambda split: np.exp(case.losses(split).sum()),
    )
    yield (
        "the mean of the batches' perplexities",
        lambda split: np.exp(case.losses(split)).mean(),
    )
    yield "2 to the power of the mean loss", lambda split: 2.0 ** per(split, "num_tokens")
    yield (
        "a mean over all positions, padding included",
        lambda split: np.exp(per(split, "positions")),
    )
    yield "a mean over rows", lambda split: np.exp(per(split, "rows"))
    yield "the mean loss itself", lambda split: per(split, "num_tokens")


_MISTAKES: Mapping[str, Callable[[WrongEvaluation], Iterator[tuple[str, Mistake]]]] = {
    "tokens_per_batch": _of_tokens,
    "losses": _of_losses,
    "perplexity": _of_perplexity,
}
