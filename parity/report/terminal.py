"""The report as text for a terminal: tables, how to read them, and the verdict."""

from typing import Any

import click

from parity.base.text import counted, escaped, some_of
from parity.compare.declared_bounds import MEASURED, NOBODY
from parity.compare.growth import FREE_RUN
from parity.report.mismatch import first_lines, mismatch_text
from parity.report.table import wrapped
from parity.report.verdict_tables import (
    GROWTH,
    case_meanings,
    coverage_table,
    growth_table,
    part_of_run,
    rung_table,
    tables_of_run,
)

USED = (
    '"used" is the largest share of its bound that any element used; above 100% is a mismatch.'
)


def headline(values: dict[str, Any]) -> str:
    """Return what was compared, in a few words."""
    if "pair" in values:
        a, b = values["pair"]
        counts = counted(values["steps"], "step"), counted(values["tensors"], "tensor")
        return ", ".join((f"{a} and {b}", *counts))
    return (
        f"{values['network']}, preset {values['preset']}, "
        f"{counted(values['steps'], 'training step')}, "
        f"replicas sharing each batch: {_listed(values['replicas'])}"
    )


def notes(values: dict[str, Any]) -> list[str]:
    """Return how to read the table of rungs, and what is special about this run."""
    lines = [
        "A distance is the largest |a - b| in a tensor, divided by the largest magnitude in "
        'that tensor; only the column "absolute" is |a - b| itself.',
        "An element may differ by the element bound times its own magnitude, plus the tensor "
        "bound times the largest magnitude in its tensor, plus the step bound times the "
        "largest magnitude in all tensors of its kind at that step.",
    ]
    lines += [
        f"{label} was {where}: only the steps that all traces hold are compared."
        for label, where in values["runs"][0].get("cut", {}).items()
    ]
    if "pair" in values:
        lines.append(USED)
        lines += [
            f"Not compared, because only {label} has them: {', '.join(names)}."
            for label, names in values["only"].items()
        ]
        by: dict[str, list[str]] = {}
        for name, how in values["by_statistics"].items():
            by.setdefault(how, []).append(name)
        lines += [
            f"Judged by {how}, not element by element: {some_of(names)}."
            for how, names in by.items()
        ]
        if names := values["not_judged"]:
            lines.append(f"Not judged, as empty or with bounds of 1 or more: {some_of(names)}.")
        if apart := values["settings_apart"]:
            told = "Settings apart, as `parity doctor` says, that no tensor shows"
            lines.append(f"{told}: {'; '.join(apart)}.")
        return [*lines, *_declarations(values["runs"][0]["bounds"])]
    return [*lines, *part_of_run("notes", values)]


def _declarations(bounds: list[dict[str, Any]]) -> list[str]:
    """Return who declared the bounds of a pair, and why: a line for each reason."""
    declared: dict[tuple[str, str], list[str]] = {}
    for bound in bounds:
        found = declared.setdefault((bound["declared"], bound["reason"]), [])
        found.append(f"{bound['applies']} {bound['allowed']} ({bound['tensors']})")
    return [
        f"{_who(who, found)}: {', '.join(found)}: {reason.strip().rstrip('.')}."
        for (who, reason), found in declared.items()
    ]


def _who(who: str, found: list[str]) -> str:
    if who == MEASURED:
        return "Measured"
    if who != NOBODY:
        return f"Declared by {who}"
    exact = all(" exact " in each for each in found)
    return "Not declared" if exact else "Not declared, so a guess (`parity bounds` measures)"


def not_covered_line(values: dict[str, Any]) -> str:
    """Return a line that names the cases not covered; empty if there are none."""
    names = values["not_covered"]
    return f"not covered by this run: {', '.join(names)}" if names else ""


def covered_line(values: dict[str, Any]) -> str:
    """Return how many of the cases were covered; empty if there is no coverage."""
    cases = len(case_meanings(values))
    covered = cases - len(values["not_covered"])
    return f"{covered} of {cases} cases covered" if cases else ""


def verdict_line(values: dict[str, Any]) -> str:
    """Return the verdict, and for a match what it does not speak for."""
    lacking = [
        f"{counted(len(names), 'tensor')} of {label} alone"
        for label, names in values.get("only", {}).items()
    ]
    if values["verdict"] != "match":
        because = lacking if not values["first_mismatch"] else []
        return f"verdict: {values['verdict']}{': ' if because else ''}{' and '.join(because)}"
    count = len(values["not_covered"])
    sides = {
        known["side"]
        for run in values["runs"]
        for known in run.get("known_differences", [])
        if known["first"] is not None
    }
    if judged := values.get("by_statistics"):
        lacking.append(f"{counted(len(judged), 'tensor')} judged by statistics")
    if names := values.get("not_judged"):
        lacking.append(f"{counted(len(names), 'tensor')} not judged")
    if apart := values.get("settings_apart"):
        lacking.append(f"{counted(len(apart), 'setting')} apart")
    notes = [*lacking, *([f"{count} case{'s' * (count > 1)} not covered"] if count else [])]
    notes += [f"a known difference of {side}" for side in sorted(sides)]
    notes += [
        f"{label} {where}"
        for run in values["runs"]
        for label, where in run.get("cut", {}).items()
    ]
    return f"verdict: match{', with ' if notes else ''}{' and '.join(notes)}"


def report_text(values: dict[str, Any]) -> str:
    """Return the report for a terminal: of a mismatch first what, where, who and why."""
    first = values["first_mismatch"]
    opening = _opening(values)
    lines = [*opening, ""] if opening else []
    lines += [headline(values), "", *_tables_of_rungs(values)]
    if first:
        lines += [mismatch_text(first), ""]
        lines += _growth_lines(first.get("growth"))
    return wrapped(escaped("\n".join([*lines, verdict_line(values)]), keep="\n"))


def _opening(values: dict[str, Any]) -> list[str]:
    """Return the first lines of a mismatch: the first tensor that differs, or is missing."""
    if values["verdict"] == "match":
        return []
    if first := values["first_mismatch"]:
        return first_lines(first)
    return [
        f"mismatch: {label} alone has {some_of(names)}"
        for label, names in values.get("only", {}).items()
    ]


def _tables_of_rungs(values: dict[str, Any]) -> list[str]:
    """Return the tables of what was compared and trained, with how to read them."""
    lines = [rung_table(values).text(), "", *notes(values), ""]
    for table in (*tables_of_run(values).values(), coverage_table(values)):
        lines += [table.text(), ""] if table.rows else []
    missing = not_covered_line(values)
    return [*lines, missing, ""] if missing else lines


def _growth_lines(growth: dict[str, Any] | None) -> list[str]:
    if not growth or len(growth["steps"]) < 2:
        return []
    table = growth_table(growth)
    free = GROWTH[FREE_RUN] in table.headers
    of_rungs = ", those of rungs from the oracle's own training" if free else ""
    return [
        f"the first wrong step and those after it (relative distances{of_rungs}):",
        table.text(),
        "",
    ]


def coloured(text: str, values: dict[str, Any]) -> str:
    """Return a report in colours, for `click.echo` alone, which leaves them out of a file.

    The first lines of a mismatch are red, the verdict of a match is green, and what was not
    covered is yellow.
    """
    marked = [("\n".join(_opening(values)), "red")]
    marked += [(not_covered_line(values), "yellow")]
    marked += [(verdict_line(values), "green" if values["verdict"] == "match" else "red")]
    for plain, colour in marked:
        shown = wrapped(escaped(plain, keep="\n"))
        if shown:
            text = text.replace(shown, click.style(shown, fg=colour))
    return text


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
