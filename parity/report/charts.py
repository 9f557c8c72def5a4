"""The figures of a report's page, drawn from the values of report.json alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from parity.report.frameworks import LOOKS
from parity.report.page import ORACLE_COLOUR, Figure, Values, colour, empty_figure, escape_html
from parity.report.table import Table
from parity.report.verdict_tables import (
    GROWTH,
    differing_rungs,
    growth_table,
)

SMALLEST = 0.1  # units in the last place; smaller differences are drawn there

_LEAST = 1e-18  # where a distance of zero is drawn: below the last bit of float64
_DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot")

# --loss-per -> what a loss is divided by, in words
PER = {"token": "real token", "row": "row"}


def losses(
    dtype: str, history: dict[str, Any], frameworks: Mapping[str, str], loss_per: str | None
) -> Figure:
    """Draw the loss of every step, those after a mismatch too, the sides' over the oracle's.

    Args:
      dtype: the precision, for the figure's name.
      history: one precision's, of report.json.
      frameworks: side -> its framework.
      loss_per: what the loss is divided by, a key of `PER`; None of a recorded pair.
    """
    after = history.get("after", {"steps": [], "loss": {}})  # of a mismatch
    steps = history["steps"] + after["steps"]
    loss = {side: each + after["loss"].get(side, []) for side, each in history["loss"].items()}
    drawing = empty_figure(_unit(loss_per), steps)
    if "oracle" in loss:
        _add_oracle(drawing, steps, loss["oracle"], "oracle")
    for i, side in enumerate(side for side in loss if side != "oracle"):
        _add_side(drawing, steps, loss[side], frameworks[side], side, i)
    return Figure(f"loss-{dtype}", drawing, _by_step(steps, loss))


def _unit(loss_per: str | None) -> str:
    return f"nats per {PER[loss_per]}" if loss_per else "loss"


def difference(dtype: str, history: dict[str, Any]) -> Figure:
    """Draw how far the losses of the compared pair are apart, and how far from the oracle.

    Args:
      dtype: the precision, for the figure's name.
      history: one precision's, of report.json.
    """
    steps, (a, b) = history["steps"], history["pair"]
    apart, from_oracle = history["difference"], history["from_oracle"]
    columns = {f"{a} from {b}": apart}
    columns |= {f"{side} from oracle": from_oracle[side] for side in (a, b) if from_oracle}
    drawing = empty_figure("units in the last place", steps)
    largest = apart
    if from_oracle:
        band = [_largest(both) for both in zip(from_oracle[a], from_oracle[b], strict=True)]
        largest = [*band, *apart]
        _add_band(drawing, steps, band)
    drawing.add_scatter(
        x=steps,
        y=_raised(apart),
        customdata=apart,
        name=escape_html(f"{a} from {b}"),
        mode=_mode(steps),
        line={"width": 2, "color": colour(next(iter(LOOKS)), 0)},
        hovertemplate="%{customdata:.6~g}",
    )
    _scale_from_smallest(drawing, _largest(largest) or 1.0)
    return Figure(f"difference-{dtype}", drawing, _by_step(steps, columns))


def growth_chart(dtype: str, growth: dict[str, Any]) -> Figure:
    """Draw the distances of the first wrong step and of those after it.

    Args:
      dtype: the precision, for the figure's name.
      growth: one precision's, of report.json.
    """
    steps = growth["steps"]
    drawing = empty_figure("relative distance", steps)
    lines = {
        f"{growth['tensor']}, {title}": (growth["of_tensor"][kind], dash, 3, 0)
        for (kind, title), dash in zip(GROWTH.items(), ("solid", "dash", "dot"), strict=True)
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
    return Figure(f"growth-{dtype}", drawing, growth_table(growth))


def _add_band(drawing: go.Figure, steps: Sequence[int], band: Values) -> None:
    """Draw a grey band from the foot of the axis up to these values."""
    drawing.add_scatter(
        x=steps,
        y=[SMALLEST] * len(steps),
        mode="lines",
        line={"width": 0},
        showlegend=False,
        hoverinfo="skip",
    )
    drawing.add_scatter(
        x=steps,
        y=_raised(band),
        customdata=band,
        name="farther side from the oracle",
        mode="lines",
        line={"width": 1, "color": ORACLE_COLOUR},
        fill="tonexty",
        fillcolor="rgba(128,128,128,0.3)",
        hovertemplate="%{customdata:.6~g}",
    )


def _scale_from_smallest(drawing: go.Figure, largest: float) -> None:
    """Give a figure a logarithmic axis from SMALLEST, which is labelled 0."""
    top = math.log10(max(largest, 10))
    exponents = range(round(math.log10(SMALLEST)), math.ceil(top) + 1)
    exponents = exponents[:: max(1, len(exponents) // 8)]
    drawing.update_yaxes(
        type="log",
        range=[math.log10(SMALLEST) - 0.1, top + 0.2],
        tickvals=[10.0**e for e in exponents],
        ticktext=[_power(e) if i else "0" for i, e in enumerate(exponents)],
    )


def _add_side(
    drawing: go.Figure,
    steps: Sequence[int],
    values: Values,
    framework: str,
    name: str,
    place: int,
) -> None:
    """Draw a side's thin line; each has its own dashes, which let the others show through."""
    dash = _DASHES[place % len(_DASHES)]
    drawing.add_scatter(
        x=steps,
        y=values,
        name=escape_html(name),
        mode=_mode(steps),
        line={"color": colour(framework, place), "dash": dash, "width": 2},
        hovertemplate="%{y:.9g}",
    )


def _add_oracle(
    drawing: go.Figure,
    steps: Sequence[int],
    values: Values,
    name: str,
) -> None:
    """Draw the oracle's broad line, which has to lie under those of the sides."""
    drawing.add_scatter(
        x=steps,
        y=values,
        name=escape_html(name),
        mode="lines",
        line={"color": ORACLE_COLOUR, "width": 8},
        opacity=0.35,
        hovertemplate="%{y:.9g}",
    )


def _by_step(steps: Sequence[int], columns: Mapping[str, Values]) -> Table:
    return Table(["step", *columns], list(zip(steps, *columns.values(), strict=True)))


def _mode(steps: Sequence[int]) -> str:
    return "lines+markers" if len(steps) <= 30 else "lines"


def _raised(values: Values) -> list[float | None]:
    """Return values with those below SMALLEST raised to it."""
    return [None if value is None else max(value, SMALLEST) for value in values]


def _largest(values: Values) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _power(exponent: int) -> str:
    return f"{10**exponent:g}" if 0 <= exponent < 4 else f"1e{exponent}"
