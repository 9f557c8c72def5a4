"""A benchmark as a page that opens offline, made of the values of bench.json alone."""

from collections.abc import Mapping
from typing import Any

from parity.report.charts import bars_with_spread
from parity.report.page import Figure, Table, colour, empty_figure, render
from parity.twins.bench.history import history_lines
from parity.twins.bench.layouts import layout_lines
from parity.twins.bench.strategy_table import table_columns, table_rows

_MEASURED = {
    "name": "The side, or the peer.",
    "replicas x threads": "How many replicas share each batch, and the CPU threads of each.",
    "tokens/s": "The median speed, in real tokens (not padding) per second.",
    "gain": (
        "The speed as a multiple of that with the fewest replicas: the median of each round's."
    ),
    "of the limit": (
        "The speed as a share of what matrix products alone would allow, at {limit:,.0f} "
        "GFLOP/s: the best rate measured with large products on all cores."
    ),
    "of its products": (
        "The speed as a share of what products of a step's own shapes would allow, at "
        "{own:,.0f} GFLOP/s on all cores."
    ),
    "waiting for data": "The share of the time that went into waiting for batches, worst run.",
    "seconds to first step": "The time from the start of the program to its first step's end.",
    "peak MB": "The most memory that the processes of a run held, added up.",
}
# Values of bench.json that the page shows as they are.
_SHOWN = ("checked_steps", "cores", "rounds", "steps", "command", "versions")


def bench_html(values: Mapping[str, Any], sizes: str) -> str:
    """Return a page that shows a benchmark.

    Args:
      values: what `parity.twins.bench.timing.bench` returns.
      sizes: what was timed, in a line.
    """
    speeds = _speeds(values)
    limit, own = values["product_limit"] / 1e9, values["step_product_rate"] / 1e9
    return render(
        "bench.html.jinja",
        [speeds],
        title=f"Throughput: {sizes}",
        sizes=sizes,
        speeds=speeds,
        against=_against(values),
        strategies=_strategies(values),
        strategy_columns=table_columns(values),
        left_out=values["peers_left_out"],
        history=history_lines(values["history"]),
        layouts=layout_lines(values["layouts"]),
        machine=f"{values['processor']}, {values['machine']}",
        measured=Table(list(_MEASURED), _measured(values)),
        measured_columns={
            name: text.format(limit=limit, own=own) for name, text in _MEASURED.items()
        },
        **{name: values[name] for name in _SHOWN},
    )


def _speeds(values: Mapping[str, Any]) -> Figure:
    drawing = empty_figure("real tokens per second")
    cases = values["cases"]
    layouts = list(dict.fromkeys(case["layout"] for case in cases.values()))
    rows = []
    for place, name in enumerate(dict.fromkeys(case["title"] for case in cases.values())):
        mine = {case["layout"]: label for label, case in cases.items() if case["title"] == name}
        speeds = [values["throughput"].get(mine.get(layout)) for layout in layouts]
        drawing.add_bar(
            x=layouts,
            name=name,
            marker={"color": colour(name, place)},
            hovertemplate="%{y:,.0f}, %{customdata[0]:,.0f} to %{customdata[1]:,.0f}",
            **bars_with_spread(
                [speed and speed["median"] for speed in speeds],
                [speed["spread"] if speed else (None, None) for speed in speeds],
            ),
        )
        rows += [
            (name, layout, speed["median"], *speed["spread"])
            for layout, speed in zip(layouts, speeds, strict=True)
            if speed
        ]
    drawing.update_layout(barmode="group")
    drawing.update_yaxes(rangemode="tozero")
    headers = ["name", "replicas x threads", "median", "slowest", "fastest"]
    return Figure("speeds", drawing, Table(headers, rows))


def _against(values: Mapping[str, Any]) -> Table | None:
    """Return how many times as fast as the peers each side is, if any peer was timed."""
    if not values["against"]:
        return None
    peers = list(next(iter(values["against"].values())))
    rows = [
        (side, *(f"{ratios[peer]:.2f}" for peer in peers))
        for side, ratios in values["against"].items()
    ]
    return Table(["times as fast as", *peers], rows)


def _strategies(values: Mapping[str, Any]) -> Table | None:
    """Return the table of strategies, if they were compared."""
    return (
        Table(list(table_columns(values)), table_rows(values)) if values["strategies"] else None
    )


def _measured(values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for label, case in values["cases"].items():
        gain = values["scaling"].get(case["title"], {}).get(str(case["replicas"]))
        if case["threads"] != values["threads"]:
            gain = None
        rows.append(
            (
                case["title"],
                case["layout"],
                f"{values['throughput'][label]['median']:,.0f}",
                None if gain is None else f"{gain:.2f}",
                f"{values['share_of_limit'][label]:.0%}",
                f"{values['share_of_step_products'][label]:.0%}",
                f"{values['waiting_share'][label]:.1%}",
                f"{values['seconds_to_first_step'][label]:.1f}",
                f"{sum(values['peak_memory'][label]) / 1e6:,.0f}",
            )
        )
    return rows
