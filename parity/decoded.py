"""The decode rung: what a side's greedy and beam search wrote, held against the oracle's.

After the last recorded step a side decodes some sentences with the weights it has then. The
oracle decodes the same sentences in float64 from the weights that the side recorded. Tokens
must be equal, one by one, and scores within the tolerance. One thing excuses other tokens: a
tie. Where the oracle's own search decided by less than rounding can move, the side may have
decided the other way; the report then shows both scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.compare import SEARCHES, Distance, Mismatch, Place
from parity.decoding import DecodingModel, Hypotheses, beam_search, greedy
from parity.tolerances import Tolerance

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Tie:
    """A sentence that a side decoded in another way, by less than rounding decides.

    Attributes:
      side: which.
      place: the first token that differs.
      scores: of the hypotheses there: the side's and the oracle's, in nats.
      margin: by how little the oracle's search decided.
    """

    side: str
    place: Place
    scores: tuple[float, float]
    margin: float

    def __str__(self) -> str:
        return (
            f"{self.side}: {self.place} is a tie that broke the other way: scores "
            f"{self.scores[0]:.9g} and {self.scores[1]:.9g} (oracle), decided by "
            f"{self.margin:.2g}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "side": self.side,
            **self.place.to_json(),
            "scores": list(self.scores),
            "margin": self.margin,
        }


def decode(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    beam: int,
    length_penalty: float,
    most: int,
) -> tuple[list[Hypotheses], list[Hypotheses]]:
    """Return what greedy and beam search write.

    Args:
      source: int64 [sentences, source_time].
      source_lengths: int64 [sentences].
      most: tokens produced at most, `<eos>` included.
    """
    return (
        greedy(model, source, source_lengths, most),
        beam_search(model, source, source_lengths, beam, length_penalty, most),
    )


def decode_tensors(
    source: np.ndarray,
    source_lengths: np.ndarray,
    found: tuple[list[Hypotheses], list[Hypotheses]],
    beam: int,
    length_penalty: float,
    most: int,
) -> dict[str, np.ndarray]:
    """Return what a trace records: name -> array.

    Greedy search has one hypothesis a sentence, beam search `beam`; tokens are
    [sentences, hypotheses, most], -1 where nothing was written; `<eos>` is not in them, and
    finished [sentences, hypotheses] says whether it ended them. Scores, in nats, are -inf
    where a search found fewer hypotheses.
    """
    tensors = {
        "decode/source": source,
        "decode/source_lengths": source_lengths,
        "decode/settings": np.array([beam, length_penalty, most], np.float64),
    }
    for kind, sentences, width in zip(SEARCHES, found, (1, beam), strict=True):
        shape = len(sentences), width
        tokens = np.full((*shape, most), -1, np.int64)
        finished, scores = np.zeros(shape, bool), np.full(shape, -np.inf)
        for row, hypotheses in enumerate(sentences):
            for rank, hypothesis in enumerate(hypotheses.ranked):
                tokens[row, rank, : len(hypothesis.tokens)] = hypothesis.tokens
                finished[row, rank] = hypothesis.finished
                scores[row, rank] = hypothesis.score
        tensors |= {
            f"decode/{kind}_tokens": tokens,
            f"decode/{kind}_finished": finished,
            f"decode/{kind}_scores": scores,
        }
    return tensors


def compare_decoded(
    recorded: Arrays,
    expected: Arrays,
    margins: Mapping[str, list[float]],
    sides: tuple[str, str],
    step: int,
    tolerance: Tolerance,
) -> tuple[Distance, Mismatch | None, list[Tie]]:
    """Hold what a side decoded against what was expected.

    Args:
      recorded, expected: of `decode_tensors`.
      margins: search -> per sentence, by how little the expected search decided, in nats.
      tolerance: of scores, and of margins that are ties.

    Returns:
      The worst distance of scores, the first mismatch, and the ties.
    """
    worst, ties = Distance(used=0.0), list[Tie]()
    first: Mismatch | None = None
    for kind in SEARCHES:
        names = [f"decode/{kind}_{part}" for part in ("tokens", "finished", "scores")]
        for name in names:
            if recorded[name].shape != expected[name].shape:
                seen = f"{list(recorded[name].shape)} against {list(expected[name].shape)}"
                found = Mismatch(sides, Place(step, name, ()), problem=f"shape {seen}")
                return worst, first or found, ties
        tokens, finished, scores = ([a[name] for a in (recorded, expected)] for name in names)
        magnitude = np.where(np.isfinite(scores[1]), np.abs(scores[1]), 0.0)
        allowed = tolerance.allowed(magnitude, magnitude)
        same = (tokens[0] == tokens[1]).all(axis=2) & (finished[0] == finished[1])
        for row in range(len(same)):
            tie = margins[kind][row] <= float(allowed[row].max())
            if not same[row].all():
                rank = int(np.argmin(same[row]))
                place = _first_difference(tokens, names[0], step, row, rank)
                if tie:
                    pair = float(scores[0][row, rank]), float(scores[1][row, rank])
                    ties.append(Tie(sides[0], place, pair, margins[kind][row]))
                    continue
                values = {
                    side: float(each[place.index])
                    for side, each in zip(sides, tokens, strict=True)
                }
                first = first or Mismatch(
                    sides, place, values, 0.0, int((~same).sum()), same.size
                )
                continue
            with np.errstate(invalid="ignore"):
                apart = np.abs(scores[0][row] - scores[1][row])
            apart = np.where(scores[0][row] == scores[1][row], 0.0, apart)
            used = apart / np.maximum(allowed[row], np.finfo(np.float64).tiny)
            rank = int(np.argmax(used))
            place = Place(step, names[2], (row, rank))
            absolute, scale = float(apart[rank]), float(magnitude.max(initial=0.0))
            worst.add(Distance(absolute, absolute / scale if scale else 0.0, place, used[rank]))
            if not used[rank] <= 1:
                values = {
                    side: float(each[row, rank])
                    for side, each in zip(sides, scores, strict=True)
                }
                first = first or Mismatch(
                    sides, place, values, float(allowed[row, rank]), 1, scores[0].size
                )
    return worst, first, ties


def _first_difference(
    tokens: list[np.ndarray], name: str, step: int, row: int, rank: int
) -> Place:
    other = tokens[0][row, rank] != tokens[1][row, rank]
    return Place(step, name, (row, rank, int(np.argmax(other))))
