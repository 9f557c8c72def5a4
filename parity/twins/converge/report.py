"""A comparison of whole trainings as text, and as a page that opens offline."""

from collections.abc import Callable, Mapping
from typing import Any

from parity.report.charts import DASHES
from parity.report.frameworks import short_of
from parity.report.page import Figure, colour, render
from parity.report.svg import Line, axis_of, line_chart
from parity.report.table import Column, Table, table_of, wrapped
from parity.twins.spec.strategies import StrategySettings

_HUGE = 1e9  # as of a training that diverges; it is written with an exponent


def side_title(side: str) -> str:
    """Return the name of a side or a peer as people write it, such as "TF asynchronous"."""
    framework, *strategy = side.split()
    return " ".join([short_of(framework), *strategy])


def converge_text(values: Mapping[str, Any]) -> str:
    """Return the comparison as tables for a terminal, the verdict last."""
    results, tests = results_table(values), tests_table(values)
    first = [verdict_text(values), ""] if values["verdict"] == "not shown" else []
    lines = [*first, summary_line(values), "", results.text(), "", tests.text(), ""]
    lines += [test_note(values), *tests.legend()]
    published = published_line(values)
    if published:
        lines.append(published)
    reused = sum(s["reused"] for runs in values["runs"].values() for s in runs.values())
    if reused:
        lines.append(f"{reused} trainings were already in --out, of the same text and code")
    return wrapped("\n".join([*lines, f"verdict: {verdict_text(values)}"]), "  ")


def verdict_text(values: Mapping[str, Any]) -> str:
    """Return the verdict in words; of what is not shown, how many seeds would show it."""
    if values["verdict"] is None:
        return "none, for no two sides are meant to train in the same way"
    if values["verdict"] != "not shown":
        return str(values["verdict"])
    seeds, needed = len(next(iter(values["runs"].values()))), seeds_to_show(values)
    if needed is None:
        return "not shown: the sides differ, or vary, too much for the margin"
    return f"not shown by {seeds} seeds; {needed:,} would show it if the sides do not differ"


def seeds_to_show(values: Mapping[str, Any]) -> int | None:
    """Return how many seeds would show what is not shown; None if more seeds are no help."""
    seeds = len(next(iter(values["runs"].values())))
    needed = [
        pair["seeds_needed"] or 0
        for each in values["quantities"].values()
        for pair in each["pairs"]
        if pair["same_training"] and not pair["shown"]
    ]
    return max(needed) if needed and min(needed) > seeds else None


def summary_line(values: Mapping[str, Any]) -> str:
    """Return in a line what was trained."""
    seeds = list(next(iter(values["runs"].values())))
    training = values["spec"]["training"]
    text = values["data"] or "the built-in text"
    line = (
        f"{values['network']} {values['preset']} on {text}: {training['epochs']} epochs, "
        f"{values['steps']:,} steps, {training['dtype']}, seeds {seeds[0]} to {seeds[-1]}"
    )
    settings = StrategySettings(**values["settings"]).text
    return f"{line}; {settings}" if settings else line


def results_table(values: Mapping[str, Any]) -> Table:
    """Return the table of results, a row per quantity and side."""

    def shown(read: Callable[[Mapping[str, Any]], float]) -> Callable[[Any], str]:
        return lambda row: _number(read(row[2]), row[1]["form"])

    def of_seed(k: int) -> Callable[[Any], str]:
        return shown(lambda found: found["values"][k])

    columns = [
        Column("result", "", lambda row: row[1]["name"]),
        Column("side", "", lambda row: row[0]),
        Column(
            "mean",
            "Over the seeds; of perplexities the geometric mean, whose ratios are mean ratios.",
            shown(lambda found: found["mean"]),
        ),
        Column(
            "deviation",
            "The standard deviation over the seeds.",
            shown(lambda found: found["deviation"]),
        ),
        *(
            Column(f"seed {seed}", "", of_seed(k))
            for k, seed in enumerate(next(iter(values["runs"].values())))
        ),
    ]
    rows = [
        (side_title(side), each | {"name": name}, found)
        for name, each in values["quantities"].items()
        for side, found in each["sides"].items()
    ]
    return table_of(columns, rows, keys=2)


