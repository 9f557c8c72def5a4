"""The report as plain values, as report.json holds it."""

import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parity.base.machine import measured_here
from parity.compare.tensors import Distance
from parity.compare.verdict import Verdict
from parity.report.mismatch import describe_mismatch
from parity.trace.rungs import rungs
from parity.trace.side import Side


def rung_values(verdict: Verdict) -> dict[str, dict[str, Any]]:
    """Return rung -> its worst distance between the frameworks, and the distance of every pair.

    `worst_absolute`, `worst_relative` and `where` are those between the frameworks. `used` is
    the largest share of the allowed difference wherever a distance is judged: each rung of each
    side compared with what the oracle computes from the rung below, and in float64 every pair.
    """
    found = {}
    for rung in rungs():
        pairs = {pair: d[rung] for pair, d in verdict.pairs.items() if rung in d}
        across, judged = Distance(), Distance()
        for (a, b), distance in pairs.items():
            if rung == "replicas" or _crosses(verdict.sides, a, b):
                across.add(distance)
            if distance.used is not None:
                judged.add(distance)
        if not pairs:
            continue
        if across.where is None and len(pairs):
            for distance in pairs.values():
                across.add(distance)
        found[rung] = across.to_json() | {
            "used": judged.to_json()["used"],
            "pairs": [
                {"a": a, "b": b, **distance.to_json()} for (a, b), distance in pairs.items()
            ],
        }
    return found


def verdict_values(
    verdict: Verdict, of_mismatch: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a verdict as plain values.

    Args:
      of_mismatch: returns what else is known of the first mismatch: who is to "blame", the
        "sources" of the tensor, the "disagreement", and what was "last_agreeing".
    """
    values: dict[str, Any] = {
        "verdict": "match" if verdict.matches else "mismatch",
        "dtype": verdict.dtype,
        "steps": verdict.steps,
        "rungs": rung_values(verdict),
    }
    if verdict.cut:
        values["cut"] = verdict.cut
    if not verdict.matches:
        first = verdict.mismatches[0]
        values["within"] = {
            each.place.tensor: {
                **{"step": each.place.step, "elements": [each.count, each.size]},
                **{"shape": list(each.shape), "shares": list(each.shares)},
            }
            for each in reversed(verdict.mismatches)  # of several pairs, the first
            if each.shares
        }
        values["first_mismatch"] = {
            "rung": first.rung,
            "sides": list(first.sides),
            "within": first.within or None,
            **first.place.to_json(),
            "values": first.values,
            "allowed": first.allowed,
            "problem": first.problem or None,
            "elements": [first.count, first.size],
            "growth": verdict.growth.to_json() if verdict.growth is not None else None,
            "nearest_to_loss": None,
            "is_every_gradient": False,
            "confirmed": [],
            "causes_tried": None,
            "explained": [each.to_json() for each in verdict.explanations],
            "rounded_to": None,
            "story": describe_mismatch(first, {}, verdict.dtype),
            **of_mismatch(),
        }
    return values


def sources_of(verdict: Verdict, tensor: str, labels: Iterable[str]) -> dict[str, str]:
    """Return label -> the lines of code that made a tensor, where they are known."""
    found = {label: found_for(tensor, verdict.sources.get(label, {})) for label in labels}
    return {label: source for label, source in found.items() if source}


def made_here(command: str, seconds: float | None) -> dict[str, Any]:
    """Return how and when a report is being made, for the record.

    Args:
      command, seconds: as for `report_values`.
    """
    return {
        "command": command,
        "seconds": seconds,
        "machine": f"{platform.system()} {platform.machine()}",
        **measured_here(),
    }


def _crosses(sides: Mapping[str, Side], a: str, b: str) -> bool:
    return b in sides and sides[a].framework != sides[b].framework


def found_for(tensor: str, sources: Mapping[str, str]) -> str:
    """Return the source of a tensor, or else of what its name begins with; empty without one.

    Args:
      tensor: a name, such as "forward/encoder#1/0": output 0 of the second call.
      sources: such a name, or the beginning of several up to a slash -> its source.
    """
    parts = tensor.split("/")
    for count in range(len(parts), 0, -1):
        name = "/".join(parts[:count])
        for each in (name, name.partition("#")[0]):
            if each in sources:
                return sources[each]
    return ""
