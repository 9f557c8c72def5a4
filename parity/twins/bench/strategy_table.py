"""The table of strategies: the gain of each from more replicas, and its ratios to others."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from parity.twins.bench.cases import BenchCase, counterpart_cases
from parity.twins.bench.ratios import median_ratio
from parity.twins.launch.processes import PEERS

Readings = Mapping[str, list[float]]

_COLUMNS = {
    "strategy": "The framework or the peer, and its way of running replicas.",
    "settings": "The settings of the strategy, as given or else by default.",
    "replicas x threads": (
        "How many replicas share each batch, and the CPU threads of each; with stages, the "
        "threads of each stage."
    ),
    "tokens/s": "The median speed over the rounds, in real tokens (not padding) per second.",
    "spread": "The slowest and the fastest round.",
    "gain": (
        "The speed as a multiple of that of the same strategy with the fewest replicas; of a "
        "strategy with stages, of one device, which is the framework's default strategy with "
        "one replica."
    ),
    "of the best": (
        "The speed as a multiple of that of the framework's fastest synchronous data-parallel "
        "strategy on as many threads."
    ),
}
_TO_PEER = (
    "The speed as a multiple of that of its counterpart in {peer} with as many replicas and "
    "stages."
)
_MEMORY = "The most memory that the processes of a run held, added up."


def strategy_rows(readings: Readings, cases: Sequence[BenchCase]) -> list[dict[str, Any]]:
    """Return what the table of strategies says of each configuration, beside its speed.

    Every ratio is the median over the rounds of the ratio of two readings of one round.

    Args:
      readings: label -> the speed of each run.
      cases: the configurations that were timed.

    Returns:
      For each configuration its `label`; `gain`, and `gain_over`, the label of what it is the
      gain over; `of_best`, and `best`, the label of the best; `to`, peer -> ratio. None or
      empty where there is nothing to compare with.
    """
    rows = []
    for case in cases:
        base, best = _base(case, cases), _best(case, readings, cases)
        rows.append(
            {
                "label": case.label,
                "gain": _ratio(readings, case, base),
                "gain_over": base and base.label,
                "of_best": _ratio(readings, case, best),
                "best": best and best.label,
                "to": {
                    peer: _ratio(readings, case, other)
                    for peer, other in counterpart_cases(case, cases).items()
                    if not case.is_peer
                },
            }
        )
    return rows


def _base(case: BenchCase, cases: Sequence[BenchCase]) -> BenchCase | None:
    """Return the configuration that a configuration's gain is taken over."""
    alike = [
        each
        for each in cases
        if (each.name, each.kernels, each.threads) == (case.name, case.kernels, case.threads)
        and each.entry == (case.default_entry if case.stages > 1 else case.entry)
    ]
    return min(alike, key=lambda each: each.replicas, default=None)


def _best(case: BenchCase, readings: Readings, cases: Sequence[BenchCase]) -> BenchCase | None:
    """Return the fastest synchronous data-parallel configuration on as many threads."""
    if case.is_peer:
        return None
    others = [
        each
        for each in cases
        if (each.name, each.kernels, each.all_threads)
        == (case.name, case.kernels, case.all_threads)
        and each.entry.traits.synchronous
        and each.stages == 1
    ]
    return max(others, key=lambda each: statistics.median(readings[each.label]), default=None)


def _ratio(readings: Readings, case: BenchCase, other: BenchCase | None) -> float | None:
    return None if other is None else median_ratio(readings, case.label, other.label)


def table_columns(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of the table, each with what it means.

    Args:
      values: what `parity.twins.bench.timing.bench` returns.
    """
    to_peers = {f"to {peer}": _TO_PEER.format(peer=peer) for peer in _timed_peers(values)}
    return {**_COLUMNS, **to_peers, "peak MB": _MEMORY}


def table_rows(values: Mapping[str, Any]) -> list[list[str | None]]:
    """Return the table as text, a value for each of its columns; None where there is none.

    Args:
      values: what `parity.twins.bench.timing.bench` returns.
    """
    rows, peers = [], _timed_peers(values)
    for row in values["strategies"]:
        label = row["label"]
        case, speed = values["cases"][label], values["throughput"][label]
        rows.append(
            [
                case["title"],
                case["settings"] or None,
                case["layout"],
                f"{speed['median']:,.0f}",
                "{:,.0f} to {:,.0f}".format(*speed["spread"]),
                _text(row["gain"]),
                _text(row["of_best"]),
                *(_text(row["to"].get(peer)) for peer in peers),
                f"{sum(values['peak_memory'][label]) / 1e6:,.0f}",
            ]
        )
    return rows


def _timed_peers(values: Mapping[str, Any]) -> list[str]:
    timed = {case["name"] for case in values["cases"].values()}
    return [peer for peer in PEERS if peer in timed]


def _text(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.2f}"
