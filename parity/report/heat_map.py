"""The map of every tensor at every step, coloured by how much of its bound it used."""

from collections.abc import Sequence
from typing import Any

from parity.report.page import Figure, Values, empty_figure
from parity.report.table import Table

_ROW_HEIGHT = 15  # of the heat map, in pixels
_EQUAL = "#9a9a9a"
_MARK, _AFTER = "#e02020", "#f0b4a8"
# Shares of a bound from 0 to 100%: calm where there is room left, and red is kept for more.
_SHARES = ("#35608f", "#4f86a8", "#86a99b", "#c9b264", "#f0a030")
_BESIDE = 0.1  # of the scale of shares, beside it: equal; above it: a mismatch, and after one

# Rungs whose tensors are not computed from each other: each of them is wrong by itself.
_APART = ("batch", "initial", "clipped_gradient", "optimizer", "weight", "replicas")


def heat_map(
    dtype: str, history: dict[str, Any], marked: str | None, guilty: str | None = None
) -> Figure:
    """Draw how much of its bound every tensor used at every step, as a map of colours.

    Args:
      dtype: the precision, for the figure's name.
      history: one precision's, of report.json.
      marked: the tensor to frame at the last step, if any.
      guilty: the wrong tensor that no other wrong one was computed before; what else is wrong
        is then drawn paler, as it may follow from that. None: all are drawn alike.
    """
    steps, relative, used = history["steps"], history["relative"], history["used"]
    tensors = list(relative)
    drawing = empty_figure("", steps)
    drawing.add_heatmap(
        x=steps,
        y=list(range(len(tensors))),
        customdata=list(used.values()),  # the page's script makes colours and texts of these
        meta={
            "tensors": tensors,
            "relative": list(relative.values()),
            "beside": _BESIDE,
            "after": [guilty is not None and not _alike(name, guilty) for name in tensors],
        },
        zmin=-_BESIDE,
        zmax=1 + 2 * _BESIDE,
        xgap=0,
        ygap=1,
        hovertemplate="%{text}<extra></extra>",
        **_colours_of_shares(),
    )
    if marked is not None:
        row, half = tensors.index(marked), max(0.5, history["span"] / 2)
        drawing.add_shape(
            type="rect",
            x0=steps[-1] - half,
            x1=steps[-1] + half,
            y0=row - 0.5,
            y1=row + 0.5,
            line={"color": _MARK, "width": 2},
        )
    height = 110 + _ROW_HEIGHT * len(tensors)
    drawing.update_layout(height=height, hovermode="closest", showlegend=False)
    drawing.update_yaxes(
        range=[len(tensors) - 0.5, -0.5],
        showgrid=False,
        tickvals=list(range(len(tensors))),
        ticktext=[f"<b>► {name}</b>" if name == marked else name for name in tensors],
        tickfont={"size": 10},
    )
    rows = [
        (name, *_worst(steps, used[name]), *_worst(steps, relative[name])) for name in tensors
    ]
    headers = [
        "tensor",
        "largest share of bound",
        "at step",
        "largest relative error",
        "at step",
    ]
    return Figure(f"heat-{dtype}", drawing, Table(headers, rows))


def _alike(name: str, guilty: str) -> bool:
    """Return whether a tensor is wrong by itself where the guilty one is."""
    rung = name.split("/", 1)[0]
    return name == guilty or (rung in _APART and rung == guilty.split("/", 1)[0])


def _colours_of_shares() -> dict[str, Any]:
    """Return plotly's arguments for the colours of shares and the bar that explains them."""
    whole = 1 + 3 * _BESIDE
    first, last, after = _BESIDE / whole, 1 - 2 * _BESIDE / whole, 1 - _BESIDE / whole
    steps = len(_SHARES) - 1
    ticks = {0.25: "25%", 0.5: "50%", 0.75: "75%"}
    return {
        "colorscale": [
            [0, _EQUAL],
            [first, _EQUAL],
            *([first + (last - first) * i / steps, each] for i, each in enumerate(_SHARES)),
            [last, _MARK],
            [after, _MARK],
            [after, _AFTER],
            [1, _AFTER],
        ],
        "colorbar": {
            "tickvals": [-_BESIDE / 2, *ticks, 1 + _BESIDE / 2],
            "ticktext": ["equal", *ticks.values(), "wrong"],
            "tickangle": 0,
            "orientation": "h",
            "thickness": 12,
            "y": 1,
            "yanchor": "bottom",
            "title": {"text": ""},
        },
    }


def _worst(steps: Sequence[int], row: Values) -> tuple[float | None, int | None]:
    """Return the largest value, and the first step that has it."""
    known = [
        (value, -step) for step, value in zip(steps, row, strict=True) if value is not None
    ]
    if not known:
        return None, None
    value, step = max(known)
    return value, -step
