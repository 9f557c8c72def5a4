"""The tables of a benchmark's measurements, which the terminal and the page show alike."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from parity.report.table import Column, Table, table_of
from parity.twins.bench.cases import BenchCase, counterpart_cases
from parity.twins.bench.ratios import median_ratio
from parity.twins.launch.processes import PEERS

Readings = Mapping[str, list[float]]  # label -> the speed of each run

MEMORY = "The most memory that the processes of a run held, added up."


def speed_table(values: Mapping[str, Any]) -> Table:
    """Return the table of all measurements, a row for each configuration.

    Args:
      values: what `parity.twins.bench.timing.bench` returns.
    """
    limit, own = values["product_limit"] / 1e9, values["step_product_rate"] / 1e9
    rates = ", ".join(f"{k} {rate / 1e9:,.0f}" for k, rate in values["product_rates"].items())

    def gain(row: Mapping[str, Any]) -> str | None:
        if row["threads"] != values["threads"]:
            return None
        return ratio_text(values["scaling"].get(row["title"], {}).get(str(row["replicas"])))

    columns = [
        Column("side", "The framework, or the peer.", lambda row: row["title"]),
        Column(
            "replicas x threads",
            "How many replicas share each batch, and the CPU threads of each.",
            lambda row: row["layout"],
        ),
        *speed_columns(values),
        Column(
            "gain",
            "The speed divided by the speed with the first number of replicas in the same "
            "round; the median over the rounds.",
            gain,
        ),
        Column(
            "of the limit",
            "The speed as a share of what matrix products alone would allow, at "
            f"{limit:,.0f} GFLOP/s, the best rate seen for large ones on all cores ({rates}).",
            lambda row: f"{values['share_of_limit'][row['label']]:.0%}",
        ),
        Column(
            "of its products",
            "The speed as a share of what products of a step's own shapes would allow, each as "
            f"fast as any library takes it on all cores at once: {own:,.0f} GFLOP/s.",
            lambda row: f"{values['share_of_step_products'][row['label']]:.0%}",
        ),
        Column(
            "waiting for data",
            "The share of the time that went into waiting for batches, worst run.",
            lambda row: f"{values['waiting_share'][row['label']]:.1%}",
        ),
        Column(
            "seconds to first step",
            "The time from the start of the program to its first step's end.",
            lambda row: f"{values['seconds_to_first_step'][row['label']]:.1f}",
        ),
        Column("peak MB", MEMORY, lambda row: memory_text(values["peak_memory"][row["label"]])),
    ]
    return table_of(
        columns, [case | {"label": label} for label, case in values["cases"].items()], keys=2
    )


def speed_columns(values: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a configuration's speed, of rows with its `label`."""
    speeds = values["throughput"]
    return [
        Column(
            "tokens/s",
            "The median speed over the rounds, in real tokens (not padding) per second.",
            lambda row: f"{speeds[row['label']]['median']:,.0f}",
        ),
        Column(
            "spread",
            "The slowest and the fastest round.",
            lambda row: "{:,.0f} to {:,.0f}".format(*speeds[row["label"]]["spread"]),
        ),
    ]


def peer_table(values: Mapping[str, Any]) -> Table | None:
    """Return how many times as fast as the peers each side is, if any peer was timed."""
    if not values["against"]:
        return None

    def heading(label: str) -> str:
        case = values["cases"].get(label)
        return f"{case['title']} {case['layout']}" if case else "best peer"

    peers = list(next(iter(values["against"].values())))
    rows = [
        [heading(side), *(ratio_text(ratios[peer]) for peer in peers)]
        for side, ratios in values["against"].items()
    ]
    return Table(["times as fast as", *map(heading, peers)], rows)


def ratio_text(ratio: float | None) -> str | None:
    """Return a ratio for a table."""
    return None if ratio is None else f"{ratio:.2f}"


def memory_text(processes: Sequence[float]) -> str:
    """Return the memory of all processes of a run, given in bytes, in units of a million."""
    return f"{sum(processes) / 1e6:,.0f}"


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
