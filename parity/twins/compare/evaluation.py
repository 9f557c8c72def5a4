"""The evaluation rung: validation and test text, evaluated by each side and by the oracle.

After the last recorded step a side evaluates its weights as it does after an epoch, and records
the batches, their losses, their numbers of tokens, and the perplexity that it reports. The
batches must be the same on all sides. The oracle evaluates them in float64, from the weights
that the side recorded, and computes the perplexity from its own losses and the batches' own
lengths. How far the sides are apart is reported, not judged: their weights differ by rounding.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from parity.base.errors import UsageError
from parity.compare.findings import Finding
from parity.compare.relation import explanations
from parity.compare.tensors import ONE_STEP, ORACLE, Distance, Mismatch, compare_tensor
from parity.trace.tolerances import EXACT, TABLE
from parity.twins.compare.causes.evaluations import WrongEvaluation, evaluation_causes
from parity.twins.compare.causes.wrong_step import Confirmed
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES, RoundingMultiple
from parity.twins.oracle.perturbation import UNIT
from parity.twins.oracle.rounding import rounding_of_scores
from parity.twins.oracle.run_parallel import run_parallel
from parity.twins.oracle.training import evaluation_losses, recorded_weights
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.evaluated import SPLITS, evaluated_names, recorded_evaluation

Tensors = Mapping[str, np.ndarray]

_JUDGED = ("tokens_per_batch", "losses", "perplexity")
_TIMES = ONE_STEP_TIMES["loss"]  # a loss of evaluation is computed as one of training is


class EvaluationRung:
    """Compares what the sides evaluated."""

    def __init__(self, spec: Spec):
        self._spec = spec

    def compare(
        self, step: int, tensors: Mapping[str, Tensors], pairs: list[tuple[str, str]]
    ) -> list[Finding]:
        """Compare the batches of all sides, each side with the oracle, and the pairs.

        Args:
          tensors: label -> recorded tensors.
          pairs: labels of the sides to compare with each other.

        Raises:
          UsageError: if a side lacks a tensor, or holds batches that cannot be read.
        """
        first = next(iter(tensors))
        for side, recorded in tensors.items():
            self._check(recorded, side, step)
        found = [
            self._compare_batches(tensors[first], tensors[side], (first, side), step)
            for side in tensors
            if side != first
        ]
        if any(finding.mismatches for finding in found):
            return found  # sides that read other batches have other losses
        expected = run_parallel(
            [partial(self._expected, recorded) for recorded in tensors.values()]
        )
        for (side, recorded), oracle in zip(tensors.items(), expected, strict=True):
            found.append(self._compare(recorded, oracle, (side, ONE_STEP), step))
        found += [self._compare(tensors[a], tensors[b], (a, b), step) for a, b in pairs]
        return found

    def causes(
        self,
        first: Mismatch,
        recorded: Tensors,
        before: Tensors,
        replicas: int,
        seconds: float,
    ) -> tuple[list[Confirmed], list[str]]:
        """Return the mistakes that reproduce what a side got wrong, and all that were tried.

        Args:
          first: its first mismatch.
          recorded: what the side recorded of that step.
          before: weights and optimizer state before the step.
          replicas: the number of the side's replicas.
          seconds: how long the search may take.
        """
        part = first.place.tensor.rpartition("/")[2]
        if first.sides[1] != ONE_STEP or part not in _JUDGED:
            return [], []
        splits = {each: recorded_evaluation(self._spec, each, recorded) for each in SPLITS}
        weights = recorded_weights(recorded), recorded_weights(before)
        side, step = first.sides[0], first.place.step
        case = WrongEvaluation(self._spec, step, side, replicas, splits, *weights)
        return evaluation_causes(case, part, seconds)

    def _check(self, recorded: Tensors, side: str, step: int) -> None:
        lacking = [name for name in evaluated_names(self._spec) if name not in recorded]
        if lacking:
            raise UsageError(
                f"{side}, step {step}: {lacking[0]} is missing; allowed: evaluated by all sides"
            )
        network = NETWORKS[self._spec.network]
        sizes = {
            name: getattr(self._spec.model, field)
            for name, field in network.vocabularies.items()
        }
        for split in SPLITS:
            for name in network.batch:
                array = recorded[f"evaluate/{split}/batch/{name}"]
                if array.size and (array.min() < 0 or array.max() >= sizes.get(name, np.inf)):
                    raise UsageError(
                        f"{side}, step {step}: evaluate/{split}/batch/{name} holds "
                        f"{array.min()} to {array.max()}; allowed: 0 to {sizes[name] - 1}"
                    )

    def _compare_batches(
        self, a: Tensors, b: Tensors, sides: tuple[str, str], step: int
    ) -> Finding:
        worst = Distance()
        for split in SPLITS:
            arrays = [f"batch/{name}" for name in NETWORKS[self._spec.network].batch]
            for name in (f"evaluate/{split}/{part}" for part in (*arrays, "rows", "carry")):
                distance, mismatch = compare_tensor(a[name], b[name], sides, step, name, EXACT)
                worst.add(distance)
                if mismatch is not None:
                    made = _other_text(a, b, split, sides) or _other_text(
                        b, a, split, sides[::-1]
                    )
                    note = f"{sides[0]} and {sides[1]} did not evaluate the same batches"
                    return _found(sides, worst, replace(mismatch, made=made, note=note))
        return _found(sides, worst)

    def _expected(self, recorded: Tensors) -> dict[str, np.ndarray]:
        """Return what the oracle computes from the side's weights, on its batches."""
        expected: dict[str, np.ndarray] = {}
        for split in SPLITS:
            inputs = recorded_evaluation(self._spec, split, recorded).inputs
            tokens = np.array([each.num_tokens for each in inputs], np.int64)
            losses = evaluation_losses(self._spec, recorded_weights(recorded), inputs)
            expected |= {
                f"evaluate/{split}/tokens_per_batch": tokens,
                f"evaluate/{split}/losses": losses,
                f"evaluate/{split}/perplexity": np.array(perplexity_of(losses, tokens)),
            }
        return expected

    def _compare(self, a: Tensors, b: Tensors, sides: tuple[str, str], step: int) -> Finding:
        """Compare token counts, losses and perplexities; return the first mismatch."""
        dtype = self._spec.training.dtype
        judged = sides[1] == ONE_STEP
        worst = Distance()
        for split in SPLITS:
            for part in _JUDGED:
                name = f"evaluate/{split}/{part}"
                exact = part == "tokens_per_batch"
                given = (a[name], b[name], sides, step, name)
                tolerance = EXACT if exact else TABLE[dtype, "evaluation"] if judged else None
                distance, mismatch = compare_tensor(*given, tolerance)
                if mismatch is not None and mismatch.size and not exact:
                    again = self._rounding(a, split, part, float(np.max(b[name])))
                    distance, mismatch = compare_tensor(*given, again)
                worst.add(distance)
                if mismatch is not None:
                    made = next(explanations(a[name], b[name]), "")
                    made = made.format(a=f"the {ORACLE}", b=sides[0])
                    return _found(sides, worst, replace(mismatch, made=made))
        return _found(sides, worst)

    def _rounding(
        self, recorded: Tensors, split: str, part: str, value: float
    ) -> RoundingMultiple:
        """Return the bound where the weights amplify rounding beyond the usual tolerance.

        Args:
          part: "losses" or "perplexity".
          value: the perplexity, whose absolute error is so many times that of the mean loss.
        """
        inputs = recorded_evaluation(self._spec, split, recorded).inputs
        dtype = self._spec.training.dtype

        def losses(weights: Tensors) -> np.ndarray:
            return evaluation_losses(self._spec, weights, inputs)

        rounding = rounding_of_scores(recorded, dtype, losses)
        if part == "perplexity":
            rounding = (rounding + UNIT[dtype]) * value
        return RoundingMultiple(_TIMES, rounding)


def _found(
    sides: tuple[str, str], worst: Distance, mismatch: Mismatch | None = None
) -> Finding:
    wrong = (replace(mismatch, check="evaluation"),) if mismatch else ()
    return Finding(sides, {"evaluation": worst}, wrong)


def _other_text(a: Tensors, b: Tensors, split: str, sides: tuple[str, str]) -> str:
    """Say that the first side evaluated as one split what the second has as the other one."""
    (other,) = (each for each in SPLITS if each != split)
    names = [f"evaluate/{each}/batch/targets" for each in (split, other)]
    is_other = np.array_equal(a[names[0]], b[names[1]])
    if is_other and not np.array_equal(b[names[0]], b[names[1]]):
        return f"{sides[0]} evaluated the {other} text there"
    return ""


def perplexity_of(losses: np.ndarray, tokens: np.ndarray) -> float:
    """Return the perplexity of batches; NaN without any, infinity if it overflows.

    Args:
      losses: the loss of each batch in nats per real token, [batches].
      tokens: the number of real tokens of each batch, [batches].
    """
    try:
        return math.exp((losses * tokens).sum() / tokens.sum()) if len(tokens) else math.nan
    except OverflowError:
        return math.inf
