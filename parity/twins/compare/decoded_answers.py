"""The decode rung: greedy and beam search of each side, and of the oracle with its weights.

After the last recorded step a side decodes some sentences with the weights that it has then.
The oracle decodes the same sentences in float64 from the weights that the side recorded. Tokens
must be equal, one by one, and scores within the tolerance. There is one exception: a tie. Where
the oracle's own search decided by less than rounding can change, a side may have decided the
other way; the report then shows both scores. The side's score must still be the one that the
oracle gives to the side's tokens.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from parity.base.errors import NumericFailure, UsageError
from parity.base.special_tokens import PAIR_EOS_ID
from parity.compare.coverage import join_facts
from parity.compare.findings import Finding
from parity.compare.tensors import ONE_STEP, Distance, Mismatch, Place
from parity.trace.tolerances import TABLE, Tolerance
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES
from parity.twins.compare.step_coverage import answer_facts
from parity.twins.decoding.hypotheses import length_penalty_of
from parity.twins.oracle.decode import OracleModel, rescore
from parity.twins.oracle.rounding import rounding_of_scores
from parity.twins.oracle.training import recorded_weights
from parity.twins.spec.spec import Spec
from parity.twins.trace.decoded import DECODED, SEARCHES, decode, decode_tensors

Arrays = Mapping[str, np.ndarray]

_LEAST_SCORE = 0.1  # nats

# (search, number of the sentence) -> the scores that a side's hypotheses should have.
Rescore = Callable[[str, int], np.ndarray]

_AT_A_TIME = 64  # sentences; all at once, their logits might not fit into memory


@dataclass(frozen=True)
class Tie:
    """A sentence that a side decoded differently, where rounding can decide either way.

    Attributes:
      side: the label of the side.
      place: the first token that differs, or the first `<eos>` that only one of them has.
      scores: the scores of the side's and of the oracle's hypothesis, in nats; -inf for none.
      margin: the difference by which the oracle's search decided, in nats.
    """

    side: str
    place: Place
    scores: tuple[float, float]
    margin: float

    def __str__(self) -> str:
        return (
            f"{self.side}: {self.place.tensor}, step {self.place.step}, {_where(self.place)}: "
            f"a tie that broke the other way: scores {self.scores[0]:.9g} and "
            f"{self.scores[1]:.9g} (oracle), decided by {self.margin:.2g}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "side": self.side,
            **self.place.to_json(),
            "scores": [score if math.isfinite(score) else None for score in self.scores],
            "margin": self.margin,
        }


@dataclass(frozen=True)
class DecodedFinding(Finding):
    """What the comparison of decoded answers found.

    Attributes:
      ties: the sentences that a side decoded differently where rounding can decide either way.
    """

    ties: tuple[Tie, ...] = ()


def compare_searches(
    spec: Spec, step: int, tensors: Mapping[str, Arrays], pairs: Iterable[tuple[str, str]]
) -> list[DecodedFinding]:
    """Compare what each side decoded with the oracle's, and the pairs with each other.

    Args:
      spec: what was trained.
      tensors: label -> recorded tensors.
      pairs: labels of the sides to compare with each other.

    Raises:
      UsageError, NumericFailure: as `check_decoded`.
    """
    model, dtype = spec.model, spec.training.dtype
    first = next(iter(tensors.values()))
    for side, recorded in tensors.items():
        check_decoded(recorded, first, side, step, model.source_vocabulary_size)
    findings, margins = [], dict[str, dict[str, list[float]]]()
    tolerance = TABLE[dtype, "decode"]
    for side, recorded in tensors.items():
        beam, penalty, most = recorded["decode/settings"].tolist()
        asked = recorded["decode/source"], recorded["decode/source_lengths"]
        oracle = OracleModel(model, recorded_weights(recorded))
        searches = decode(oracle, *asked, int(beam), penalty, int(most))
        expected = decode_tensors(*asked, searches, int(beam), penalty, int(most))
        margins[side] = {
            search: [hypotheses.margin for hypotheses in sentences]
            for search, sentences in searches.items()
        }
        rescored = score_recorded(oracle, recorded, model.target_vocabulary_size)
        given = recorded, expected, margins[side], (side, ONE_STEP), step, tolerance, rescored
        found = compare_decoded(*given)
        if found.first and not found.first.problem:
            # the weights may amplify rounding by more than the tolerance allows for
            again = partial(scores_again, model, recorded)
            rounding = rounding_of_scores(recorded, dtype, again)
            found = compare_decoded(*given, least=ONE_STEP_TIMES["forward"] * rounding)
        if recorded is first:  # the others decode the same sentences
            facts = join_facts(*map(answer_facts, searches.values()))
            found = replace(found, facts=facts)
        findings.append(found)
    return findings + [
        compare_decoded(tensors[a], tensors[b], margins[a], (a, b), step, tolerance)
        for a, b in pairs
    ]


_WIDEST = 10_000  # a beam that no search could work with


def _check_settings(recorded: Arrays, where: str) -> None:
    """Check that the oracle can search as a side says that it did, within its own sizes."""
    settings, written = recorded["decode/settings"], recorded["decode/beam_tokens"].shape
    if settings.shape == (3,):
        beam, penalty, most = settings.tolist()
        longest = written[-1] if written else 0
        if 1 <= beam <= _WIDEST and 1 <= most <= longest and 0 <= penalty < math.inf:
            return
    seen = f"decode/settings is {str(settings.tolist())[:60]}"
    raise UsageError(
        f"{where}: {seen}, and decode/beam_tokens has shape {list(written)}; "
        "allowed: a beam, a length penalty, and the tokens of an answer"
    )


def check_decoded(recorded: Arrays, first: Arrays, side: str, step: int, words: int) -> None:
    """Check that what a side decoded can be compared with what the first side decoded.

    Args:
      recorded, first: what the side and the first side recorded.
      words: the size of the source vocabulary.

    Raises:
      UsageError: if a tensor is missing, or the sides decoded other sentences or with other
        settings.
      NumericFailure: for a hypothesis whose score is not a finite number.
    """
    where = f"{side}, step {step}"
    for name in DECODED:
        if name not in recorded:
            raise UsageError(f"{where}: {name} is missing; allowed: decoded by all sides")
    for name in ("source", "source_lengths", "settings"):
        mine, its = (each[f"decode/{name}"] for each in (recorded, first))
        if not np.array_equal(mine, its):
            seen = " against ".join(str(each.tolist())[:60] for each in (mine, its))
            raise UsageError(f"{where}: decode/{name} is {seen}; allowed: one for all sides")
    _check_settings(recorded, where)
    source, lengths = recorded["decode/source"], recorded["decode/source_lengths"]
    if source.ndim != 2 or lengths.shape != source.shape[:1]:
        shapes = f"{list(source.shape)} and {list(lengths.shape)}"
        raise UsageError(f"{where}: decode/source and its lengths have shapes {shapes}")
    for name, array, least, most in (
        ("source", source, 0, words - 1),
        ("source_lengths", lengths, 1, source.shape[1]),
    ):
        if array.size and (array.min() < least or array.max() > most):
            raise UsageError(
                f"{where}: decode/{name} holds {array.min()} to {array.max()}; "
                f"allowed: {least} to {most}"
            )
    for kind in SEARCHES:
        tokens, finished, scores = _parts(recorded, kind)
        if tokens.shape[:2] != finished.shape or scores.shape != finished.shape:
            continue  # not the shapes of a search: a mismatch
        # where there is no hypothesis, there is no token and no `<eos>`, and the score is -inf
        bad = np.where(_written(tokens, finished), ~np.isfinite(scores), ~np.isneginf(scores))
        if bad.any():
            index = tuple(map(int, np.argwhere(bad)[0]))
            place = Place(step, f"decode/{kind}_scores", index)
            raise NumericFailure(f"{side}: {scores[index]} in {place}")


def score_recorded(model: OracleModel, recorded: Arrays, vocabulary: int) -> Rescore:
    """Return a function that scores the hypotheses that a side recorded.

    Args:
      model: the oracle with the side's weights.
      recorded: what the side recorded of decoding.
      vocabulary: the number of target tokens.

    Returns:
      (search, number of the sentence) -> float64 [hypotheses], -inf where there is none, NaN
      for one that no search can produce.
    """

    def scores(kind: str, row: int) -> np.ndarray:
        found: np.ndarray = _score(model, recorded, vocabulary, kind, slice(row, row + 1))[0]
        return found

    return scores


def scores_again(
    spec: Any, recorded: Arrays, weights: Arrays, searches: Sequence[str] = SEARCHES
) -> np.ndarray:
    """Return the scores of all recorded hypotheses, computed in the weights' precision.

    Args:
      spec: the network.
      recorded: what the side recorded of decoding.
      weights: parameter name -> array.
      searches: the searches that were recorded.
    """
    model = OracleModel(spec, weights, next(iter(weights.values())).dtype.type)
    vocabulary, count = spec.target_vocabulary_size, len(recorded["decode/source"])
    found = [
        _score(model, recorded, vocabulary, search, slice(start, start + _AT_A_TIME)).ravel()
        for search in searches
        for start in range(0, count, _AT_A_TIME)
    ]
    return np.concatenate(found)


def _score(
    model: OracleModel, recorded: Arrays, vocabulary: int, kind: str, rows: slice
) -> np.ndarray:
    """Score the hypotheses of some sentences, as `score_recorded` does: [rows, hypotheses]."""
    _, alpha, _ = recorded["decode/settings"].tolist()
    tokens, finished, _ = (part[rows] for part in _parts(recorded, kind))
    ended = tokens < 0
    lengths = np.where(ended.any(axis=2), ended.argmax(axis=2), tokens.shape[2])
    inside = np.arange(tokens.shape[2]) < lengths[..., None]
    words = (tokens > PAIR_EOS_ID) & (tokens < vocabulary)
    fine = np.where(inside, words, tokens == -1).all(axis=2)
    written = np.nonzero(fine & _written(tokens, finished))
    found = np.where(fine, -np.inf, np.nan)
    if not len(written[0]):
        return found
    asked = (recorded[f"decode/{name}"][rows] for name in ("source", "source_lengths"))
    source, source_lengths = (array[written[0]] for array in asked)
    ends = finished[written]
    answers = [
        answer[:length].tolist()
        for answer, length in zip(tokens[written], lengths[written], strict=True)
    ]
    scores = rescore(model, source, source_lengths, answers, ends.tolist())
    if kind == "beam":  # greedy search scores by log probability alone
        scores /= [length_penalty_of(int(n), alpha) for n in lengths[written] + ends]
    found[written] = scores
    return found


def compare_decoded(
    recorded: Arrays,
    expected: Arrays,
    margins: Mapping[str, list[float]],
    sides: tuple[str, str],
    step: int,
    tolerance: Tolerance,
    rescored: Rescore | None = None,
    least: float = 0.0,
    searches: Sequence[str] = SEARCHES,
) -> DecodedFinding:
    """Compare what a side decoded with what was expected; return the first mismatch.

    Args:
      recorded, expected: decoded sentences as a trace records them.
      margins: search -> for each sentence, the difference by which the expected search decided,
        in nats.
      tolerance: how much scores may differ; a smaller margin is a tie.
      rescored: returns the scores that the recorded hypotheses of a tie should have.
      least: a difference that is allowed in every score, in nats.
      searches: the searches that were recorded.
    """
    worst, ties = Distance(used=0.0), list[Tie]()
    first: Mismatch | None = None
    for kind in searches:
        names = [f"decode/{kind}_{part}" for part in _PARTS]
        for name in names:
            if recorded[name].shape != expected[name].shape:
                seen = f"{list(recorded[name].shape)} against {list(expected[name].shape)}"
                found = Mismatch(sides, Place(step, name, ()), problem=f"shape {seen}")
                return _finding(sides, worst, first or found, ties)
        tokens, finished, scores = ([a[name] for a in (recorded, expected)] for name in names)
        same = (tokens[0] == tokens[1]).all(axis=2) & (finished[0] == finished[1])
        for row in range(len(same)):
            should = scores[1][row]
            if not same[row].all():
                rank = int(np.argmin(same[row]))
                place = _first_difference(tokens, kind, step, row, rank)
                pair = float(scores[0][row, rank]), float(scores[1][row, rank])
                margin = margins[kind][row]
                if margin > float(_allowed(tolerance, should, least).max()):
                    first = first or _other_words(
                        sides, place, (recorded, expected), pair, margin, same
                    )
                    continue
                ties.append(Tie(sides[0], place, pair, margin))
                if rescored is None:
                    continue
                should = rescored(kind, row)
            distance, found_here = _compare_scores(
                scores[0][row], should, sides, Place(step, names[2], (row,)), tolerance, least
            )
            worst.add(distance)
            first = first or found_here
    return _finding(sides, worst, first, ties)


def _finding(
    sides: tuple[str, str], worst: Distance, first: Mismatch | None, ties: list[Tie]
) -> DecodedFinding:
    mismatches = (first,) if first else ()
    return DecodedFinding(sides, {"decode": worst}, mismatches, ties=tuple(ties))


_PARTS = ("tokens", "finished", "scores")


def _parts(recorded: Arrays, kind: str) -> list[np.ndarray]:
    return [recorded[f"decode/{kind}_{part}"] for part in _PARTS]


def _written(tokens: np.ndarray, finished: np.ndarray) -> np.ndarray:
    """Return which hypotheses exist, [..., hypotheses]."""
    written: np.ndarray = finished | (tokens >= 0).any(axis=-1)
    return written


def _allowed(tolerance: Tolerance, scores: np.ndarray, least: float) -> np.ndarray:
    # A log probability near zero is a difference of logits, and no more exact than they are:
    # seen 1.3e-8 off in float32 where it was -2.3e-6. It may differ by as much as one of 0.1.
    magnitude = np.maximum(np.where(np.isfinite(scores), np.abs(scores), 0.0), _LEAST_SCORE)
    allowed: np.ndarray = np.maximum(tolerance.allowed(magnitude, magnitude), least)
    return allowed


def _compare_scores(
    scores: np.ndarray,
    expected: np.ndarray,
    sides: tuple[str, str],
    sentence: Place,
    tolerance: Tolerance,
    least: float,
) -> tuple[Distance, Mismatch | None]:
    """Compare the scores of one sentence, [hypotheses]."""
    allowed = _allowed(tolerance, expected, least)
    with np.errstate(invalid="ignore"):
        difference = np.abs(scores - expected)
    difference = np.where(scores == expected, 0.0, difference)  # also where both are -inf
    used = difference / np.maximum(allowed, np.finfo(np.float64).tiny)
    rank = int(np.argmax(used))  # NaN counts as the largest
    place = Place(sentence.step, sentence.tensor, (*sentence.index, rank))
    if not used[rank] <= 1:
        values = dict(zip(sides, (float(scores[rank]), float(expected[rank])), strict=True))
        count = int(np.count_nonzero(~(used <= 1)))
        problem = ""
        if not math.isfinite(difference[rank]):
            problem, values = f"{_where(place)}: scores {_against(values.values())}", {}
        return Distance(), Mismatch(
            sides, place, values, float(allowed[rank]), count, used.size, problem
        )
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    absolute = float(difference[rank])
    relative = absolute / scale if scale else 0.0
    return Distance(absolute, relative, place, float(used[rank])), None


def _other_words(
    sides: tuple[str, str],
    place: Place,
    both: tuple[Arrays, Arrays],
    scores: tuple[float, float],
    margin: float,
    same: np.ndarray,
) -> Mismatch:
    values = {
        side: float(each[place.tensor][place.index])
        for side, each in zip(sides, both, strict=True)
    }
    what = "token" if place.tensor.endswith("tokens") else "finished"
    problem = (
        f"{_where(place)}: {what} {_against(values.values())}, scores "
        f"{_against(scores)}; no tie"
        + (f", decided by {margin:.3g}" if np.isfinite(margin) else "")
    )
    return Mismatch(sides, place, values, 0.0, int((~same).sum()), same.size, problem)


def _first_difference(
    tokens: list[np.ndarray], kind: str, step: int, row: int, rank: int
) -> Place:
    other = tokens[0][row, rank] != tokens[1][row, rank]
    if not other.any():
        return Place(step, f"decode/{kind}_finished", (row, rank))
    return Place(step, f"decode/{kind}_tokens", (row, rank, int(np.argmax(other))))


def _where(place: Place) -> str:
    names = ("sentence", "rank", "position")
    return ", ".join(f"{name} {at}" for name, at in zip(names, place.index, strict=False))


def _against(values: Iterable[float]) -> str:
    return " against ".join(f"{value:.9g}" for value in values)
