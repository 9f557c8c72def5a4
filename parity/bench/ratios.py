"""What a benchmark's readings say: medians, gains over one replica, ratios to the peers."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.bench.cases import Case
from parity.launch.processes import PEERS
from parity.spec.frameworks import FRAMEWORKS
from parity.training.meter import WARM_UP

# A peer's losses of the warm-up may differ from the sides' by this share of them. Measured:
# 3e-7 in float32; 8e-4 for a peer that applied its gradients twice.
_LOSSES_APART = 1e-4


def check_losses(losses: Mapping[str, list[float]], cases: list[Case]) -> dict[str, float]:
    """Return how far each peer's losses of the warm-up are from the first side's, over them.

    Raises:
      UsageError: if it is another training.
    """
    expected = np.array(losses[cases[0].label][:WARM_UP])
    found = {}
    for case in cases:
        if case.name in PEERS:
            apart = np.abs(np.array(losses[case.label][:WARM_UP]) - expected) / expected
            found[case.label] = float(apart.max())
            if not found[case.label] <= _LOSSES_APART:
                raise UsageError(
                    f"{case.label}: its losses are up to {found[case.label]:.2g} apart from "
                    f"{cases[0].label}'s, of which {_LOSSES_APART:g} is allowed: it trains "
                    "something else"
                )
    return found


def scaling(
    readings: Mapping[str, list[float]], cases: Iterable[Case]
) -> dict[str, dict[str, float]]:
    """Return title -> replicas -> gain over the first count, round by round.

    Of the cases with as many threads as the first one of the same title.
    """
    first: dict[str, Case] = {}
    found: dict[str, dict[str, float]] = {}
    for case in cases:
        base = first.setdefault(case.title, case)
        if case.threads == base.threads and case.name in FRAMEWORKS:
            gain = _ratio_of(readings, case.label, base.label)
            found.setdefault(case.title, {})[str(case.replicas)] = gain
    return found


def against(
    readings: Mapping[str, list[float]], cases: list[Case]
) -> dict[str, dict[str, float]]:
    """Return label of a side -> label of a peer -> ratio, and "best" for the fastest peer."""
    peers = [case.label for case in cases if case.name in PEERS]
    if not peers:
        return {}
    best = max(peers, key=lambda label: statistics.median(readings[label]))
    return {
        case.label: {peer: _ratio_of(readings, case.label, peer) for peer in peers}
        | {"best": _ratio_of(readings, case.label, best)}
        for case in cases
        if case.name in FRAMEWORKS
    }


def _ratio_of(readings: Mapping[str, list[float]], a: str, b: str) -> float:
    pairs = zip(readings[a], readings[b], strict=True)
    return statistics.median(one / other for one, other in pairs)


def summary_of(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "spread": [min(values), max(values)]}


def median_of(summaries: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(summary[name] for summary in summaries))


def worst_of(summaries: Mapping[str, list[dict[str, Any]]], name: str) -> dict[str, float]:
    return {label: max(each[name] for each in found) for label, found in summaries.items()}
