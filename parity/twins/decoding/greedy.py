"""Greedy search."""

import numpy as np

from parity.twins.decoding.hypotheses import DecodingModel, Hypotheses, check_max_tokens
from parity.twins.decoding.token_by_token import decode_token_by_token


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
      UsageError: if `max_tokens` is not positive.
      NumericFailure: if a log probability is NaN, or no token is possible.
    """
    check_max_tokens(max_tokens)
    return decode_token_by_token(model, source, source_lengths, max_tokens, _most_probable)


def _most_probable(
    log_probs: np.ndarray, sentences: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    chosen = log_probs.argmax(axis=1)  # the first of equals
    if log_probs.shape[1] == 1:
        return chosen, np.full(len(chosen), np.inf)
    second, first = np.partition(log_probs, -2, axis=1)[:, -2:].T
    return chosen, first - second
