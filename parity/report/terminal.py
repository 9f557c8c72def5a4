"""The report as text for a terminal: tables, how to read them, and the verdict."""

from typing import Any

import click

from parity.base.text import counted, escaped
from parity.report.coverage_table import coverage_table, not_covered_line, verdict_line
from parity.report.fitted_text import tabulated, wrapped
from parity.report.growth import growth_table
from parity.report.mismatch import mismatch_text
from parity.report.staleness import NOTE, staleness_table
from parity.report.tables import FIRST_BOUND, rung_table, training_table, where, wrong_table


def in_order(run: dict[str, Any]) -> str:
    """Say how many tensors of an isolated run's last step are wrong, and how many are right."""
    found = run["isolated"]
    return (
        f"Isolated, {run['dtype']}, step {found['step']}: {len(found['wrong'])} of "
        f"{found['compared']} tensors are wrong, each by itself; the other "
        f"{found['in_order']} are right on all sides."
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
    used = (
        '"used" is the largest share of its bound that any element used; above 100% is a '
        "mismatch."
    )
    lines += [
        f"{label} was {where}: only the steps that all traces hold are compared."
        for label, where in values["runs"][0].get("cut", {}).items()
    ]
    if "pair" in values:
        lines += [
            f"Not compared, because only {label} has them: {', '.join(names)}."
            for label, names in values["only"].items()
        ]
        return [*lines, used, *_declarations(values["runs"][0]["bounds"])]
    isolated = any("isolated" in run for run in values["runs"])
    if isolated:
        lines.append(
            "Isolated: every layer of every side read the oracle's inputs, received the "
            "oracle's gradient, and started each step from the oracle's weights; the column "
            '"one step" is what is judged. What one step hands to the next is not.'
        )
    else:
        lines.append(
            'The column "one step" is judged as well. There the oracle computes forward, loss '
            "and gradient from the weights that the side had before the step, so that one "
            "wrong layer shows in all three; and clipping, optimizer and weight each from what "
            "the side itself computed just before. A tensor may differ by the rounding bound "
            "times its rounding error, which is measured on the oracle."
        )
        lines += [_steps_unmeasured(r) for r in values["runs"] if "rounding_not_measured" in r]
    if not isolated and any(run["dtype"] == "float32" for run in values["runs"]):
        lines.append(
            "In float32 the distances between the sides, and from the oracle's own training, "
            'are reported and not judged; "one step" is, and what must be exact.'
        )
    lines.append(used)
    if any("staleness" in run for run in values["runs"]):
        lines.append(NOTE)
    for run in values["runs"]:
        if "amplified" in run:
            a, b = run["amplified"]["sides"]
            lines.append(
                f"{run['dtype']}: this training amplifies rounding so much that {a} and {b} "
                f"first exceed the bound in {where(run['amplified'])}, although every rung of "
                "every step is right; from there on it is judged like float32."
            )
    for run in values["runs"]:
        lines += [f"{run['dtype']}: {tie['story']}" for tie in run.get("ties", [])]
        known = run.get("known_differences", [])
        lines += [f"{run['dtype']}: {each['story']}." for each in known]
    lines += _unchecked(values["runs"])
    return lines


def _steps_unmeasured(run: dict[str, Any]) -> str:
    """Say in how many steps rounding was not measured, and what their shares mean."""
    return (
        f"{run['dtype']}: in {len(run['rounding_not_measured'])} of {run['steps']} steps "
        "rounding was not measured: no difference would exceed its bound even if rounding "
        "were 2.5 (forward) or 4 times (loss, gradient) smaller than in the steps before. "
        "Their shares are those of the bounds measured before."
    )


def _unchecked(runs: list[dict[str, Any]]) -> list[str]:
    """Return a line for each rung of whole runs that no precision was checked on, and why."""
    reached = {rung for run in runs for rung in run["rungs"]}
    reasons = {
        check: reason
        for run in runs
        for check, reason in run.get("unchecked", {}).items()
        if check not in reached
    }
    return [f"Not checked: {check}: {reason}." for check, reason in reasons.items()]


def _declarations(bounds: list[dict[str, Any]]) -> list[str]:
    """Return who declared the bounds of a pair, and why: a line for each reason."""
    declared: dict[tuple[str, str], list[str]] = {}
    for bound in bounds:
        found = declared.setdefault((bound["declared"], bound["reason"]), [])
        found.append(f"{bound['applies']} {bound['allowed']} ({bound['tensors']})")
    return [
        f"{'Not declared' if who == 'nobody' else f'Declared by {who}'}: "
        f"{', '.join(found)}: {reason.strip().rstrip('.')}."
        for (who, reason), found in declared.items()
    ]


def report_text(values: dict[str, Any], *, story: bool = True) -> str:
    """Return the report for a terminal, 120 columns wide: rungs, speeds, coverage, verdict.

    Args:
      story: whether to describe the first mismatch.
    """
    rungs = tabulated(*rung_table(values), keys=2, part=FIRST_BOUND)
    lines = [headline(values), "", rungs, "", *notes(values), ""]
    if values["trainings"]:
        lines += [tabulated(*training_table(values)), ""]
    stale, columns = staleness_table(values)
    if stale:
        lines += [tabulated(stale, columns, keys=2), ""]
    first = values["first_mismatch"]
    for run in values["runs"]:
        if first and "isolated" in run and run["isolated"]["wrong"]:
            lines += [tabulated(*wrong_table(run)), "", in_order(run), ""]
    cases, columns = coverage_table(values)
    if cases:
        lines += [tabulated(cases, columns), ""]
    if missing := not_covered_line(values):
        lines += [missing, ""]
    if first and story:
        lines += [mismatch_text(first), ""]
    growth = first.get("growth") if first else None
    if growth and len(growth["steps"]) > 1:
        of_rungs = "" if "pair" in values else ", those of rungs from the oracle's own training"
        lines += [
            f"the first wrong step and those after it (relative distances{of_rungs}):",
            tabulated(*growth_table(growth)),
            "",
        ]
    lines.append(verdict_line(values))
    return wrapped(escaped("\n".join(lines), keep="\n"))


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def coloured(text: str, values: dict[str, Any]) -> str:
    """Return a report in which what was not covered is yellow; for `click.echo` alone."""
    missing = wrapped(escaped(not_covered_line(values)))
    return text.replace(missing, click.style(missing, fg="yellow")) if missing else text
