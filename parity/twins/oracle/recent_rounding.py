"""The rounding errors of the last steps: most comparisons need no new measurement.

Measuring rounding costs two steps of the oracle. Most differences use a small share of their
bound, and rounding errors change little from step to step. So a difference is accepted without
measuring where it is within a fraction of what the last measurements allow; see `fall`. All
others, and so all mismatches, are judged by a measurement of their own step.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping

# What a tensor's name begins with -> how many times smaller its rounding error may be than the
# last measurements say. docs/verdict.md has what was seen: 1.9 times in activations, 2.4 in
# those of an attention, whose softmax over positions becomes sharper from step to step, and 3.4
# in gradients. Single measurements, not the least of three, said up to 7 times too much of
# gradients, and relative to what is left of the gradient alone, up to 30 times.
_FALL = {"forward/attention/": 6.0, "forward/": 2.5, "loss/": 4.0, "gradient/": 4.0}

_LEAST_OF = 3  # measurements

_STEPS = 8  # whose batches are alike; one of them is measured in any case


def fall(name: str) -> float | None:
    """Return how many times smaller a tensor's rounding error may be than was measured.

    It is None for a tensor whose rounding error is not measured.
    """
    return next((times for begin, times in _FALL.items() if name.startswith(begin)), None)


class RecentRounding:
    """What was measured in the last steps of sides that are alike, by the size of the batch."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._size: tuple[int, ...] = ()
        self._since: Counter[tuple[int, ...]] = Counter()
        self._measured: dict[tuple[int, ...], deque[Mapping[str, tuple[float, float]]]] = {}

    def begin(self, tokens: Iterable[int]) -> None:
        """Begin a step.

        Args:
          tokens: the number of real tokens in its batch; of pairs, in sources and targets.
        """
        # up to twice as many count as alike: finer classes fell as far and had more to measure
        self._size = tuple(round(math.log2(1 + each)) for each in tokens)
        self._since[self._size] += 1

    def add(self, measured: Mapping[str, tuple[float, float]]) -> None:
        """Add what was measured in this step.

        Args:
          measured: tensor -> its rounding error, and its largest magnitude.
        """
        self._measured.setdefault(self._size, deque(maxlen=_LEAST_OF)).append(measured)
        self._since[self._size] = 0

    def error(self, name: str, largest: float) -> float | None:
        """Return the rounding error that the last measurements expect, the least of them.

        In activations it grows with the weights, in proportion to the activations. The errors
        of a gradient come from all its terms, whatever is left of them in the sum: there it
        counts neither for more than it was.

        Args:
          name: the tensor.
          largest: its largest magnitude in this step.

        Returns:
          None if there are too few measurements, or none of late, or they do not tell.
        """
        measured = self._measured.get(self._size, ())
        if len(measured) < _LEAST_OF or self._since[self._size] >= _STEPS:
            return None
        least = math.inf
        for tensors in measured:
            if name not in tensors:
                return None
            error, magnitude = tensors[name]
            scaled = error / magnitude * largest if magnitude else 0.0
            if not name.startswith("forward/"):
                scaled = min(scaled, error)
            least = min(least, scaled)
        return least
