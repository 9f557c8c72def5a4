"""The report of two recorded trainings."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from parity.align.mapping import NameMapping
from parity.align.traps import traps, traps_at
from parity.base.errors import UsageError
from parity.compare.by_statistics import CHECKSUMS
from parity.compare.recorded_pair import PairVerdict
from parity.report.mismatch import computed_before
from parity.report.values import made_here, sources_of, verdict_values
from parity.trace.reader import Trace
from parity.trace.rungs import rung_of

_NO_ORACLE = "there is no oracle for this pair to say which side is right"


def pair_values(
    traces: Sequence[Trace],
    verdict: PairVerdict,
    command: str,
    seconds: float | None = None,
    only: Mapping[str, list[str]] | None = None,
    allow_missing: bool = False,
    mapping: NameMapping | None = None,
) -> dict[str, Any]:
    """Return the report of a pair, in the form of `parity.report.values.report_values`.

    Args:
      traces: the two that were compared.
      command: what the user ran, for the record.
      seconds: how long that took; None where nobody measured it.
      only: label -> the names of tensors that this side alone has.
      allow_missing: whether the two match all the same.
      mapping: what gave both sides' tensors the names that they share.
    """
    sides = list(verdict.sides)
    found = verdict_values(
        verdict, lambda: {**_of_mismatch(verdict), **_settings(traces, verdict)}
    )
    for rung, values in found["rungs"].items():
        values["allowed"] = [bound.to_json() for bound in verdict.bounds if bound.is_for(rung)]
        mine = [verdict.by_statistics.get(n) for n in verdict.tensors if rung_of(n) == rung]
        if all(by not in (None, CHECKSUMS) for by in mine):  # no distance of elements is known
            values |= {"worst_absolute": None, "worst_relative": None}
    found["bounds"] = [bound.to_json() for bound in verdict.bounds]
    versions = {"python": platform.python_version()} | {
        f"{side}: {name}": version
        for side, trace in zip(sides, traces, strict=True)
        for name, version in trace.header["versions"].items()
    }
    if only and not allow_missing:
        found["verdict"] = "mismatch"
    return {
        "verdict": found["verdict"],
        "only": dict(only or {}),
        "aligned": [] if mapping is None else mapping.names(),
        "modules": _kinds(traces[0]),
        "batch": verdict.batch,
        "by_statistics": dict(verdict.by_statistics),
        "not_judged": list(verdict.not_judged),
        "settings_apart": _apart(traces) if found["verdict"] == "match" else [],
        "network": "pair",
        "pair": sides,
        "tensors": len(verdict.tensors),
        "preset": "-",
        "dtype": verdict.dtype,
        "replicas": [],
        "sides": {label: side.to_json() for label, side in verdict.sides.items()},
        "steps": verdict.steps,
        "versions": versions,
        "rungs": found["rungs"],
        "throughput": {},
        "first_mismatch": found.get("first_mismatch"),
        "not_covered": [],
        "runs": [found],
        "history": {verdict.dtype: verdict.history.to_json()},
        "trainings": {},
        "spec": traces[0].header["run"],
        **made_here(command, seconds),
    }


def _of_mismatch(verdict: PairVerdict) -> dict[str, Any]:
    """Return what is known of the first mismatch without an oracle."""
    first, tensor = verdict.mismatches[0], verdict.mismatches[0].place.tensor
    departing = [first.within] if first.within else []
    kind = "replicas of one side" if departing else "only between sides"
    if first.rung == "batch" and not departing:
        kind = "batch"
    blame = (
        f"{len(verdict.mismatches)} of the step's {len(verdict.tensors)} tensors differ by "
        f"more than is allowed; {_NO_ORACLE}"
    )
    if departing:
        blame = (
            f"{first.sides[1]} differs from {first.sides[0]} in {tensor}, step "
            f"{first.place.step}, of {first.within}; all its ranks must hold the same"
        )
    outputs = [name for name in verdict.history.tensors if name.startswith("forward/")]
    return {
        "blame": blame,
        "sources": sources_of(verdict, tensor, departing or first.sides),
        "disagreement": {
            "kind": kind,
            "sides": departing,
            "groups": [[each] for each in departing],
            "right": [label for label in verdict.sides if label not in departing],
            **{"within": None, "apart": None, "from_oracle": {}},
        },
        "last_agreeing": computed_before(tensor, outputs) or None,
    }


def _settings(traces: Sequence[Trace], verdict: PairVerdict) -> dict[str, Any]:
    """Return in which settings the sides differ where the first mismatch is, and elsewhere."""
    first = verdict.mismatches[0]
    if first.within:
        return {}
    try:
        here, others = traps_at(traces, first.place.tensor)
    except UsageError:
        return {}  # not recorded by the watch of a framework
    told = [
        {
            "what": each.what,
            "values": dict(zip(first.sides, each.values, strict=False)),  # some have none
            "fix": each.fix,
        }
        for each in here
    ]
    return {"settings": told, "settings_elsewhere": others}


def _apart(traces: Sequence[Trace]) -> list[str]:
    """Return the settings in which sides differ whose tensors match."""
    try:
        found = [each for each in traps(traces) if len(set(each.values)) > 1]
    except UsageError:
        return []  # not recorded by the watch of a framework
    return [f"{each.what} {' → '.join(each.values)}" for each in found]


def _kinds(trace: Trace) -> dict[str, str]:
    """Return the kinds of modules by name, where a watch recorded them."""
    modules = trace.header.get("facts", {}).get("modules")  # a Recorder's facts are its user's
    known = modules if isinstance(modules, list) else []
    return {str(m.get("name")): str(m.get("kind")) for m in known if isinstance(m, dict)}
