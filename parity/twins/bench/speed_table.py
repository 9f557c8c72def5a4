"""The tables of a benchmark's measurements, which the terminal and the page show alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from parity.report.table import Column, Table, table_of

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
