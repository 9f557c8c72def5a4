"""Greedy search, beam search and sampling, once for both frameworks and for the oracle.

The search runs on the host, in NumPy; a model only computes the next log probabilities. All
live hypotheses of all sentences go through the model in one step; finished sentences leave it.

A sentence's answer does not depend on the sentences beside it, as far as the model's own
arithmetic does not.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np

from parity.base.errors import NumericFailure, UsageError

PAD, GO, EOS, UNKNOWN = range(4)  # of every vocabulary of sentence pairs
FIRST = EOS  # the lowest id that is ever produced: padding and <go> are not

DecoderState = dict[str, np.ndarray]


class DecodingModel(Protocol):
    """What the searches ask of a network with its weights.

    A state is a dict of arrays with rows first, and a row is a hypothesis: rows are picked,
    repeated and left out by indexing. If it holds `weights` [rows, source_time], the attention
    of the last step, hypotheses carry them.
    """

    def start(self, source: np.ndarray, source_lengths: np.ndarray) -> DecoderState:
        """Read the sources, int64 [rows, source_time] and [rows], and return the state."""

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState]:
        """Read one token per row; return log probabilities [rows, vocabulary] and the state."""


@dataclass(frozen=True)
class Hypothesis:
    """An answer.

    Attributes:
      tokens: without `<eos>`.
      finished: whether `<eos>` ended it; else it is as long as was allowed.
      log_prob: sum of the log probabilities of its tokens, `<eos>` included, in nats.
      score: what hypotheses are ranked by, log_prob over the length penalty.
      weights: attention [tokens produced, source_time], `<eos>` included; None if the model
        hands out none.
    """

    tokens: tuple[int, ...]
    finished: bool
    log_prob: float
    score: float
    weights: np.ndarray | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Hypotheses:
    """What a search found for one sentence.

    Attributes:
      ranked: hypotheses, best first; never empty.
      margin: the smallest gap between what a decision kept and what it rejected or ranked
        below; infinite if there was nothing to decide. Two runs whose log probabilities differ
        by much less than this found the same for the same reason; where theirs differ by as
        much, another answer is a tie that broke the other way. In nats (of log probabilities,
        or of scores); for sampling, in probability.
    """

    ranked: tuple[Hypothesis, ...]
    margin: float

    @property
    def best(self) -> Hypothesis:
        """Return the hypothesis with the highest score."""
        return self.ranked[0]


def length_penalty_of(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6) ** alpha, by which a log probability is divided.

    Args:
      length: tokens produced, `<eos>` included.
      alpha: 0 ranks by log probability alone.

    Source: Wu et al. 2016, arXiv:1609.08144, equation 14, without the coverage penalty.
    """
    return float(((5 + length) / 6) ** alpha)


