"""The report as text for a terminal: tables, how to read them, and the verdict."""

from typing import Any

import click

from parity.base.text import counted, escaped, some_of
from parity.compare.declared_bounds import MEASURED, NOBODY
from parity.report.mismatch import first_lines, mismatch_text
from parity.report.table import wrapped
from parity.report.verdict_tables import (
    case_meanings,
    coverage_table,
    growth_table,
    rung_table,
    staleness_table,
    training_table,
    where,
)
from parity.trace.rungs import WITNESS

_STALENESS = (
    "In an asynchronous run each step is one update by one replica, and its staleness is the "
    "number of other updates that were applied after the replica had read the weights. The "
    "oracle computes each gradient from the weights that were read, and each update from the "
    "weights just before it."
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


# What the sides and the oracle share, and the tests that stand for it.
WITNESSES = (
    "text",
    "masks",
    "schedule",
    "initial_values",
    "replicas",
    "search",
    "scores",
    "pytorch",
)
UNSEEN = (
    "The oracle does not see a mistake that it shares with the sides: batches, targets and "
    "<eos>, when the state is reset, dropout's masks and scale, the schedule of the learning "
    "rate, initial values, the length penalty. Tests stand for these: tests/test_witness_*.py, "
    f"of {', '.join(WITNESSES)}; docs/witnesses.md says how."
)
_ADDS = "--witness pytorch trains the same steps in PyTorch as well, which does not share most."
_ADDED = (
    "On the rung witness, PyTorch trained the same steps, and shares of these only initial "
    "values, the order of an epoch and which units are dropped."
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
        by: dict[str, list[str]] = {}
        for name, how in values["by_statistics"].items():
            by.setdefault(how, []).append(name)
        lines += [
            f"Judged by {how}, not element by element: {some_of(names)}."
            for how, names in by.items()
        ]
        return [*lines, used, *_declarations(values["runs"][0]["bounds"])]
    lines.append(
        'The column "one step" is judged as well. There the oracle computes forward, loss '
        "and gradient from the weights that the side had before the step, so that one "
        "wrong layer shows in all three; and clipping, optimizer and weight each from what "
        "the side itself computed just before. A tensor may differ by the rounding bound "
        "times its rounding error, which is measured on the oracle."
    )
    lines += [_steps_unmeasured(r) for r in values["runs"] if "rounding_not_measured" in r]
    if any(run["dtype"] == "float32" for run in values["runs"]):
        lines.append(
            "In float32 the distances between the sides, and from the oracle's own training, "
            'are reported and not judged; "one step" is, and what must be exact.'
        )
    lines.append(used)
    if any("staleness" in run for run in values["runs"]):
        lines.append(_STALENESS)
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
    if values["trainings"]:
        lines.append(
            "Trained alone: where untraced, answers and counting were checked, they judge "
            "losses, the later ones by what rounding alone does to them, perplexities, BLEU, "
            "exact answers, checkpoints and the tokens that speeds rest on; losses beyond step "
            "100, but for two at the end, and seconds are reported, not judged."
        )
    witnessed = any(WITNESS in run["rungs"] for run in values["runs"])
    return [*lines, f"{UNSEEN} {_ADDED if witnessed else _ADDS}"]


def _steps_unmeasured(run: dict[str, Any]) -> str:
    """Say in how many steps rounding was not measured, and what their shares mean."""
    return (
        f"{run['dtype']}: in {len(run['rounding_not_measured'])} of {run['steps']} steps "
        "rounding was not measured: no difference would exceed its bound even if rounding "
        "were 2.5 (forward), 6 (attention) or 4 times (loss, gradient) smaller than in the "
        "steps before. "
        "Their shares are those of the bounds measured before."
    )


def _unchecked(runs: list[dict[str, Any]]) -> list[str]:
    """Return a line for each reason for which rungs of whole runs were not checked."""
    reached = {rung for run in runs for rung in run["rungs"]}
    checks: dict[str, dict[str, None]] = {}
    for run in runs:
        for check, reason in run.get("unchecked", {}).items():
            if check not in reached:
                checks.setdefault(reason, {})[check] = None
    return [f"Not checked: {', '.join(names)}: {reason}." for reason, names in checks.items()]


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
    lines = [*first_lines(first), ""] if first else []
    lines += [headline(values), "", *_tables_of_rungs(values)]
    if first:
        lines += [mismatch_text(first), ""]
        lines += _growth_lines(values, first.get("growth"))
    return wrapped(escaped("\n".join([*lines, verdict_line(values)]), keep="\n"))


def _tables_of_rungs(values: dict[str, Any]) -> list[str]:
    """Return the tables of what was compared and trained, with how to read them."""
    lines = [rung_table(values).text(), "", *notes(values), ""]
    for table in (training_table(values), staleness_table(values), coverage_table(values)):
        lines += [table.text(), ""] if table.rows else []
    missing = not_covered_line(values)
    return [*lines, missing, ""] if missing else lines


def _growth_lines(values: dict[str, Any], growth: dict[str, Any] | None) -> list[str]:
    if not growth or len(growth["steps"]) < 2:
        return []
    of_rungs = "" if "pair" in values else ", those of rungs from the oracle's own training"
    return [
        f"the first wrong step and those after it (relative distances{of_rungs}):",
        growth_table(growth).text(),
        "",
    ]


def coloured(text: str, values: dict[str, Any]) -> str:
    """Return a report in colours, for `click.echo` alone, which leaves them out of a file.

    The first lines of a mismatch are red, the verdict of a match is green, and what was not
    covered is yellow.
    """
    first = values["first_mismatch"]
    marked = [("\n".join(first_lines(first)), "red")] if first else []
    marked += [(not_covered_line(values), "yellow")]
    marked += [(verdict_line(values), "green" if values["verdict"] == "match" else "red")]
    for plain, colour in marked:
        shown = wrapped(escaped(plain, keep="\n"))
        if shown:
            text = text.replace(shown, click.style(shown, fg=colour))
    return text


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
