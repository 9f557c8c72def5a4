"""Draws boxes, arrows and bars with matplotlib, and writes them as SVG files.

The text of a file stays text, which browsers show in the reader's own fonts, and each colour
has a second value for a dark page. The same description always gives the same file.
"""

import html
import io
import re
import warnings
from collections.abc import Sequence

import matplotlib

matplotlib.use("svg")
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

WIDTH = 640  # of every picture, in points

# name -> what it is on a light page and on a dark one
COLOURS = {
    "page": ("#ffffff", "#1e2129"),
    "ink": ("#1f2328", "#e6e8ee"),
    "faint": ("#59616b", "#a5acb8"),
    "frame": ("#c4cad2", "#4a5160"),
    "lane": ("#f4f6f8", "#262a35"),
    "data": ("#dbeafe", "#1f3a63"),
    "data line": ("#2563c4", "#7fb0ff"),
    "gradient": ("#fde6cf", "#5e3a16"),
    "gradient line": ("#b4560a", "#ffb066"),
    "exchange": ("#ecdffb", "#452d66"),
    "exchange line": ("#7a3cc0", "#c8a0ff"),
    "weights": ("#d5f2df", "#1b4a31"),
    "weights line": ("#1b7a43", "#74d69c"),
}
_FONTS = "system-ui, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "parity",
    "svg.id": None,
    "font.family": "DejaVu Sans",  # comes with matplotlib; the file names others
    "path.snap": False,
}
_LINE = 13.5  # from one line of text to the next


class Canvas:
    """A picture in points, with y counted from the top.

    Args:
      height: the height of the picture.
      title: what it shows, for those who hear it read aloud.
      language: the language of its text, such as "zh-CN".
    """

    def __init__(self, height: float, title: str, language: str):
        self._title, self._language = title, language
        self._figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(0, WIDTH)
        self._axes.set_ylim(height, 0)
        self._axes.set_axis_off()
        self._figure.patch.set_visible(False)
        self.box(0, 0, WIDTH, height, "page", "page", corner=8)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        line: str,
        *,
        corner: float = 5,
    ) -> None:
        """Draw a box with round corners, given its upper left corner."""
        self._axes.add_patch(
            FancyBboxPatch(
                (x, y),
                width,
                height,
                boxstyle=f"round,pad=0,rounding_size={corner}",
                facecolor=COLOURS[fill][0],
                edgecolor=COLOURS[line][0],
                linewidth=1.1,
                clip_on=False,
            )
        )

    def text(
        self,
        x: float,
        y: float,
        lines: Sequence[str],
        *,
        bold: bool = False,
        align: str = "center",
        size: float = 10.5,
        colour: str = "ink",
    ) -> None:
        """Write lines of text, the first of them bold if asked; (x, y) is the middle."""
        top = y - (len(lines) - 1) * _LINE / 2 + 0.35 * size
        for number, line in enumerate(lines):
            self._axes.text(
                x,
                top + number * _LINE,
                line,
                ha=align,
                va="baseline",
                fontsize=size,
                fontweight="bold" if bold and number == 0 else "normal",
                color=COLOURS[colour if number == 0 else "faint"][0],
                parse_math=False,
            )

    def arrow(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw an arrow along straight lines through given points."""
        self._axes.add_patch(
            FancyArrowPatch(
                path=Path(points),
                arrowstyle="-|>,head_length=6,head_width=3",
                mutation_scale=1,
                shrinkA=0,
                shrinkB=0,
                facecolor=COLOURS[f"{kind} line"][0],
                edgecolor=COLOURS[f"{kind} line"][0],
                fill=True,
                linewidth=1.5,
                joinstyle="round",
                clip_on=False,
            )
        )

    def svg(self) -> str:
        """Return the picture as the text of an SVG file."""
        file = io.StringIO()
        with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
            # the reader's fonts have the characters that matplotlib's own lack
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            self._figure.savefig(
                file,
                format="svg",
                metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
            )
        return _readable(file.getvalue(), self._title, self._language)


def _readable(svg: str, title: str, language: str) -> str:
    """Return an SVG file with the reader's fonts and colours, and without what varies."""
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r" *<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!DOCTYPE.*?>\n", "", svg, flags=re.DOTALL)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", _FONTS, svg)
    dark = "".join(
        f'    [style*="{what}: {light}"] {{ {what}: {dark} !important }}\n'
        for light, dark in COLOURS.values()
        for what in ("fill", "stroke")
    )
    style = f" <style>\n   @media (prefers-color-scheme: dark) {{\n{dark}   }}\n </style>\n"
    start = re.search(r"<svg[^>]*>\n", svg)
    assert start is not None
    named = start.group().replace("<svg ", f'<svg role="img" xml:lang="{language}" ', 1)
    named += f" <title>{html.escape(title)}</title>\n{style}"
    svg = svg[: start.start()] + named + svg[start.end() :]
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
