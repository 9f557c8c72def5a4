"""Charts as HTML with SVG in it, which fits every width, is printed, and is light or dark."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from parity.report.page import fragment

SIZE = 1000  # units of a chart's axes, which are stretched to the room that there is
LABELS = 10  # of an axis at most

_MOST_MARKERS = 30  # points of a line; more would touch each other
_MOST, _LEAST = 1e300, 1e-300  # magnitudes that can be added and divided

Values = Sequence[float | None]  # a series of a figure; None is a hole
Ticks = Sequence[tuple[float, str]]  # places in percent, and labels


@dataclass(frozen=True)
class Line:
    """A line of a chart; `dash` is SVG's stroke-dasharray, `filled` is with the area below."""

    name: str
    values: Values
    colour: str
    dash: str = ""
    width: int = 2
    filled: bool = False


@dataclass(frozen=True)
class Axis:
    """An axis of numbers; what lies beyond its ends is drawn there."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> int:
        """Return where a value is: 0 to `SIZE`."""
        low, high, here = (
            math.log10(max(each, _LEAST)) if self.log else each
            for each in (self.low, self.high, value)
        )
        share = (here - low) / (high - low) if high > low else 0.5
        return round(SIZE * min(max(share, 0.0), 1.0))

    def ticks(self) -> Ticks:
        """Return powers of ten, if it is logarithmic and has three, or round numbers."""
        values = []
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            exponents = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
            values = [10.0**each for each in exponents[:: 1 + len(exponents) // LABELS]]
        if len(values) < 3:
            rough = (self.high - self.low) / 5 or 1.0
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            values = [step * each for each in range(first, last + 1)]
        return [(self.place(value) * 100 / SIZE, f"{value:.10g}") for value in values]


def axis_of(values: Iterable[float | None], *, log: bool = False) -> Axis:
    """Return an axis on which these values have room; a logarithmic one is of those above 0."""
    known = [
        min(max(value, -_MOST), _MOST)
        for value in values
        if value is not None and (value > 0 or not log)
    ] or [1.0]
    low, high = min(known), max(known)
    if log:
        return Axis(low / 1.5, high * 1.5, log=True)
    least = max(1e-8 * max(abs(low), abs(high)), _LEAST)
    room = max(least - (high - low), 0.1 * (high - low)) / 2
    return Axis(low - room, high + room)


def line_chart(
    steps: Sequence[int], lines: Sequence[Line], up: Axis, title: str, of: str = "step"
) -> Markup:
    """Draw lines over steps; `title` is what the vertical axis shows, which is `up`."""
    across, marks = Axis(steps[0], steps[-1]), Markup("")
    xs = [across.place(step) for step in steps]
    for line in lines:
        drawn = path(xs, line.values, up)
        dots = re.sub(r"[ML]([^ML]+)", r"M\1h0", drawn) if len(steps) <= _MOST_MARKERS else ""
        marks += Markup(
            '<g data-name="{}" stroke="{}"><path class="area" d="{}" fill="{}"/>'
            '<path d="{}" stroke-width="{}" stroke-dasharray="{}"/>'
            '<path class="dots" d="{}"/></g>'
        ).format(
            *(line.name, line.colour),
            *(f"{drawn}V{SIZE}H{xs[0]}Z" if line.filled else "", line.colour),
            *(drawn, line.width, line.dash or "none"),
            dots,
        )
    every = -(-len(steps) // LABELS)
    labels = [(across.place(step) * 100 / SIZE, str(step)) for step in steps[::every]]
    return framed(marks, labels, up.ticks(), title, lines, of)


def framed(
    marks: Markup, across: Ticks, up: Ticks, title: str, lines: Sequence[Line], of: str
) -> Markup:
    """Return SVG, in units of `SIZE` rightwards and downwards, between axes, with a legend."""
    wide = max((len(label) for _, label in up), default=0)
    given = {"marks": marks, "across": across, "up": up, "title": title, "lines": lines}
    return fragment("svg.html.jinja", of=of, wide=wide, **given)


def path(xs: Sequence[int], values: Values, up: Axis) -> str:
    """Return the path of a line in SVG, with a gap where there is no value."""
    parts, pen = [], "M"
    for x, value in zip(xs, values, strict=True):
        if value is not None:
            parts.append(f"{pen}{x} {SIZE - up.place(value)}")
        pen = "M" if value is None else "L"
    return "".join(parts)
