"""Predicted steps as a page that opens offline, made of the values of scale.json alone."""

from collections.abc import Mapping
from typing import Any

from parity.report.frameworks import short_of
from parity.report.page import Figure, colour, empty_figure, render
from parity.report.table import Table
from parity.twins.scale.model import Link
from parity.twins.scale.quantities import link_text, megabytes, milliseconds
from parity.twins.scale.terminal import (
    SCALINGS,
    fastest_lines,
    gradients_text,
    measured_table,
    notes,
    overlap_line,
)

_DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot", "dash", "solid")
# what a figure draws -> the title of its axis, and how a table shows a value
_DRAWN = {
    "speed_up": ("speed-up", lambda value: f"{value:.3g}"),
    "seconds": ("milliseconds of a step", milliseconds),
    "sent": ("megabytes sent for each step", megabytes),
}
_UNITS = {"speed_up": 1.0, "seconds": 1e3, "sent": 1e-6}


def scale_html(values: Mapping[str, Any]) -> str:
    """Return a page that shows predicted steps.

    Args:
      values: what `parity.twins.scale.scaling.scale` returns.
    """
    sections = [
        _section(values, side, link, scaling)
        for side, by_link in values["predictions"].items()
        for link in by_link
        for scaling in SCALINGS
    ]
    return render(
        "scale.html.jinja",
        [figure for section in sections for figure in section["figures"].values()],
        title=f"Scaling: {values['network']} {values['preset']}",
        summary=gradients_text(values["gradients"]),
        sections=sections,
        measured=measured_table(values),
        notes=notes(values),
        command=values["command"],
        machine=f"{values['processor']}, {values['cores']} cores, {values['date']}",
        versions=values["versions"],
    )


def _section(values: Mapping[str, Any], side: str, link: str, scaling: str) -> dict[str, Any]:
    """Return what a section of the page shows: a side over a link."""
    found = values["predictions"][side][link]
    place = f"{list(values['predictions']).index(side)}-{list(values['links']).index(link)}"
    sentences = fastest_lines(found["fastest"][scaling], values)
    sentences.append(overlap_line(found, scaling))
    return {
        "title": f"{short_of(side)}, {link}: {link_text(Link(**values['links'][link]))}",
        "scaling": SCALINGS[scaling],
        "figures": {
            what: _figure(f"{what.replace('_', '-')}-{place}-{scaling}", what, found, scaling)
            for what in _DRAWN
        },
        "sentences": [f"{each[0].upper()}{each[1:]}." for each in sentences],
    }


def _figure(name: str, what: str, found: Mapping[str, Any], scaling: str) -> Figure:
    title, text = _DRAWN[what]
    drawing = empty_figure(title)
    for place, (strategy, curve) in enumerate(found[scaling].items()):
        drawing.add_scatter(
            x=found["ranks"],
            # no zeros: the axis is logarithmic
            y=[value * _UNITS[what] if value else None for value in curve[what]],
            name=strategy,
            mode="lines+markers",
            line={"color": colour(strategy, place), "dash": _DASHES[place], "width": 2},
            hovertemplate="%{y:,.4~g}",
        )
    ticks = {"tickvals": found["ranks"], "ticktext": [str(count) for count in found["ranks"]]}
    drawing.update_xaxes(type="log", title={"text": "ranks", "standoff": 4}, **ticks)
    drawing.update_yaxes(type="log")
    rows = [
        (count, *(None if value is None else text(value) for value in values))
        for count, values in zip(
            found["ranks"],
            zip(*(curve[what] for curve in found[scaling].values()), strict=True),
            strict=True,
        )
    ]
    return Figure(name, drawing, Table(["ranks", *found[scaling]], rows))
