"""An equivalence test: do paired results differ, on average, by less than a stated margin?

A test for a difference would not do: with few seeds it finds none, whatever the sides do. Two
one-sided tests turn the burden of proof round: the sides count as equivalent only if the
results exclude, at the given level, a mean difference of the margin or more, in either
direction.

Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15(6):657-680 (TOST).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t; scipy.stats is slow to import

from parity.base.errors import UsageError

LEVEL = 0.05  # the probability of calling two sides equivalent that differ by the margin
POWER = 0.8  # the probability of calling two sides equivalent that do not differ on average
_MOST_PAIRS = 10_000


@dataclass(frozen=True)
class Equivalence:
    """The result of an equivalence test.

    Attributes:
      count: the number of pairs.
      mean: the mean difference.
      deviation: the standard deviation of the differences.
      low: the lower end of the confidence interval of the mean difference.
      high: its upper end; the interval has a confidence of 1 - 2 * LEVEL, so it lies within the
        margin exactly if the test passes.
      margin: the difference that the test excludes, in either direction.
      p: the larger p-value of the two one-sided tests.
    """

    count: int
    mean: float
    deviation: float
    low: float
    high: float
    margin: float
    p: float

    @property
    def shown(self) -> bool:
        """Return whether equivalence is shown."""
        return self.p < LEVEL


def paired_equivalence(a: Sequence[float], b: Sequence[float], margin: float) -> Equivalence:
    """Test whether the mean of a - b lies within the margin.

    Args:
      a: the results of one side, one for each seed.
      b: the results of the other side for the same seeds.
      margin: the smallest difference that matters, above 0.

    Raises:
      UsageError: for fewer than two pairs.
    """
    if len(a) < 2:
        raise UsageError(f"{len(a)} seeds; allowed: at least 2, for a test needs a spread")
    differences = np.subtract(a, b)
    mean, count = float(differences.mean()), len(differences)
    deviation = float(differences.std(ddof=1))
    error = deviation / math.sqrt(count)
    if error == 0:  # every difference is the same: no doubt is left
        return Equivalence(count, mean, 0.0, mean, mean, margin, float(abs(mean) >= margin))
    half = error * float(stdtrit(count - 1, 1 - LEVEL))
    above_lower = float(stdtr(count - 1, -(mean + margin) / error))
    below_upper = float(stdtr(count - 1, (mean - margin) / error))
    return Equivalence(
        count, mean, deviation, mean - half, mean + half, margin, max(above_lower, below_upper)
    )


def pairs_needed(deviation: float, margin: float) -> int | None:
    """Return how many pairs a test needs to pass with probability POWER if nothing differs.

    Args:
      deviation: the standard deviation of the differences.
      margin: the margin of the test.

    Returns:
      The number, or None if it is beyond any use.

    Source: Julious 2004, Stat. Med. 23(12):1921-1986, section 5, for no difference.
    """
    count = np.arange(2, _MOST_PAIRS)
    quantiles = stdtrit(count - 1, 1 - LEVEL) + stdtrit(count - 1, (1 + POWER) / 2)
    enough = np.flatnonzero(quantiles * deviation / np.sqrt(count) <= margin)
    return int(count[enough[0]]) if len(enough) else None
