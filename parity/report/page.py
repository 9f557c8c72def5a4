"""A page with figures: one file that opens offline."""

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

COLOURS = {"paddle": "#2f7fe0", "tensorflow": "#d9660a"}
ORACLE_COLOUR, _OTHERS = "#808080", ("#8a5fd0", "#1f9a6b")

_HERE = Path(__file__).parent


class Page:
    """Gathers the figures, which the page's script draws."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}

    def whole(self, title: str, body: Sequence[str]) -> str:
        """Return the page, with its figures and all that draws them.

        Args:
          title: plain text.
          body: elements, in order.
        """
        replaced = {
            "TITLE": escape(title),
            "STYLE": (_HERE / "page.css").read_text(encoding="utf-8"),
            "BODY": "\n".join(body),
            "FIGURES": _packed(json.dumps(self.figures, allow_nan=False)),
            "PLOTLY": _packed(get_plotlyjs()),
            "SCRIPT": (_HERE / "page.js").read_text(encoding="utf-8"),
        }
        parts = (_HERE / "page.template").read_text(encoding="utf-8").split("%%")
        return "".join(replaced.get(part, part) for part in parts)

    def figure(
        self, name: str, title: str, caption: str, figure: go.Figure, table: str, summary: str
    ) -> str:
        """Take in a figure, and return the element that it will be drawn in."""
        self.figures[name] = figure.to_plotly_json()
        height = figure.layout.height
        return (
            f"<figure><h3 id='{name}-title'>{escape(title)}</h3>"
            f"<div class='plot' id='{name}' style='height:{height}px' tabindex='0' role='group'"
            f" aria-labelledby='{name}-title' aria-describedby='{name}-caption'></div>"
            f"<output id='{name}-values' class='values' aria-live='polite'></output>"
            f"<figcaption id='{name}-caption'>{escape(caption)}</figcaption>"
            f"<details><summary>{escape(summary)}</summary>{table}</details></figure>"
        )


def empty_figure(y_title: str, steps: Sequence[int] | None = None) -> go.Figure:
    """Return a figure without data, as all are to look.

    Args:
      y_title: of the upright axis.
      steps: that it will be drawn over, if over steps.
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
        # few steps would else have ticks between them
        every = 1 if steps[-1] - steps[0] < 12 else None
        figure.update_xaxes(title={"text": "step", "standoff": 4}, tickformat="d", dtick=every)
    return figure


def label(text: str) -> str:
    """Return text that a figure shows as it is, not as marks."""
    return escape(text, quote=False)


def colour(framework: str, place: int) -> str:
    """Return the colour of a framework, of any other by its place among those drawn."""
    return COLOURS.get(framework, _OTHERS[place % len(_OTHERS)])


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table that scrolls by itself where it is wider than the page."""
    head = "".join(f"<th scope='col'>{escape(header)}</th>" for header in headers)
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        "<div class='scroll' tabindex='0' role='group' aria-label='table'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    return f"<td>{'-' if value is None else escape(str(value))}</td>"


def _packed(text: str) -> str:
    """Return text as the page's script unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
