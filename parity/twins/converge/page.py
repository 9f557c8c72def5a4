"""The page of a comparison of whole trainings, which opens offline."""

from collections.abc import Mapping
from typing import Any

from parity.report.page import Figure, colour, empty_figure, escape_html, render
from parity.report.table import Table
from parity.twins.converge.terminal import (
    published_line,
    results_table,
    side_title,
    summary_line,
    test_note,
    tests_table,
    verdict_text,
)

_DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot")
_COLUMNS = {
    "mean": "Over the seeds; of perplexities the geometric mean, whose ratios are mean ratios.",
    "deviation": "The standard deviation over the seeds.",
    "90 % interval": "Where the mean difference lies with a confidence of 90 %; it is within "
    "the margin exactly if the test passes.",
    "seeds": "How many seeds, with this spread, would show the equivalence of sides that "
    "do not differ on average, with a probability of 80 %.",
    "p": "The larger p-value of the two one-sided tests.",
}


def converge_html(values: Mapping[str, Any]) -> str:
    """Return a page that shows what `parity.twins.converge.converging.converge` returns."""
    rows, headers = results_table(values)
    tests, columns = tests_table(values)
    curves = _curves(values)
    return render(
        "converge.html.jinja",
        [curves],
        title=f"Convergence: {verdict_text(values)}",
        verdict=verdict_text(values),
        summary=summary_line(values),
        curves=curves,
        tests=Table(columns, tests),
        results=Table(headers, rows),
        meanings=_COLUMNS,
        note=test_note(values).splitlines()[0],
        published=published_line(values),
        command=values["command"],
        machine=f"{values['processor']}, {values['cores']} cores; {values['date']}",
        versions=values["versions"],
    )


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
