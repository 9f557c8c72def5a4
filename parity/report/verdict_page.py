"""A verdict as a page: one file that opens offline, made of the values of report.json alone."""

import datetime
import json
from typing import Any

from parity.base.text import counted, duration
from parity.report.charts import PER, SMALLEST, difference, growth_chart, losses
from parity.report.graph import inside, network
from parity.report.heat_map import heat_map, tensors_of
from parity.report.mismatch import (
    confirmed_lines,
    first_lines,
    growth_sentence,
    mismatch_story,
)
from parity.report.page import render
from parity.report.table import Table
from parity.report.terminal import covered_line, headline, not_covered_line, notes
from parity.report.verdict_tables import (
    coverage_table,
    rung_table,
    tables_of_run,
)

# The figures of a section in the page's order, and how the table of contents calls them.
_FIGURES = {
    "heat": "shares of the bounds",
    "growth": "growth of the difference",
    "loss": "loss",
    "difference": "difference of the losses",
}


def report_html(values: dict[str, Any]) -> str:
    """Return a page that shows a report.

    Args:
      values: what `parity.report.values.report_values` returns.
    """
    # what went wrong first
    runs = sorted(values["runs"], key=lambda run: run["verdict"] == "match")
    sections = [_section(run, values) for run in runs]
    title = f"{values['verdict']}: {headline(values)}"
    return render(
        "report.html.jinja",
        title=title,
        sections=sections,
        smallest=SMALLEST,
        **_verdict(values),
        rungs=rung_table(values),
        notes=notes(values),
        **tables_of_run(values),
        coverage=coverage_table(values, explained=True),
        covered_line=covered_line(values),
        not_covered=not_covered_line(values),
        aligned=Table(["name", "module", *values.get("pair", ())], values.get("aligned", ())),
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
        "first_lines": [line.strip() for line in first_lines(first)[1:]] if first else [],
        "story": mismatch_story(first) if first else "",
        "confirmed": confirmed_lines(first.get("confirmed", [])) if first else [],
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
    guilty = first and (first.get("nearest_to_loss") or marked)
    growth = first.get("growth") if first else None
    several = growth is not None and len(growth["steps"]) > 1
    loss_per = None if "pair" in values else values["spec"]["training"]["loss_per"]
    drawn, pair = bool(history["steps"]), history.get("pair")
    tensors = tensors_of(dtype, history, guilty) if drawn and pair else []
    within = run.get("within", {})
    kinds, batch = values.get("modules", {}), values.get("batch", [])
    has_loss = drawn and bool(history["loss"])
    found = {
        "dtype": dtype,
        "verdict": run["verdict"],
        "steps": run["steps"],
        "span": history["span"],
        "points": len(history["steps"]),
        "has_oracle": "oracle" in history["loss"],
        "loss_per": PER[loss_per] if loss_per else "",
        "pair": pair,
        "tensors": tensors,
        "marked": marked,
        "growth": growth_chart(dtype, growth) if growth and several else None,
        "growth_sentence": growth_sentence(growth),
        "pair_only": "pair" in values,
        "loss": losses(dtype, history, frameworks, loss_per) if has_loss else None,
        "difference": difference(dtype, history) if has_loss and pair else None,
        "heat": heat_map(dtype, history, tensors, marked) if tensors else None,
        "guilty": guilty,
        "network": network(tensors, kinds),
        "within": {name: inside(name, each, kinds, batch) for name, each in within.items()},
    }
    figures = [(each, words) for name, words in _FIGURES.items() if (each := found[name])]
    return found | {"figures": figures, "shown": bool(figures)}


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
