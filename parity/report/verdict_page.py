"""A verdict as a page: one file that opens offline, made of the values of report.json alone."""

import datetime
import json
from typing import Any

from parity.base.text import counted, duration
from parity.report.charts import (
    PER,
    SMALLEST,
    difference,
    losses,
    most_replicas,
    replicas,
    throughput,
)
from parity.report.columns import meanings
from parity.report.coverage_table import (
    case_meanings,
    coverage_table,
    covered_line,
    not_covered_line,
)
from parity.report.growth import growth_sentence
from parity.report.growth_chart import growth_chart
from parity.report.heat_map import heat_map
from parity.report.mismatch import LOOKS_LIKE, cause_lines, confirmed_lines, mismatch_story
from parity.report.page import Figure, render
from parity.report.staleness import staleness_table
from parity.report.staleness_figure import staleness_figure
from parity.report.table import Table
from parity.report.tables import rung_table, training_table, wrong_table
from parity.report.terminal import headline, in_order, notes

# The figures of a section in the page's order, and how the table of contents calls them.
_FIGURES = {
    "growth": "growth of the difference",
    "loss": "loss",
    "difference": "difference of the losses",
    "heat": "shares of the bounds",
    "replicas": "loss by replica",
}


def report_html(values: dict[str, Any]) -> str:
    """Return a page that shows a report.

    Args:
      values: what `parity.report.values.report_values` returns.
    """
    # what went wrong first
    runs = sorted(values["runs"], key=lambda run: run["verdict"] == "match")
    sections = [_section(run, values) for run in runs]
    figures = [figure for section in sections for figure, _ in section["figures"]]
    speeds, stale = _speeds(values), staleness_figure(values)
    title = f"{values['verdict']}: {headline(values)}"
    return render(
        "report.html.jinja",
        [*figures, *(each for each in (speeds, stale) if each)],
        title=title,
        sections=sections,
        smallest=SMALLEST,
        speeds=speeds,
        staleness=stale,
        **_verdict(values),
        **_tables(values),
        **_coverage(values),
        **_environment(values),
    )


def _verdict(values: dict[str, Any]) -> dict[str, Any]:
    """Return what the head of the page shows."""
    first = values["first_mismatch"]
    return {
        "verdict": values["verdict"],
        "headline": headline(values),
        "precisions": ", ".join(f"{run['dtype']} {run['verdict']}" for run in values["runs"]),
        "margins": [line for run in values["runs"] if (line := _margin(run))],
        "first": first,
        "story": mismatch_story(first) if first else "",
        "confirmed": confirmed_lines(first.get("confirmed", [])) if first else [],
        "looks_like": LOOKS_LIKE,
        "causes": cause_lines(first["likely_causes"]) if first else [],
    }


def _margin(run: dict[str, Any]) -> str:
    """Say how close a run that matches came to a mismatch."""
    used = [(rung["used"], name) for name, rung in run["rungs"].items() if rung["used"]]
    if run["verdict"] != "match" or not used:
        return ""
    most, name = max(used)
    return (
        f"{run['dtype']}: no difference exceeds {most:.1%} of what is allowed; the largest "
        f"share is used in rung {name}."
    )


def _section(run: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return what the section of one precision shows; a figure is None where it has no data."""
    dtype, history = run["dtype"], values["history"][run["dtype"]]
    frameworks = {label: side["framework"] for label, side in values["sides"].items()}
    first = run.get("first_mismatch")
    relative = history.get("relative", {})  # none where no two sides are compared
    marked = first["tensor"] if first and first["tensor"] in relative else None
    growth = first.get("growth") if first else None
    several = growth is not None and len(growth["steps"]) > 1
    loss_per = None if "pair" in values else values["spec"]["training"]["loss_per"]
    drawn, pair = bool(history["steps"]), history.get("pair")
    has_loss = drawn and bool(history["loss"])
    has_shares = drawn and bool(history["replica_loss"])
    found = {
        "dtype": dtype,
        "verdict": run["verdict"],
        "steps": run["steps"],
        "span": history["span"],
        "points": len(history["steps"]),
        "has_oracle": "oracle" in history["loss"],
        "loss_per": PER[loss_per] if loss_per else "",
        "pair": pair,
        "tensors": len(relative),
        "marked": marked,
        "replica_count": most_replicas(history) if has_shares else 0,
        "growth": growth_chart(dtype, growth) if growth and several else None,
        "growth_sentence": growth_sentence(growth),
        "pair_only": "pair" in values,
        "loss": losses(dtype, history, frameworks, loss_per) if has_loss else None,
        "difference": difference(dtype, history) if has_loss and pair else None,
        "heat": heat_map(dtype, history, marked) if drawn and pair else None,
        "replicas": replicas(dtype, history, frameworks, loss_per) if has_shares else None,
        **_wrong(run),
    }
    figures = [(each, words) for name, words in _FIGURES.items() if (each := found[name])]
    return found | {"figures": figures, "shown": bool(figures or found["wrong"])}


def _wrong(run: dict[str, Any]) -> dict[str, Any]:
    """Return what an isolated run found wrong, if anything."""
    if "isolated" not in run or not run["isolated"]["wrong"]:
        return {"wrong": None}
    rows, headers = wrong_table(run)
    return {
        "wrong": Table(headers, rows),
        "wrong_columns": meanings(headers),
        "in_order": in_order(run),
    }


def _speeds(values: dict[str, Any]) -> Figure | None:
    timed = {
        label: summary
        for label, summary in values["trainings"].items()
        if summary["tokens_per_second"]
    }
    return throughput(timed, values["sides"]) if timed else None


def _tables(values: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of rungs and of trainings, with what their columns hold."""
    rung_rows, rung_headers = rung_table(values)
    found: dict[str, Any] = {
        "rungs": Table(rung_headers, rung_rows),
        "rung_columns": meanings(rung_headers),
        "notes": notes(values),
        "trainings": None,
    }
    if values["trainings"]:
        rows, headers = training_table(values)
        found |= {"trainings": Table(headers, rows), "training_columns": meanings(headers)}
    rows, headers = staleness_table(values)
    if rows:
        found |= {"stale": Table(headers, rows), "stale_columns": meanings(headers)}
    return found


def _coverage(values: dict[str, Any]) -> dict[str, Any]:
    """Return the table of what the run covered, if it has one, and what it did not cover."""
    rows, headers = coverage_table(values)
    explained = case_meanings(values)
    return {
        "coverage": Table([*headers, "meaning"], [[*row, explained[row[0]]] for row in rows])
        if rows
        else None,
        "covered_line": covered_line(values),
        "not_covered": not_covered_line(values),
    }


def _environment(values: dict[str, Any]) -> dict[str, Any]:
    """Return what ran, when, and on what."""
    date = datetime.datetime.fromisoformat(values["date"])
    processor = f"{values['processor']}, {counted(values['cores'], 'core')}"
    took = [f"took {duration(values['seconds'])}"] if values["seconds"] is not None else []
    return {
        "facts": [f"{date:%Y-%m-%d %H:%M} UTC", *took, processor],
        "command": values["command"],
        "machine": f"{values['machine']}, {processor}",
        "versions": values["versions"],
        "spec_title": "what both sides recorded of the run" if "pair" in values else "spec",
        "spec": json.dumps(values["spec"], indent=1, ensure_ascii=False),
    }
