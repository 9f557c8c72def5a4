"""Evaluates a benchmark's readings: medians, gains from more replicas, ratios to the peers."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.twins.bench.cases import BenchCase
from parity.twins.launch.processes import PEERS
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.training.meter import WARM_UP

# The greatest relative difference allowed between a peer's losses in the warm-up and a side's.
# Measured: 3e-7 in float32, and 8e-4 for a peer that applied its gradients twice.
_LOSS_TOLERANCE = 1e-4


def check_losses(losses: Mapping[str, list[float]], cases: list[BenchCase]) -> dict[str, float]:
    """Return the greatest relative difference of each peer's losses from the first side's.

    Only the losses of the warm-up are compared.

    Args:
      losses: label -> the losses of a run.
      cases: the configurations that were timed, a synchronous side first.

    Returns:
      Label of each peer -> the difference, relative to the side's loss.

    Raises:
      UsageError: if the losses show that a peer trains something else.
    """
    expected = np.array(losses[cases[0].label][:WARM_UP])
    differences = {}
    for case in cases:
        if case.is_peer:
            relative = np.abs(np.array(losses[case.label][:WARM_UP]) - expected) / expected
            differences[case.label] = float(relative.max())
            if not differences[case.label] <= _LOSS_TOLERANCE:
                raise UsageError(
                    f"{case.label}: its losses differ from those of {cases[0].label} by up to "
                    f"{differences[case.label]:.2g} of them; allowed: {_LOSS_TOLERANCE:g}. It "
                    "trains something else"
                )
    return differences


def scaling(
    readings: Mapping[str, list[float]], cases: Iterable[BenchCase]
) -> dict[str, dict[str, float]]:
    """Return how much faster each side is than with its first number of replicas.

    A side's configurations with another number of threads than its first are left out. The gain
    is the median over the rounds of the ratio of two readings of the same round.

    Returns:
      Title of a side -> number of replicas, as text -> gain.
    """
    first: dict[str, BenchCase] = {}
    gains: dict[str, dict[str, float]] = {}
    for case in cases:
        base = first.setdefault(case.title, case)
        if case.threads == base.threads and case.name in FRAMEWORKS:
            gain = median_ratio(readings, case.label, base.label)
            gains.setdefault(case.title, {})[str(case.replicas)] = gain
    return gains


def ratios_to_peers(
    readings: Mapping[str, list[float]], cases: list[BenchCase]
) -> dict[str, dict[str, float]]:
    """Return the ratio of each side's speed to that of each peer.

    Returns:
      Label of a side -> label of a peer, or "best" for the fastest peer -> ratio; empty without
      peers.
    """
    peers = [case.label for case in cases if case.name in PEERS]
    if not peers:
        return {}
    best = max(peers, key=lambda label: statistics.median(readings[label]))
    return {
        case.label: {peer: median_ratio(readings, case.label, peer) for peer in peers}
        | {"best": median_ratio(readings, case.label, best)}
        for case in cases
        if case.name in FRAMEWORKS
    }


def median_ratio(readings: Mapping[str, list[float]], a: str, b: str) -> float:
    """Return the median over the rounds of the ratio of two readings of one round.

    Args:
      readings: label -> the speed of each run.
      a, b: the labels of the numerator and the denominator.
    """
    pairs = zip(readings[a], readings[b], strict=True)
    return statistics.median(one / other for one, other in pairs)


def median_field(summaries: list[dict[str, Any]], name: str) -> float:
    """Return the median over some runs of one field of their summaries."""
    return float(statistics.median(summary[name] for summary in summaries))
