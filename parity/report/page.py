"""Pages with figures: each is one HTML file that opens offline."""

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from parity.report.frameworks import LOOKS
from parity.report.table import Table

ORACLE_COLOUR, _OTHERS = (
    "#808080",
    (
        "#8a5fd0",
        "#1f9a6b",
        "#c2528b",
        "#a07a14",
        "#3f8fb0",
        "#b0563f",
    ),
)

Values = Sequence[float | None]  # a series of a figure; None is a hole

_TEMPLATES = Path(__file__).parent / "templates"
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Figure:
    """A figure of a page; its title and caption are in the page's template.

    Attributes:
      name: the id of its element in the page.
      drawing: what plotly draws.
      table: the numbers that are drawn.
    """

    name: str
    drawing: go.Figure
    table: Table


def render(template: str, figures: Iterable[Figure], **values: Any) -> str:
    """Return a page, with its figures and the script that draws them.

    Args:
      template: the name of a file in `templates`, which extends page.html.jinja.
      figures: all that the template shows.
      **values: what the template refers to; `title` is the window's.
    """
    drawings = {figure.name: figure.drawing.to_plotly_json() for figure in figures}
    return _ENVIRONMENT.get_template(template).render(
        values,
        style=_text("page.css"),
        script=_text("page.js"),
        drawings=_packed(json.dumps(drawings, allow_nan=False)),
        plotly=_packed(get_plotlyjs()),
    )


def empty_figure(y_title: str, steps: Sequence[int] | None = None) -> go.Figure:
    """Return a figure without data, in the look that all figures share.

    Args:
      y_title: the title of the vertical axis.
      steps: the steps along the horizontal axis, if it is one of steps.
    """
    figure = go.Figure(
        layout={
            "template": "none",
            "height": 340,
            "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hovermode": "x unified",
            "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
            "showlegend": True,
            "font": {"family": "system-ui, sans-serif", "size": 12},
        }
    )
    figure.update_xaxes(automargin=True, zeroline=False)
    figure.update_yaxes(automargin=True, zeroline=False, title={"text": y_title, "standoff": 8})
    if steps is not None:
        # plotly would put ticks between the steps where there are few
        every = 1 if steps[-1] - steps[0] < 12 else None
        figure.update_xaxes(title={"text": "step", "standoff": 4}, tickformat="d", dtick=every)
    return figure


def escape_html(text: str) -> str:
    """Escape text for a figure, where plotly would read `<b>` as bold."""
    return escape(text, quote=False)


def colour(framework: str, place: int) -> str:
    """Return a framework's colour; one without its own gets it by its place in the figure."""
    known = LOOKS.get(framework)
    return known.colour if known else _OTHERS[place % len(_OTHERS)]


def _text(asset: str) -> str:
    """Return what a file beside the templates holds."""
    return (_TEMPLATES / asset).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Compress text in the way that the page's script unpacks."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
