"""The report of a run as plain values, as report.json holds it."""

import platform
import time
from typing import Any

from parity.compare.coverage import not_covered
from parity.report.values import made_here, verdict_values
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.verdict import Outcome, RunVerdict
from parity.twins.spec.spec import Spec


def run_values(verdict: RunVerdict) -> dict[str, Any]:
    """Return one precision's verdict as plain values."""
    values = verdict_values(verdict)
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
    if not verdict.matches:
        confirmed = [cause.to_json() for cause in verdict.confirmed]
        values["first_mismatch"] |= {
            "confirmed": confirmed,
            "cause_sought": verdict.cause_sought,
        }
        values["first_mismatch"]["sources"] = _with_strategies(
            verdict, values["first_mismatch"]
        )
    return values


def _with_strategies(verdict: RunVerdict, first: dict[str, Any]) -> dict[str, str]:
    """Return the sources of a mismatch, after the strategy where a single replica is right."""
    sources, departing = dict(first["sources"]), verdict.departing()
    right = {
        side.framework
        for label, side in verdict.sides.items()
        if side.replicas == 1 and label not in departing
    }
    if first["rung"] in ("forward", "loss", "gradient"):
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
