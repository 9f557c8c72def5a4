"""What one comparison of two sides found; a verdict is put together from such findings."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from parity.compare.coverage import Fact, join_facts
from parity.compare.tensors import Distance, Mismatch
from parity.trace.rungs import rung_of

Pair = tuple[str, str]
Worst = dict[Pair, dict[str, Distance]]  # pair -> rung -> the worst distance


@dataclass(frozen=True)
class Finding:
    """What one comparison of two labels found.

    Attributes:
      sides: the labels; the second may be the oracle's.
      rungs: rung -> the worst distance.
      mismatches: what differs by more than is allowed, the first one first.
      distances: tensor -> how far it is apart, where single tensors of a step were compared.
      facts: the cases that it met.
    """

    sides: Pair
    rungs: Mapping[str, Distance] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    distances: Mapping[str, Distance] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()

    @property
    def first(self) -> Mismatch | None:
        """Return the first mismatch."""
        return next(iter(self.mismatches), None)

    @property
    def worst(self) -> Distance:
        """Return the worst distance of all rungs."""
        found = Distance()
        for distance in self.rungs.values():
            found.add(distance)
        return found

    @property
    def shares(self) -> dict[str, float]:
        """Return tensor -> the share of its bound, of those that were judged."""
        used = {name: distance.used for name, distance in self.distances.items()}
        return {name: share for name, share in used.items() if share is not None}

    def __add__(self, other: "Finding") -> "Finding":
        """Return what two comparisons of the same sides found."""
        worst = join_findings({}, [self, other])[self.sides]
        every = (*self.mismatches, *other.mismatches)
        distances = {**self.distances, **other.distances}
        facts = join_facts(self.facts, other.facts)
        return Finding(self.sides, worst, every, distances, facts)


def find_in_step(
    sides: Pair, distances: Mapping[str, Distance], mismatches: Iterable[Mismatch]
) -> Finding:
    """Return the finding of one step.

    Args:
      distances: tensor -> how far it is apart, of those that both sides have.
      mismatches: what differs by more than is allowed, in the order of the names.
    """
    rungs: dict[str, Distance] = {}
    for name, distance in distances.items():
        rungs.setdefault(rung_of(name), Distance()).add(distance)
    return Finding(sides, rungs, tuple(mismatches), distances)


def find_in_exact_check(check: str, sides: Pair, found: Mismatch | None) -> Finding:
    """Return the finding of a check of two runs, or two numbers, that must be equal."""
    if found is None:
        return Finding(sides, {check: Distance(used=0.0)})
    values = list(found.values.values())
    apart = abs(values[0] - values[1]) if values else 0.0
    largest = max(map(abs, values), default=0.0)
    distance = Distance(apart, apart / largest if largest else 0.0, found.place, math.inf)
    return Finding(sides, {check: distance}, (found,))


def join_findings(
    known: Mapping[Pair, Mapping[str, Distance]], findings: Iterable[Finding]
) -> Worst:
    """Return pair -> rung -> the worst distance, of what was known and of findings."""
    worst = {
        pair: {rung: replace(each) for rung, each in rungs.items()}
        for pair, rungs in known.items()
    }
    for finding in findings:
        rungs = worst.setdefault(finding.sides, {})
        for rung, distance in finding.rungs.items():
            rungs.setdefault(rung, Distance()).add(distance)
    return worst
