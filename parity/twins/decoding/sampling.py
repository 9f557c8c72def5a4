"""Sampling: answers drawn from a network's own distribution."""

import numpy as np

from parity.twins.decoding.hypotheses import (
    DecodingModel,
    Hypotheses,
    check_max_tokens,
    check_sampling,
)
from parity.twins.decoding.token_by_token import decode_token_by_token


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
      model: computes the log probabilities.
      source: int64 [sentences, source_time].
      source_lengths: int64 [sentences], each >= 1.
      max_tokens: the most tokens of an answer, `<eos>` included.
      seed: determines the random streams, together with the number of the sentence.
      temperature: log probabilities are divided by it before drawing.
      first: the number of the first sentence, where a longer input comes in parts.

    Returns:
      One hypothesis per sentence; its score is its log probability at temperature 1.

    Raises:
      UsageError: if `max_tokens` or `temperature` is not positive, or `seed` is negative.
      NumericFailure: if a log probability is NaN, or no token is possible.
    """
    check_max_tokens(max_tokens)
    check_sampling(seed, temperature)
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

    return decode_token_by_token(model, source, source_lengths, max_tokens, draw)
