"""The figure of how a difference develops after the first wrong step."""

import math
from typing import Any

from parity.report.growth import TITLES, differing_rungs, growth_table
from parity.report.page import Figure, colour, empty_figure, escape_html
from parity.report.table import Table

_DASHES = dict(zip(TITLES, ("solid", "dash", "dot"), strict=True))
_LEAST = 1e-18  # where a distance of zero is drawn: below the last bit of float64


def growth_chart(dtype: str, growth: dict[str, Any]) -> Figure:
    """Draw the distances of the first wrong step and of those after it.

    Args:
      dtype: the precision, for the figure's name.
      growth: one precision's, of report.json.
    """
    steps = growth["steps"]
    drawing = empty_figure("relative distance", steps)
    lines = {
        f"{growth['tensor']}, {title}": (growth["of_tensor"][kind], _DASHES[kind], 3, 0)
        for kind, title in TITLES.items()
    } | {
        f"rung {rung}": (series, "solid", 1, place)
        for place, (rung, series) in enumerate(differing_rungs(growth).items(), start=1)
    }
    drawn = []
    for name, (series, dash, width, place) in lines.items():
        if all(value is None for value in series):
            continue
        drawn += [value for value in series if value]
        drawing.add_scatter(
            x=steps,
            y=[None if value is None else max(value, _LEAST) for value in series],
            customdata=series,
            name=escape_html(name),
            mode="lines+markers",
            line={"dash": dash, "width": width, "color": colour("", place)},
            hovertemplate="%{customdata:.3~g}",
        )
    exponents = [math.floor(math.log10(value)) for value in drawn] or [0]
    drawing.update_yaxes(type="log", range=[min(exponents) - 0.5, max(exponents) + 1.5])
    drawing.update_layout(
        height=300 + 20 * len(drawing.data)
    )  # the legend grows with the lines
    rows, headers = growth_table(growth)
    return Figure(
        f"growth-{dtype}", drawing, Table([each.replace("\n", " ") for each in headers], rows)
    )
