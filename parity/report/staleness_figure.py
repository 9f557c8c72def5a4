"""How stale the updates of asynchronous sides were, as bars for the page."""

from typing import Any

from parity.report.page import Figure, colour, empty_figure, escape_html
from parity.report.staleness import staleness_counts
from parity.report.table import Table


def staleness_figure(values: dict[str, Any]) -> Figure | None:
    """Draw how many updates had each staleness; None without an asynchronous side."""
    counts = staleness_counts(values)
    if not counts:
        return None
    drawing, rows = empty_figure("updates"), []
    for place, (side, dtype, found) in enumerate(counts):
        name = f"{side}, {dtype}"
        drawing.add_bar(
            x=list(found),
            y=list(found.values()),
            name=escape_html(name),
            marker={"color": colour(values["sides"][side]["framework"], place)},
            hovertemplate="%{y} updates",
        )
        rows += [(name, stale, count) for stale, count in found.items()]
    drawing.update_layout(barmode="group")
    drawing.update_xaxes(title={"text": "staleness", "standoff": 4}, dtick=1)
    drawing.update_yaxes(rangemode="tozero")
    return Figure("staleness", drawing, Table(["side", "staleness", "updates"], rows))