def _number(value: float, form: str) -> str:
    return form.format(value) if abs(value) < _HUGE else f"{value:.3g}"


def tests_table(values: Mapping[str, Any]) -> Table:
    """Return the table of tests, a row per quantity and pair."""

    def form(row: Any) -> str:
        return "{:+.2%}" if row[1]["relative"] else "{:+.3f}"

    columns = [
        Column("difference of", "", lambda row: row[0]),
        Column(
            "sides",
            "",
            lambda row: f"{side_title(row[2]['a'])} - {side_title(row[2]['b'])}",
        ),
        Column("mean", "", lambda row: form(row).format(row[2]["difference"])),
        Column(
            "90 % interval",
            "Where the mean difference lies with a confidence of 90 %; it is within the margin "
            "exactly if the test passes.",
            lambda row: " to ".join(form(row).format(row[2][end]) for end in ("low", "high")),
        ),
        Column(
            "margin",
            "",
            lambda row: (
                f"± {row[1]['margin']:.2%}" if row[1]["relative"] else f"± {row[1]['margin']:g}"
            ),
        ),
        Column(
            "p",
            "The larger p-value of the two one-sided tests.",
            lambda row: f"{row[2]['p']:.1e}" if row[2]["p"] < 0.001 else f"{row[2]['p']:.3f}",
        ),
        Column("shown", "", lambda row: _judgement(row[2])),
        Column(
            "seeds",
            "How many seeds, with a spread like this, would show the equivalence of sides that "
            f"do not differ, with a probability of {values['power']:.0%}.",
            lambda row: (
                f"{row[2]['seeds_needed']:,}"
                if row[2]["same_training"] and row[2]["seeds_needed"]
                else None
            ),
        ),
    ]
    rows = [
        (name, each, pair)
        for name, each in values["quantities"].items()
        for pair in each["pairs"]
    ]
    return table_of(columns, rows, keys=2)


def _judgement(pair: Mapping[str, Any]) -> str:
    if not pair["same_training"]:
        return "another training"
    return "equivalent" if pair["shown"] else "not shown"


def test_note(values: Mapping[str, Any]) -> str:
    """Return how the table of tests is to be read."""
    return (
        "equivalent: two one-sided t tests, paired by seed, exclude a difference of the margin "
        f"at level {values['level']:g}; not shown: they do not; another training: the sides "
        "are not meant to train in the same way, and the verdict leaves them out."
    )


def published_line(values: Mapping[str, Any]) -> str | None:
    """Return how the published result compares; None where the preset has none."""
    found = values["published"]
    if found is None:
        return None
    line = (
        f"published: test perplexity {found['test_perplexity']:g} on {found['corpus']} "
        f"({found['source']})"
    )
    if found["not_comparable"]:
        return f"{line}; not comparable: {found['not_comparable']}"
    apart = ", ".join(
        f"{side_title(side)} {ratio - 1:+.1%}" for side, ratio in found["ratio"].items()
    )
    return f"{line}; ours: {apart}"


def converge_html(values: Mapping[str, Any]) -> str:
    """Return a page that shows what `parity.twins.converge.converging.converge` returns."""
    curves = _curves(values)
    return render(
        "converge.html.jinja",
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
    epochs = range(1, int(values["spec"]["training"]["epochs"]) + 1)
    lines = []
    for place, (side, runs) in enumerate(values["runs"].items()):
        for k, (seed, summary) in enumerate(runs.items()):
            curve = summary["valid_perplexity"]
            whole = [*curve, *[None] * (len(epochs) - len(curve))]
            name = f"{side_title(side)}, seed {seed}"
            lines.append(Line(name, whole, colour(side, place), DASHES[k % len(DASHES)]))
    up = axis_of((value for line in lines for value in line.values), log=True)
    drawing = line_chart(epochs, lines, up, "validation perplexity", "epoch")
    rows = list(zip(epochs, *(line.values for line in lines), strict=True))
    return Figure("curves", drawing, Table(["epoch", *(line.name for line in lines)], rows))