def greedy(
    model: DecodingModel, source: np.ndarray, source_lengths: np.ndarray, most: int
) -> list[Hypotheses]:
    """Take the most probable token at every step, ties to the lower id, until `<eos>`.

    This is not `beam_search` with a beam of 1, which also weighs ending early: at length
    penalty 0 that finds an answer which is at least as probable.

    Args:
      source: int64 [sentences, source_time].
      source_lengths: int64 [sentences], each >= 1.
      most: tokens produced at most, `<eos>` included.

    Returns:
      One hypothesis per sentence, its score its log probability.

    Raises:
      UsageError: if `most` is not positive.
      NumericFailure: if a log probability is NaN, or no token is possible.
    """
    _check("--longest", most, most >= 1, ">= 1")

    def choose(log_probs: np.ndarray, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = log_probs.argmax(axis=1)  # the first of equals
        if log_probs.shape[1] == 1:
            return chosen, np.full(len(chosen), np.inf)
        second, first = np.partition(log_probs, -2, axis=1)[:, -2:].T
        return chosen, first - second

    return _one_by_one(model, source, source_lengths, most, choose)


def sample(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    most: int,
    seed: int,
    temperature: float = 1.0,
    first: int = 0,
) -> list[Hypotheses]:
    """Draw every token from the model's distribution, until `<eos>`.

    A token is the one at which the cumulated probability, in the order of ids, passes a uniform
    number. Every sentence draws from a stream of its own, so that the batch decides nothing.

    Args:
      source, source_lengths, most: as in `greedy`.
      seed: of the streams, together with the number of the sentence.
      temperature: log probabilities are divided by it before drawing.
      first: number of the first sentence, where a longer input comes in parts.

    Returns:
      One hypothesis per sentence, its score its log probability at temperature 1.

    Raises:
      UsageError: if `most` or `temperature` is not positive, or `seed` is negative.
      NumericFailure: if a log probability is NaN, or no token is possible.
    """
    _check("--longest", most, most >= 1, ">= 1")
    _check("--seed", seed, seed >= 0, ">= 0")
    _check("--temperature", temperature, 0 < temperature < np.inf, "> 0")
    streams = [
        np.random.Generator(np.random.PCG64([seed, first + sentence]))
        for sentence in range(len(source))
    ]

    def choose(log_probs: np.ndarray, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scaled = log_probs.astype(np.float64) / temperature
        cumulated = np.exp(scaled - scaled.max(axis=1, keepdims=True)).cumsum(axis=1)
        total = cumulated[:, -1:]
        uniform = np.array([[streams[sentence].random()] for sentence in sentences])
        # below the total even where the product is rounded up to it
        drawn = np.minimum(uniform * total, np.nextafter(total, 0))
        chosen = (cumulated > drawn).argmax(axis=1)
        return chosen, (np.abs(cumulated - drawn) / total).min(axis=1)

    return _one_by_one(model, source, source_lengths, most, choose)


def beam_search(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    beam: int,
    length_penalty: float,
    most: int,
) -> list[Hypotheses]:
    """Search for the answers with the best scores, with a number of hypotheses at a time.

        score = log P / lp(n),   lp(n) = ((5 + n) / 6) ** length_penalty

    where n counts the tokens produced, `<eos>` included. At every step each live hypothesis may
    end: with `<eos>` it joins the finished, of which the best `beam` by score are kept (ties:
    the earlier). The best `beam` of all other extensions by log P (ties: the extension of the
    better hypothesis, then the lower id) live on. A sentence is done when `beam` are finished
    and no live hypothesis could beat the worst of them even if it became as long as is allowed
    and lost nothing on the way, for which log P / lp(most) is the bound; or after `most` steps,
    when the live ones join the finished as they stand.

    With a beam as wide as all prefixes this is an exhaustive search.

    Args:
      source, source_lengths, most: as in `greedy`.
      beam: hypotheses that live, and that are returned, at most.
      length_penalty: 0 or more; the greater, the longer the answers.

    Returns:
      Per sentence up to `beam` hypotheses.

    Raises:
      UsageError: for a value that is not allowed.
      NumericFailure: if a log probability is NaN, or no token is possible.

    Source: Wu et al. 2016, arXiv:1609.08144, section 7 and equation 14, without coverage.
    """
    _check("--beam", beam, beam >= 1, ">= 1")
    _check("--length-penalty", length_penalty, 0 <= length_penalty < np.inf, ">= 0")
    _check("--longest", most, most >= 1, ">= 1")
    pools = [_Pool(beam) for _ in source]
    live = _Live.at_start(model, source, source_lengths)
    longest = length_penalty_of(most, length_penalty)
    for length in range(1, most + 1):
        if not len(live.sentences):
            break
        log_probs = live.advance(model)
        penalty = length_penalty_of(length, length_penalty)
        ended = live.log_probs + log_probs[:, EOS]
        for row in np.flatnonzero(np.isfinite(ended)).tolist():
            pool = pools[live.sentences[row]]
            pool.offer(live, row, ended[row], ended[row] / penalty, finished=True)
        parents, tokens, totals, gaps = _best_extensions(
            log_probs, live.log_probs, live.sentences, beam
        )
        for sentence, gap in zip(*gaps, strict=True):
            pools[sentence].decided(gap)
        live.extend(parents, tokens, totals)
        if length == most:
            for row, total in enumerate(live.log_probs):
                pool = pools[live.sentences[row]]
                pool.offer(live, row, total, total / penalty, finished=False)
        # a sentence's first row is its best
        sentences, firsts = np.unique(live.sentences, return_index=True)
        done = {
            sentence
            for sentence, bound in zip(sentences, live.log_probs[firsts] / longest, strict=True)
            if length < most and pools[sentence].cannot_be_beaten_by(bound)
        }
        if done:
            live.keep(~np.isin(live.sentences, list(done)))
    return [pool.hypotheses() for pool in pools]


class _Live:
    """The hypotheses that are still being extended; those of a sentence lie together.

    Attributes:
      sentences: int64 [rows], the sentence of each row, ascending.
      log_probs: float64 [rows], sums over the tokens so far.
      tokens: int64 [rows, tokens so far].
    """

    def __init__(self, state: DecoderState, rows: int):
        self.sentences = np.arange(rows)
        self.log_probs = np.zeros(rows)
        self.tokens = np.zeros((rows, 0), np.int64)
        self._state = state
        self._weights: list[np.ndarray] = []  # of each step, [rows, source_time]
        self._steps = 0

    @classmethod
    def at_start(
        cls, model: DecodingModel, source: np.ndarray, source_lengths: np.ndarray
    ) -> "_Live":
        return cls(model.start(source, source_lengths) if len(source) else {}, len(source))

    def advance(self, model: DecodingModel) -> np.ndarray:
        """Take a step of the model and return its log probabilities, checked."""
        last = self.tokens[:, -1] if self._steps else np.full(len(self.sentences), GO)
        log_probs, self._state = model.step(last, self._state)
        best = log_probs[:, FIRST:].max(axis=1)  # NaN if there is one
        if not np.isfinite(best).all():
            row = int(np.flatnonzero(~np.isfinite(best))[0])
            raise NumericFailure(
                f"decoding, step {self._steps}, sentence {self.sentences[row]}: the greatest "
                f"log probability is {best[row]}"
            )
        if "weights" in self._state:
            self._weights.append(self._state["weights"])
        self._steps += 1
        return log_probs

    def keep(self, rows: np.ndarray) -> None:
        """Go on with these rows only; indices or a mask."""
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        if np.array_equal(rows, np.arange(len(self.sentences))):
            return
        self.sentences, self.log_probs = self.sentences[rows], self.log_probs[rows]
        self.tokens = self.tokens[rows]
        self._state = {name: array[rows] for name, array in self._state.items()}
        self._weights = [array[rows] for array in self._weights]

    def extend(self, parents: np.ndarray, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """Go on with hypotheses that are these rows and a token each."""
        self.keep(parents)
        self.tokens = np.concatenate([self.tokens, tokens[:, None]], axis=1)
        self.log_probs = log_probs

    def hypothesis(self, row: int, log_prob: float, score: float, finished: bool) -> Hypothesis:
        weights = np.stack([array[row] for array in self._weights]) if self._weights else None
        tokens = tuple(self.tokens[row].tolist())
        return Hypothesis(tokens, finished, float(log_prob), float(score), weights)


class _Pool:
    """The finished hypotheses of one sentence, and how narrowly they were chosen."""

    def __init__(self, beam: int):
        self._beam = beam
        self._losses: list[float] = []  # minus the scores, ascending
        self._kept: list[Hypothesis] = []
        self._best_rejected = -np.inf
        self._margin = np.inf

    def offer(
        self, live: _Live, row: int, log_prob: float, score: float, finished: bool
    ) -> None:
        """Take a hypothesis in if it is among the best; of equals the earlier stays."""
        place = bisect_right(self._losses, -score)
        if place < self._beam:
            self._losses.insert(place, -float(score))
            self._kept.insert(place, live.hypothesis(row, log_prob, score, finished))
            if len(self._kept) > self._beam:
                self._kept.pop()
                score = -self._losses.pop()
            else:
                return
        self._best_rejected = max(self._best_rejected, float(score))

    def decided(self, gap: float) -> None:
        """Note by how much a decision was made."""
        self._margin = min(self._margin, float(gap))

    def cannot_be_beaten_by(self, bound: float) -> bool:
        """Return whether the pool is full of scores that are no worse than the bound."""
        if len(self._kept) < self._beam or bound > -self._losses[-1]:
            return False
        self.decided(-self._losses[-1] - bound)
        return True

    def hypotheses(self) -> Hypotheses:
        scores = [hypothesis.score for hypothesis in self._kept]
        gaps = [better - worse for better, worse in pairwise([*scores, self._best_rejected])]
        return Hypotheses(tuple(self._kept), min([self._margin, *gaps]))


def _best_extensions(
    log_probs: np.ndarray, so_far: np.ndarray, sentences: np.ndarray, beam: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return the best extensions of each sentence that do not end it.

    Returns:
      Row, token and log P of each, by sentence, best first; and (sentences, gaps): by how much
      the last one kept is better than the best one rejected, where one is.
    """
    words = log_probs[:, EOS + 1 :]
    wanted = min(beam + 1, words.shape[1])  # of a row at most, with the best one rejected
    if not wanted:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, np.zeros(0), (nothing, np.zeros(0))
    # As many blocks as tokens are wanted hold one that is no less than `least`, so none below
    # it is wanted. To partition whole rows, not blocks' greatest, takes several times as long.
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
    return rows[kept], columns[kept] + EOS + 1, totals[kept], (of_sentence[edge], gaps)


class _Choice(Protocol):
    def __call__(
        self, log_probs: np.ndarray, sentences: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose a column per row; return the columns and by how much each was chosen."""


def _one_by_one(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    most: int,
    choose: _Choice,
) -> list[Hypotheses]:
    """Decode with one hypothesis per sentence."""
    live = _Live.at_start(model, source, source_lengths)
    margins = np.full(len(source), np.inf)
    found: dict[int, Hypotheses] = {}
    for _ in range(most):
        if not len(live.sentences):
            break
        log_probs = live.advance(model)
        columns, gaps = choose(log_probs[:, FIRST:], live.sentences)
        margins[live.sentences] = np.minimum(margins[live.sentences], gaps)
        tokens = columns + FIRST
        totals = live.log_probs + log_probs[np.arange(len(tokens)), tokens]
        ended = tokens == EOS
        for row in np.flatnonzero(ended).tolist():
            sentence = int(live.sentences[row])
            hypothesis = live.hypothesis(row, totals[row], totals[row], finished=True)
            found[sentence] = Hypotheses((hypothesis,), float(margins[sentence]))
        going = np.flatnonzero(~ended)
        live.extend(going, tokens[going], totals[going])
    for row, sentence in enumerate(live.sentences.tolist()):
        total = live.log_probs[row]
        hypothesis = live.hypothesis(row, total, total, finished=False)
        found[sentence] = Hypotheses((hypothesis,), float(margins[sentence]))
    return [found[sentence] for sentence in range(len(source))]


def _check(flag: str, seen: float, fine: bool, allowed: str) -> None:
    if not fine:
        raise UsageError(f"{flag} is {seen}; allowed: {allowed}")
