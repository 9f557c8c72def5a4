"""The table of strategies: the gain of each from more replicas, and its ratios to others."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from parity.report.table import Column, Table, table_of
from parity.twins.bench.cases import BenchCase, counterpart_cases
from parity.twins.bench.ratios import median_ratio
from parity.twins.bench.speed_table import MEMORY, memory_text, ratio_text, speed_columns
from parity.twins.launch.processes import PEERS

Readings = Mapping[str, list[float]]


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


def strategy_table(values: Mapping[str, Any]) -> Table:
    """Return the table of strategies.

    Args:
      values: what `parity.twins.bench.timing.bench` returns.
    """
    cases, memory = values["cases"], values["peak_memory"]
    timed = {case["name"] for case in cases.values()}
    columns = [
        Column(
            "strategy",
            "The framework or the peer, and its way of running replicas.",
            lambda row: cases[row["label"]]["title"],
        ),
        Column(
            "settings",
            "The settings of the strategy, as given or else by default.",
            lambda row: cases[row["label"]]["settings"] or None,
        ),
        Column(
            "replicas x threads",
            "How many replicas share each batch, and the CPU threads of each; with stages, the "
            "threads of each stage.",
            lambda row: cases[row["label"]]["layout"],
        ),
        *speed_columns(values),
        Column(
            "gain",
            "The speed as a multiple of that of the same strategy with the fewest replicas; of "
            "a strategy with stages, of one device, which is the framework's default strategy "
            "with one replica.",
            lambda row: ratio_text(row["gain"]),
        ),
        Column(
            "of the best",
            "The speed as a multiple of that of the framework's fastest synchronous "
            "data-parallel strategy on as many threads.",
            lambda row: ratio_text(row["of_best"]),
        ),
        *(_to_peer(peer) for peer in PEERS if peer in timed),
        Column("peak MB", MEMORY, lambda row: memory_text(memory[row["label"]])),
    ]
    return table_of(columns, values["strategies"], keys=3)


def _to_peer(peer: str) -> Column:
    return Column(
        f"to {peer}",
        f"The speed as a multiple of that of its counterpart in {peer} with as many replicas.",
        lambda row: ratio_text(row["to"].get(peer)),
    )
