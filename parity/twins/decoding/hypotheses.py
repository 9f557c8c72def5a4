"""What all searches share: the model, its hypotheses, the length penalty."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from parity.base.errors import NumericFailure
from parity.base.special_tokens import PAIR_EOS_ID, PAIR_GO_ID

FIRST_PRODUCED = PAIR_EOS_ID  # the lowest id a search produces: never padding or <go>

# Beyond it nothing but the length counts, and in the end the power would be infinite.
MOST_PENALTY = 10.0

DecoderState = dict[str, np.ndarray]


class DecodingModel(Protocol):
    """A network with its weights, one step of the decoder at a time.

    A state is a dict of arrays whose first axis is rows, one row per hypothesis: the searches
    select, repeat and drop rows by indexing. If it holds `weights` [rows, source_time], the
    attention of the last step, then hypotheses carry them.
    """

    def start(self, source: np.ndarray, source_lengths: np.ndarray) -> DecoderState:
        """Read source sentences, and return the state before the first token.

        Args:
          source: token ids, int64 [rows, source_time].
          source_lengths: real tokens per row, int64 [rows], each >= 1.
        """

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState]:
        """Read one token per row.

        Args:
          tokens: the last token of each row, int64 [rows]; `<go>` before the first step.
          state: what `start` or the previous step returned, or any choice of its rows.

        Returns:
          The log probabilities of the next token [rows, vocabulary], and the state.
        """


@dataclass(frozen=True)
class Hypothesis:
    """An answer.

    Attributes:
      tokens: the ids without `<eos>`.
      finished: whether `<eos>` ended it; otherwise it has as many tokens as were allowed.
      log_prob: the sum of the log probabilities of its tokens, `<eos>` included, in nats.
      score: what hypotheses are ranked by: log_prob divided by the length penalty.
      weights: attention [tokens produced, source_time], `<eos>` included; None if the model
        returns none.
    """

    tokens: tuple[int, ...]
    finished: bool
    log_prob: float
    score: float
    weights: np.ndarray | None = field(default=None, compare=False)

    @property
    def confidence(self) -> float:
        """Return the geometric mean of its tokens' probabilities, `<eos>` included, 0 to 1."""
        return float(np.exp(self.log_prob / (len(self.tokens) + self.finished)))


@dataclass(frozen=True)
class Hypotheses:
    """What a search found for one sentence.

    Attributes:
      ranked: the hypotheses, best first; never empty.
      margin: the smallest gap between what a decision kept and what it rejected or ranked
        lower; infinite if there was nothing to decide. If the log probabilities of two runs
        differ by much less than this, both made the same decisions; if they differ by about as
        much, a different answer is a tie that was broken the other way. In nats (of log
        probabilities or of scores); for sampling, in probability.
      ended_early: whether beam search ended before the limit, because enough hypotheses had
        finished and no other one could become better.
    """

    ranked: tuple[Hypothesis, ...]
    margin: float
    ended_early: bool = field(default=False, compare=False)

    @property
    def best(self) -> Hypothesis:
        """Return the hypothesis with the highest score."""
        return self.ranked[0]


class LiveHypotheses:
    """The hypotheses that are still being extended; those of a sentence are adjacent rows.

    Attributes:
      sentences: int64 [rows], the sentence of each row, ascending.
      log_probs: float64 [rows], sums over the tokens so far.
      tokens: int64 [rows, tokens so far].
    """

    def __init__(self, model: DecodingModel, source: np.ndarray, source_lengths: np.ndarray):
        """Start with one empty hypothesis per sentence.

        Args:
          model: computes the log probabilities.
          source: int64 [sentences, source_time].
          source_lengths: int64 [sentences], each >= 1.
        """
        self.sentences = np.arange(len(source))
        self.log_probs = np.zeros(len(source))
        self.tokens = np.zeros((len(source), 0), np.int64)
        self._model = model
        self._state = model.start(source, source_lengths) if len(source) else {}
        self._weights: list[np.ndarray] = []  # one array per step, [rows, source_time]
        self._steps = 0

    def advance(self) -> np.ndarray:
        """Take a step of the model and return its log probabilities [rows, vocabulary].

        Raises:
          NumericFailure: if a log probability is NaN, or no token is possible.
        """
        rows = len(self.sentences)
        last = self.tokens[:, -1] if self._steps else np.full(rows, PAIR_GO_ID)
        log_probs, self._state = self._model.step(last, self._state)
        best = log_probs[:, FIRST_PRODUCED:].max(axis=1)  # NaN if there is one
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
        """Continue with the given rows only, int64 indices, repetitions allowed."""
        if np.array_equal(rows, np.arange(len(self.sentences))):
            return
        self.sentences, self.log_probs = self.sentences[rows], self.log_probs[rows]
        self.tokens = self.tokens[rows]
        self._state = {name: array[rows] for name, array in self._state.items()}
        self._weights = [array[rows] for array in self._weights]

    def extend(self, parents: np.ndarray, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """Replace the hypotheses by extensions of them.

        Args:
          parents: int64 [extensions], the row that each one extends.
          tokens: int64 [extensions], the token that it adds.
          log_probs: float64 [extensions], its log probability including that token.
        """
        self.keep(parents)
        self.tokens = np.concatenate([self.tokens, tokens[:, None]], axis=1)
        self.log_probs = log_probs

    def hypothesis(self, row: int, log_prob: float, score: float, finished: bool) -> Hypothesis:
        """Return the answer that a row stands for."""
        weights = np.stack([array[row] for array in self._weights]) if self._weights else None
        tokens = tuple(self.tokens[row].tolist())
        return Hypothesis(tokens, finished, float(log_prob), float(score), weights)


def length_penalty_of(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6) ** alpha, by which a log probability is divided.

    Args:
      length: tokens produced, `<eos>` included.
      alpha: 0 ranks by log probability alone.

    Source: Wu et al. 2016, arXiv:1609.08144, equation 14, without the coverage penalty.
    """
    return float(((5 + length) / 6) ** alpha)
