"""The page of a comparison of whole trainings, which opens offline."""

from collections.abc import Mapping
from typing import Any

from parity.report.page import Figure, colour, empty_figure, escape_html, render
from parity.report.table import Table
from parity.twins.converge.terminal import (
    published_line,
    results_table,
    seeds_to_show,
    side_title,
    summary_line,
    test_note,
    tests_table,
    verdict_text,
)

_DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot")


def converge_html(values: Mapping[str, Any]) -> str:
    """Return a page that shows what `parity.twins.converge.converging.converge` returns."""
    curves = _curves(values)
    return render(
        "converge.html.jinja",
        [curves],
        title=f"Convergence: {verdict_text(values)}",
        verdict=verdict_text(values),
        tone=_tone(values),
        summary=summary_line(values),
        curves=curves,
        tests=tests_table(values),
        results=results_table(values),
        note=test_note(values),
        published=published_line(values),
        command=values["command"],
        machine=f"{values['processor']}, {values['cores']} cores; {values['date']}",
        versions=values["versions"],
    )


def _tone(values: Mapping[str, Any]) -> str:
    """Return the class of the page's head: red only where more seeds are no help."""
    if values["verdict"] == "not shown":
        return "mismatch" if seeds_to_show(values) is None else "unchecked"
    return "match" if values["verdict"] else ""


def _curves(values: Mapping[str, Any]) -> Figure:
    """Draw the validation perplexity after each epoch, a line for each side and seed."""
    drawing, rows = empty_figure("validation perplexity", [1, _epochs(values)]), []
    for place, (side, runs) in enumerate(values["runs"].items()):
        for k, (seed, summary) in enumerate(runs.items()):
            curve = summary["valid_perplexity"]
            epochs = list(range(1, len(curve) + 1))
            drawing.add_scatter(
                x=epochs,
                y=curve,
                name=escape_html(f"{side_title(side)}, seed {seed}"),
                mode="lines+markers" if len(curve) < 2 else "lines",
                line={"width": 2, "color": colour(side, place), "dash": _DASHES[k % 6]},
                hovertemplate="%{y:.3f}",
            )
            rows += [
                (side_title(side), seed, *pair) for pair in zip(epochs, curve, strict=True)
            ]
    drawing.update_xaxes(title={"text": "epoch"})
    drawing.update_yaxes(type="log")
    drawing.update_layout(height=420)
    return Figure("curves", drawing, Table(["side", "seed", "epoch", "perplexity"], rows))


def _epochs(values: Mapping[str, Any]) -> int:
    return int(values["spec"]["training"]["epochs"])
