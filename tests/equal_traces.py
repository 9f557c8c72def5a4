"""What the tests of strategies demand of traces that must be equal."""

from parity.trace.reader import Trace


def worst(verdict) -> float:
    """Return the largest relative distance of any pair."""
    return max(d.relative for rungs in verdict.pairs.values() for d in rungs.values())


def differing(*traces: Trace) -> list[str]:
    """Return the names of the tensors whose bits differ between two traces."""
    found = []
    for (_, first), (_, second) in zip(*(trace.steps() for trace in traces), strict=True):
        assert first.keys() == second.keys()
        found += [k for k in first if first[k].tobytes() != second[k].tobytes()]
    return found
