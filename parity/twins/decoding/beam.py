"""Beam search.

    score = log P / lp(n),   lp(n) = ((5 + n) / 6) ** length_penalty

where n counts the tokens produced, `<eos>` included. At every step each live hypothesis may
end: with `<eos>` it joins the finished ones, of which the best `beam` by score are kept (ties:
the earlier one). Of all other extensions the best `beam` by log P (ties: the extension of the
better hypothesis, then the lower id) stay alive. A sentence is done when `beam` hypotheses are
finished and no live one could beat the worst of them even if it reached the greatest length
allowed without losing any probability on the way, for which log P / lp(max_tokens) is the
bound; or after `max_tokens` steps, when the live ones join the finished ones as they are.

With a beam as wide as the number of all prefixes this is an exhaustive search.

Source: Wu et al. 2016, arXiv:1609.08144, section 7 and equation 14, without coverage.
"""

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from parity.base.special_tokens import PAIR_EOS_ID
from parity.twins.decoding.hypotheses import (
    DecodingModel,
    Hypotheses,
    Hypothesis,
    LiveHypotheses,
    length_penalty_of,
)


def beam_search(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    beam: int,
    length_penalty: float,
    max_tokens: int,
) -> list[Hypotheses]:
    """Search for the answers with the best scores, several hypotheses at a time.

    Args:
      model: computes the log probabilities.
      source: int64 [sentences, source_time].
      source_lengths: int64 [sentences], each >= 1.
      beam: the most hypotheses of a sentence that are alive, and that are returned.
      length_penalty: 0 or more; the greater, the longer the answers.
      max_tokens: the most tokens of an answer, `<eos>` included.

    Returns:
      Up to `beam` hypotheses per sentence.

    Raises:
      NumericFailure: if a log probability is NaN, or no token is possible.
    """
    finished = [_Finished(beam) for _ in source]
    live = LiveHypotheses(model, source, source_lengths)
    for length in range(1, max_tokens + 1):
        if not len(live.sentences):
            break
        log_probs = live.advance()
        penalty = length_penalty_of(length, length_penalty)
        _finish(live, finished, live.log_probs + log_probs[:, PAIR_EOS_ID], penalty, ended=True)
        _extend(live, finished, log_probs, beam)
        if length == max_tokens:
            _finish(live, finished, live.log_probs, penalty, ended=False)
        else:
            _drop_done(live, finished, length_penalty_of(max_tokens, length_penalty))
    return [each.hypotheses() for each in finished]


class _Finished:
    """The finished hypotheses of one sentence, and how narrowly they were chosen."""

    def __init__(self, beam: int):
        self._beam = beam
        self._losses: list[float] = []  # minus the scores, ascending
        self._kept: list[Hypothesis] = []
        self._best_rejected = -np.inf
        self._margin = np.inf
        self._ended_early = False

    def offer(
        self, live: LiveHypotheses, row: int, log_prob: float, score: float, ended: bool
    ) -> None:
        """Add a live hypothesis if it is among the best; of equals the earlier one stays."""
        place = bisect_right(self._losses, -score)
        if place < self._beam:
            self._losses.insert(place, -float(score))
            self._kept.insert(place, live.hypothesis(row, log_prob, score, ended))
            if len(self._kept) <= self._beam:
                return
            self._kept.pop()
            score = -self._losses.pop()
        self._best_rejected = max(self._best_rejected, float(score))

    def note_gap(self, gap: float) -> None:
        """Take note of the margin of a decision."""
        self._margin = min(self._margin, float(gap))

    def cannot_be_beaten_by(self, bound: float) -> bool:
        """Return whether there are enough hypotheses with scores no worse than the bound."""
        if len(self._kept) < self._beam or bound > -self._losses[-1]:
            return False
        self.note_gap(-self._losses[-1] - bound)
        self._ended_early = True
        return True

    def hypotheses(self) -> Hypotheses:
        scores = [hypothesis.score for hypothesis in self._kept]
        gaps = [better - worse for better, worse in pairwise([*scores, self._best_rejected])]
        margin = min([self._margin, *gaps])
        return Hypotheses(tuple(self._kept), margin, self._ended_early)


def _finish(
    live: LiveHypotheses,
    finished: list[_Finished],
    totals: np.ndarray,
    penalty: float,
    ended: bool,
) -> None:
    """Offer all live hypotheses that are possible, with their log probabilities, as answers."""
    for row in np.flatnonzero(np.isfinite(totals)).tolist():
        total, sentence = totals[row], live.sentences[row]
        finished[sentence].offer(live, row, total, total / penalty, ended)


def _extend(
    live: LiveHypotheses, finished: list[_Finished], log_probs: np.ndarray, beam: int
) -> None:
    """Extend the live hypotheses of each sentence by all words, and keep the best."""
    parents, tokens, totals, gaps = _best_extensions(
        log_probs, live.log_probs, live.sentences, beam
    )
    for sentence, gap in zip(*gaps, strict=True):
        finished[sentence].note_gap(gap)
    live.extend(parents, tokens, totals)


def _drop_done(live: LiveHypotheses, finished: list[_Finished], longest: float) -> None:
    """Drop the sentences whose finished hypotheses can no longer be beaten.

    Args:
      longest: the length penalty of the longest answer.
    """
    # the first row of a sentence is its best
    sentences, firsts = np.unique(live.sentences, return_index=True)
    bounds = live.log_probs[firsts] / longest
    done = [
        sentence
        for sentence, bound in zip(sentences, bounds, strict=True)
        if finished[sentence].cannot_be_beaten_by(bound)
    ]
    if done:
        live.keep(np.flatnonzero(~np.isin(live.sentences, done)))


def _best_extensions(
    log_probs: np.ndarray, so_far: np.ndarray, sentences: np.ndarray, beam: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return the best extensions of each sentence that do not end it.

    Returns:
      The row, token and log P of each extension, by sentence, best first; and (sentences,
      gaps): by how much the last one kept is better than the best one rejected, if there is
      one.
    """
    words = log_probs[:, PAIR_EOS_ID + 1 :]
    wanted = min(beam + 1, words.shape[1])  # at most, of each row; one more than is kept
    if not wanted:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, np.zeros(0), (nothing, np.zeros(0))
    # `wanted` blocks contain a value of at least `least`, so no value below it is wanted. To
    # partition whole rows instead of the blocks' maxima takes several times as long.
    starts = np.arange(0, words.shape[1], max(1, words.shape[1] // (16 * wanted)))
    tops = np.maximum.reduceat(words, starts, axis=1)
    least = np.partition(tops, -wanted, axis=1)[:, -wanted, None]
    rows, columns = np.divmod(np.flatnonzero(words >= least), words.shape[1])
    totals = so_far[rows] + words[rows, columns]
    possible = np.isfinite(totals)
    rows, columns, totals = rows[possible], columns[possible], totals[possible]
    order = np.lexsort((columns, rows, -totals, sentences[rows]))
    rows, columns, totals = rows[order], columns[order], totals[order]
    of_sentence = sentences[rows]
    rank = np.arange(len(rows)) - np.searchsorted(of_sentence, of_sentence)
    kept, edge = rank < beam, np.flatnonzero(rank == beam)
    gaps = totals[edge - 1] - totals[edge]
    tokens = columns[kept] + PAIR_EOS_ID + 1
    return rows[kept], tokens, totals[kept], (of_sentence[edge], gaps)
