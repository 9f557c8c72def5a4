"""The decode rung: greedy and beam search of each side, and of the oracle with its weights.

After the last recorded step a side decodes some sentences with the weights that it has then.
The oracle decodes the same sentences in float64 from the weights that the side recorded.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from parity.compare.tensors import ONE_STEP, Mismatch
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE
from parity.twins.compare.decoded_answers import (
    Rescore,
    check_decoded,
    compare_decoded,
    score_recorded,
    scores_again,
)
from parity.twins.compare.oracle_tensors import recorded_weights
from parity.twins.compare.step_coverage import StepCoverage
from parity.twins.compare.verdict import RunVerdict
from parity.twins.oracle.decode import OracleModel
from parity.twins.oracle.rounding import rounding_of_scores
from parity.twins.spec.spec import Spec
from parity.twins.trace.decoded import SEARCHES, decode, decode_tensors

Tensors = Mapping[str, np.ndarray]
Margins = dict[str, list[float]]


class DecodeRung:
    """Compares what the sides decoded, and adds distances and ties to a verdict."""

    def __init__(self, spec: Spec, verdict: RunVerdict, coverage: StepCoverage):
        self._spec, self._verdict, self._coverage = spec, verdict, coverage

    def compare(
        self, step: int, tensors: Mapping[str, Tensors], pairs: list[tuple[str, str]]
    ) -> list[Mismatch | None]:
        """Compare each side with the oracle, and the pairs with each other.

        Args:
          tensors: label -> recorded tensors.
          pairs: labels of the sides to compare with each other.
        """
        model = self._spec.model
        first = next(iter(tensors.values()))
        for side, recorded in tensors.items():
            check_decoded(recorded, first, side, step, model.source_vocabulary_size)
        found, margins = [], dict[str, Margins]()
        for side, recorded in tensors.items():
            beam, penalty, most = recorded["decode/settings"].tolist()
            asked = recorded["decode/source"], recorded["decode/source_lengths"]
            oracle = OracleModel(model, recorded_weights(recorded))
            searches = decode(oracle, *asked, int(beam), penalty, int(most))
            expected = decode_tensors(*asked, searches, int(beam), penalty, int(most))
            margins[side] = {
                search: [hypotheses.margin for hypotheses in sentences]
                for search, sentences in zip(SEARCHES, searches, strict=True)
            }
            if recorded is first:  # the others decode the same sentences
                for sentences in searches:
                    self._coverage.answers(sentences)
            pair = side, ONE_STEP
            scores = self._scores(recorded, oracle)
            found.append(self._compare(recorded, expected, pair, step, margins[side], scores))
        for a, b in pairs:
            found.append(self._compare(tensors[a], tensors[b], (a, b), step, margins[a]))
        return found

    def _compare(
        self,
        a: Tensors,
        b: Tensors,
        sides: tuple[str, str],
        step: int,
        margins: Margins,
        rescored: Rescore | None = None,
    ) -> Mismatch | None:
        dtype = self._spec.training.dtype
        arguments = a, b, margins, sides, step, TABLE[dtype, "decode"], rescored
        distance, mismatch, ties = compare_decoded(*arguments)
        if mismatch is not None and not mismatch.problem and rescored is not None:
            # the weights may amplify rounding by more than the tolerance allows for
            rounding = rounding_of_scores(a, dtype, partial(scores_again, self._spec.model, a))
            least = ONE_STEP_TIMES["forward"] * rounding
            distance, mismatch, ties = compare_decoded(*arguments, least=least)
        self._verdict.pairs.setdefault(sides, {})["decode"] = distance
        self._verdict.ties += ties
        return mismatch

    def _scores(self, recorded: Tensors, oracle: OracleModel) -> Rescore:
        return score_recorded(oracle, recorded, self._spec.model.target_vocabulary_size)
