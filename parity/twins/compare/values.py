"""The report of a run as plain values, as report.json holds it."""

import platform
import time
from collections.abc import Sequence
from typing import Any

from parity.compare.coverage import not_covered
from parity.report.mismatch import describe_mismatch
from parity.report.values import made_here, sources_of, verdict_values
from parity.trace.reader import Trace
from parity.trace.rungs import WITNESS
from parity.twins.compare.first_mismatch import (
    blame,
    disagreement_of,
    is_every_gradient,
    last_agreeing,
    nearest_to_loss,
    rounded_to,
)
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.verdict import Outcome, RunVerdict
from parity.twins.spec.spec import Spec


def run_values(verdict: RunVerdict) -> dict[str, Any]:
    """Return one precision's verdict as plain values."""
    values = verdict_values(verdict, lambda: _of_mismatch(verdict))
    for rung, found in values["rungs"].items():
        found["allowed"] = _allowed(verdict, rung)
    if verdict.coverage:
        values["coverage"] = [fact.to_json() for fact in verdict.coverage]
    if verdict.unmeasured:
        values["rounding_not_measured"] = list(verdict.unmeasured)
    if verdict.unchecked:
        values["unchecked"] = verdict.unchecked
    if verdict.staleness:
        values["staleness"] = {
            side: {str(stale): found[stale] for stale in sorted(found)}
            for side, found in verdict.staleness.items()
        }
    if verdict.known:
        values["known_differences"] = [known.to_json() for known in verdict.known.values()]
    if verdict.ties:
        values["ties"] = [tie.to_json() | {"story": str(tie)} for tie in verdict.ties]
    if verdict.amplified is not None:
        values["amplified"] = {
            "sides": list(verdict.amplified.sides),
            **verdict.amplified.place.to_json(),
        }
    return values


def _of_mismatch(verdict: RunVerdict) -> dict[str, Any]:
    """Return what the oracle knows of the first mismatch."""
    found = disagreement_of(verdict)
    return {
        "blame": blame(verdict),
        "sources": _sources(verdict, found.departing),
        "disagreement": found.to_json(),
        "nearest_to_loss": nearest_to_loss(verdict) or None,
        "is_every_gradient": is_every_gradient(verdict),
        "last_agreeing": last_agreeing(verdict) or None,
        "confirmed": [cause.to_json() for cause in verdict.confirmed],
        "causes_tried": verdict.causes_tried,
        "rounded_to": rounded_to(verdict) or None,
        "story": describe_mismatch(verdict.mismatches[0], verdict.oracle, verdict.dtype),
    }


def _sources(verdict: RunVerdict, departing: Sequence[str]) -> dict[str, str]:
    """Return label -> the lines of code that made the first wrong tensor, where known.

    Of the sides that depart from the oracle, or of both where none does. Of several gradients
    it is the one that the backward pass computed first; where all are wrong, the lines are
    those of the strategy.
    """
    first = verdict.mismatches[0]
    if first.check == WITNESS:
        return {}
    if is_every_gradient(verdict):
        several = [n for n in departing or first.sides if verdict.sides[n].replicas > 1]
        return sources_of(verdict, "replicas", several)
    labels, tensor = departing or first.sides, nearest_to_loss(verdict) or first.place.tensor
    of_check = {label: verdict.sources.get(label, {}).get(first.check) for label in labels}
    found = {**sources_of(verdict, tensor, labels), **{n: s for n, s in of_check.items() if s}}
    return _with_strategies(verdict, found)


def _with_strategies(verdict: RunVerdict, found: dict[str, str]) -> dict[str, str]:
    """Return the sources of a mismatch, after the strategy where a single replica is right."""
    sources, departing = dict(found), verdict.departing()
    right = {
        side.framework
        for label, side in verdict.sides.items()
        if side.replicas == 1 and label not in departing
    }
    if verdict.mismatches[0].rung in ("forward", "loss", "gradient"):
        for label in sources.keys() & departing:
            strategy = verdict.sources[label].get("replicas")
            if strategy and verdict.sides[label].framework in right:
                sources[label] = f"{strategy}, with several replicas of {sources[label]}"
    return sources


def report_values(
    outcome: Outcome, preset: str, command: str, seconds: float | None = None
) -> dict[str, Any]:
    """Return the whole report as plain values, as written to report.json.

    Where one run covers several precisions or numbers of replicas, `dtype` and `replicas` are
    lists, and `rungs` belongs to the strictest precision; `runs` has the rungs of every
    precision, and `history` maps each precision to what was seen at every step.

    Args:
      preset: the name of the preset, or a dash.
      command: what the user ran, for the record.
      seconds: how long that took; None where nobody measured it.
    """
    runs = [run_values(verdict) for verdict in outcome.verdicts]
    strictest = next((run for run in runs if run["verdict"] == "mismatch"), runs[0])
    replicas = sorted({side.replicas for side in outcome.sides.values()})
    return {
        "verdict": "match" if outcome.matches else "mismatch",
        "network": outcome.spec.network,
        "preset": preset,
        "dtype": _one_or_all([run["dtype"] for run in runs]),
        "replicas": _one_or_all(replicas),
        "steps": strictest["steps"],
        "sides": {label: side.to_json() for label, side in outcome.sides.items()},
        "versions": {"python": platform.python_version()} | outcome.versions,
        "rungs": strictest["rungs"],
        "throughput": _throughput(outcome.trainings),
        "first_mismatch": strictest.get("first_mismatch"),
        "not_covered": not_covered(each.coverage for each in outcome.verdicts),
        "runs": runs,
        "history": {each.dtype: each.history.to_json() for each in outcome.verdicts},
        "trainings": outcome.trainings,
        "spec": outcome.spec.to_json(),
        **made_here(command, seconds),
    }


def _throughput(trainings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return framework -> median and spread of tokens/s, at its largest number of replicas."""
    found: dict[str, dict[str, Any]] = {}
    for summary in sorted(trainings.values(), key=lambda summary: summary["replicas"]):
        speed = summary["tokens_per_second"]
        if speed:
            found[summary["framework"]] = {
                "median": speed["median"],
                "spread": [speed["low"], speed["high"]],
                "replicas": summary["replicas"],
                "dtype": summary["dtype"],
            }
    return found


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _allowed(verdict: RunVerdict, rung: str) -> dict[str, Any]:
    """Return the bounds of a rung: of free runs, and of one step as a multiple of rounding."""
    free = verdict.free_run_bound(rung)
    return {
        "free_run": None
        if free is None
        else {"relative": free.relative, "floor": free.floor, "step": free.step},
        "one_step": verdict.one_step_bound(rung),
    }


def compare_recorded(
    traces: list[Trace], command: str, after_mismatch: int, cause_seconds: float
) -> dict[str, Any]:
    """Return the report of two recorded trainings as plain values.

    Args, errors: as for `parity.report.assertion.compared`.
    """
    started = time.monotonic()
    verdict = compare_traces(traces, after_mismatch, cause_seconds)
    spec = Spec.from_json(traces[0].header["spec"])
    outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
    for trace in traces:
        outcome.versions |= trace.header["versions"]
    preset = traces[0].header.get("preset", "-")
    return report_values(outcome, preset, command, time.monotonic() - started)
