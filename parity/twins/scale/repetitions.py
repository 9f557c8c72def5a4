"""Costs that are differences of measured times, repeated until noise cannot explain them."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

FEW, MANY = 3, 7  # repetitions: at least, and at most


class Cost(NamedTuple):
    """A cost that was measured several times.

    Attributes:
      amount: the median; of a cost that noise hides, the most that it may be.
      repetitions: what was measured each time; noise can make it negative.
      hidden: whether noise can explain all of it.
    """

    amount: float
    repetitions: tuple[float, ...]
    hidden: bool

    @classmethod
    def of(cls, repetitions: Sequence[float]) -> "Cost":
        """Return the cost that some repetitions have measured.

        It is hidden unless all of the fewest repetitions are above zero, or all but one of the
        most. Without a cost, that is seen once in 8 or 16 measurements. Repetitions below zero
        show how large the noise is, and the cost is taken to be no larger than that.
        """
        not_above = sum(each <= 0 for each in repetitions)
        hidden = not_above > (1 if len(repetitions) >= MANY else 0)
        amount = max(map(abs, repetitions)) if hidden else statistics.median(repetitions)
        return cls(amount, tuple(repetitions), hidden)


def measured_costs(measure: Callable[[], Sequence[float]]) -> list[Cost]:
    """Return some costs that are measured together, more often if noise hides one of them.

    Args:
      measure: measures all of them once.
    """
    found = [measure() for _ in range(FEW)]
    if any(Cost.of(each).hidden for each in zip(*found, strict=True)):
        found += [measure() for _ in range(MANY - FEW)]
    return [Cost.of(each) for each in zip(*found, strict=True)]
