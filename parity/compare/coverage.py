"""What a run has covered: the cases that a match speaks for, and those that it does not.

A match says nothing about code that the run never reached: training without gradient clipping
passes wherever no gradient exceeds the clip norm. So every report lists the cases that a
training can meet, how often the run met each, and by name those that it never met.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Fact:
    """One case, and how often a run met it.

    Attributes:
      name: the case in a few words, such as "gradient clipped".
      meaning: a sentence that says what is counted, and where it helps, which mistakes would go
        unnoticed without it.
      count: how often the run met the case.
      of: the number of times that it could have; 0 where there is no such number.
      unit: what is counted, in the plural, such as "steps".
      applies: whether the settings of the run allow the case at all: no state is carried, for
        example, from one batch of shuffled sentences to the next.
    """

    name: str
    meaning: str
    count: int = 0
    of: int = 0
    unit: str = "steps"
    applies: bool = True

    @property
    def missing(self) -> bool:
        """Return whether the run could have met the case, and never did."""
        return self.applies and not self.count

    @property
    def amount(self) -> str:
        """Return how often the case was met, for a table."""
        if self.of:
            return f"{self.count} of {self.of} {self._unit_of(self.of)}"
        return f"{self.count} {self._unit_of(self.count)}" if self.count else "no"

    def plus(self, other: "Fact") -> "Fact":
        """Return the case with the counts of another run or part of a run added."""
        return replace(
            self,
            count=self.count + other.count,
            of=self.of + other.of,
            applies=self.applies or other.applies,
        )

    def _unit_of(self, number: int) -> str:
        if number != 1:
            return self.unit
        return re.sub("(?<=ch)es$|s$", "", self.unit)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def join_facts(*lists: Iterable[Fact]) -> tuple[Fact, ...]:
    """Return the cases of several lists in their order, the counts of one case added up."""
    joined: dict[str, Fact] = {}
    for fact in (each for facts in lists for each in facts):
        known = joined.get(fact.name)
        joined[fact.name] = fact if known is None else known.plus(fact)
    return tuple(joined.values())


def not_covered(runs: Iterable[Iterable[Fact]]) -> list[str]:
    """Return the names of the cases that none of several runs met although one could have."""
    facts = [fact for run in runs for fact in run]
    met = {fact.name for fact in facts if fact.count}
    return list(dict.fromkeys(f.name for f in facts if f.missing and f.name not in met))
