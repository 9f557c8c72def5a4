"""Pages with figures: each is one HTML file that opens offline."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from parity.report.frameworks import LOOKS
from parity.report.table import Table

ORACLE_COLOUR = "#808080"
_OTHERS = ("#8a5fd0", "#1f9a6b", "#c2528b", "#a07a14", "#3f8fb0", "#b0563f")

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
      drawing: what is drawn, as HTML.
      table: the numbers that are drawn.
    """

    name: str
    drawing: Markup
    table: Table


def render(template: str, **values: Any) -> str:
    """Return a page.

    Args:
      template: the name of a file in `templates`, which extends page.html.jinja.
      **values: what the template refers to; `title` is the window's.
    """
    return fragment(template, style=_text("page.css"), script=_text("page.js"), **values)


def fragment(template: str, **values: Any) -> Markup:
    """Return a template, rendered, as HTML that another one may contain."""
    return Markup(_ENVIRONMENT.get_template(template).render(values))


def colour(framework: str, place: int) -> str:
    """Return a framework's colour; one without its own gets it by its place in the figure."""
    known = LOOKS.get(framework)
    return known.colour if known else _OTHERS[place % len(_OTHERS)]


def _text(asset: str) -> str:
    """Return what a file beside the templates holds."""
    return (_TEMPLATES / asset).read_text(encoding="utf-8")
