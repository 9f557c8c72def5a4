"""The length penalty of beam search, without which short answers win."""

# Beyond it nothing but the length counts, and in the end the power would be infinite.
MOST_PENALTY = 10.0


def length_penalty_of(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6) ** alpha, by which a log probability is divided.

    Args:
      length: tokens produced, `<eos>` included.
      alpha: 0 ranks by log probability alone.

    Source: Wu et al. 2016, arXiv:1609.08144, equation 14, without the coverage penalty.
    """
    return float(((5 + length) / 6) ** alpha)
