"""Decoding with a single hypothesis per sentence: greedy search, and sampling."""

from collections.abc import Callable

import numpy as np

from parity.base.special_tokens import PAIR_EOS_ID
from parity.twins.decoding.hypotheses import (
    FIRST_PRODUCED,
    DecodingModel,
    Hypotheses,
    LiveHypotheses,
)


def greedy_search(
    model: DecodingModel, source: np.ndarray, source_lengths: np.ndarray, max_tokens: int
) -> list[Hypotheses]:
    """Take the most probable token at every step until `<eos>`; ties go to the lower id.

    This is not `beam_search` with a beam of 1, which also considers ending early: with a length
    penalty of 0 that finds an answer which is at least as probable.

    Args:
      model: computes the log probabilities.
      source: int64 [sentences, source_time].
      source_lengths: int64 [sentences], each >= 1.
      max_tokens: the most tokens of an answer, `<eos>` included.

    Returns:
      One hypothesis per sentence; its score is its log probability.

    Raises:
      NumericFailure: if a log probability is NaN, or no token is possible.
    """
    return _token_by_token(model, source, source_lengths, max_tokens, _most_probable)


def _most_probable(
    log_probs: np.ndarray, sentences: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    chosen = log_probs.argmax(axis=1)  # the first of equals
    if log_probs.shape[1] == 1:
        return chosen, np.full(len(chosen), np.inf)
    second, first = np.partition(log_probs, -2, axis=1)[:, -2:].T
    return chosen, first - second


def sample(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    max_tokens: int,
    seed: int,
    temperature: float = 1.0,
    first: int = 0,
) -> list[Hypotheses]:
    """Draw every token from the model's distribution, until `<eos>`.

    The token drawn is the one at which the cumulative probability, in the order of ids, exceeds
    a uniform random number. Every sentence has a random stream of its own, so the other
    sentences of its batch change nothing.

    Args:
      model, source, source_lengths, max_tokens: as for `greedy_search`.
      seed: determines the random streams, together with the number of the sentence.
      temperature: log probabilities are divided by it before drawing.
      first: the number of the first sentence, where a longer input comes in parts.

    Returns:
      One hypothesis per sentence; its score is its log probability at temperature 1.

    Raises:
      NumericFailure: as `greedy_search`.
    """
    streams = [
        np.random.Generator(np.random.PCG64([seed, first + sentence]))
        for sentence in range(len(source))
    ]

    def draw(log_probs: np.ndarray, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scaled = log_probs.astype(np.float64) / temperature
        cumulative = np.exp(scaled - scaled.max(axis=1, keepdims=True)).cumsum(axis=1)
        total = cumulative[:, -1:]
        uniform = np.array([[streams[sentence].random()] for sentence in sentences])
        # below the total even where the product is rounded up to it
        level = np.minimum(uniform * total, np.nextafter(total, 0))
        chosen = (cumulative > level).argmax(axis=1)
        return chosen, (np.abs(cumulative - level) / total).min(axis=1)

    return _token_by_token(model, source, source_lengths, max_tokens, draw)


def _token_by_token(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    max_tokens: int,
    choose: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> list[Hypotheses]:
    """Return one hypothesis per sentence, whose tokens are chosen one after the other.

    Args:
      model, source, source_lengths, max_tokens: as for `greedy_search`.
      choose: chooses the next token of each live hypothesis. It is called with log
        probabilities [rows, vocabulary without the ids that are never produced], and the
        sentence of each row; it returns a column for each row, and the margin of each decision.
    """
    live = LiveHypotheses(model, source, source_lengths)
    margins = np.full(len(source), np.inf)
    found: dict[int, Hypotheses] = {}
    for _ in range(max_tokens):
        if not len(live.sentences):
            break
        log_probs = live.advance()
        columns, gaps = choose(log_probs[:, FIRST_PRODUCED:], live.sentences)
        margins[live.sentences] = np.minimum(margins[live.sentences], gaps)
        tokens = columns + FIRST_PRODUCED
        totals = live.log_probs + log_probs[np.arange(len(tokens)), tokens]
        ended = tokens == PAIR_EOS_ID
        for row in np.flatnonzero(ended).tolist():
            sentence = int(live.sentences[row])
            hypothesis = live.hypothesis(row, totals[row], totals[row], finished=True)
            found[sentence] = Hypotheses((hypothesis,), float(margins[sentence]))
        unended = np.flatnonzero(~ended)
        live.extend(unended, tokens[unended], totals[unended])
    for row, sentence in enumerate(live.sentences.tolist()):
        total = live.log_probs[row]
        hypothesis = live.hypothesis(row, total, total, finished=False)
        found[sentence] = Hypotheses((hypothesis,), float(margins[sentence]))
    return [found[sentence] for sentence in range(len(source))]
