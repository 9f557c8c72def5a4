"""The report of two recorded trainings."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from parity.align.mapping import NameMapping
from parity.compare.by_statistics import CHECKSUMS
from parity.compare.recorded_pair import PairVerdict
from parity.report.values import made_here, verdict_values
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
    found = verdict_values(verdict)
    for rung, values in found["rungs"].items():
        values["allowed"] = [bound.to_json() for bound in verdict.bounds if bound.is_for(rung)]
        mine = [verdict.by_statistics.get(n) for n in verdict.tensors if rung_of(n) == rung]
        if all(by not in (None, CHECKSUMS) for by in mine):  # no distance of elements is known
            values |= {"worst_absolute": None, "worst_relative": None}
    found["bounds"] = [bound.to_json() for bound in verdict.bounds]
    if "first_mismatch" in found:
        first, wrong = verdict.mismatches[0], len(verdict.mismatches)
        found["first_mismatch"]["blame"] = (
            f"{first.sides[1]} differs from {first.sides[0]} in {first.place.tensor}, step "
            f"{first.place.step}, of {first.within}; all its ranks must hold the same"
            if first.within
            else f"{wrong} of the step's {len(verdict.tensors)} tensors differ by more than is "
            f"allowed; {_NO_ORACLE}"
        )
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


def _kinds(trace: Trace) -> dict[str, str]:
    """Return the kinds of modules by name, where a watch recorded them."""
    modules = trace.header.get("facts", {}).get("modules")  # a Recorder's facts are its user's
    known = modules if isinstance(modules, list) else []
    return {str(m.get("name")): str(m.get("kind")) for m in known if isinstance(m, dict)}
