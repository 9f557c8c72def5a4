"""A benchmark as a page that opens offline, made of the values of bench.json alone."""

from collections.abc import Mapping
from typing import Any

from parity.report.charts import bars_with_spread
from parity.report.page import Figure, colour, empty_figure, render
from parity.report.table import Table
from parity.twins.bench.history import history_lines
from parity.twins.bench.speed_table import peer_table, speed_table
from parity.twins.bench.strategy_table import strategy_table

# Values of bench.json that the page shows as they are.
_SHOWN = ("checked_steps", "noise", "cores", "rounds", "steps", "command", "versions")


def bench_html(values: Mapping[str, Any], sizes: str) -> str:
    """Return a page that shows a benchmark.

    Args:
      values: what `parity.twins.bench.timing.bench` returns.
      sizes: what was timed, in a line.
    """
    speeds = _speeds(values)
    return render(
        "bench.html.jinja",
        [speeds],
        title=f"Throughput: {sizes}",
        sizes=sizes,
        speeds=speeds,
        against=peer_table(values),
        strategies=strategy_table(values) if values["strategies"] else None,
        left_out=values["peers_left_out"],
        history=history_lines(values["history"]),
        machine=f"{values['processor']}, {values['machine']}",
        measured=speed_table(values),
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
