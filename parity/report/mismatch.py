"""The first mismatch in words: where it is, which side departs, what may be the cause."""

from typing import Any

import numpy as np

from parity.compare.signatures import Cause, likely_causes, signature
from parity.compare.tensors import Mismatch
from parity.compare.verdict import ORACLE, Verdict

_MOST_CAUSES = 3  # the number of causes of one topic that are described in full


def describe_mismatch(mismatch: Mismatch, oracle: Any, dtype: str) -> str:
    """Describe a mismatch in full: where it is, how large, and the values there.

    Args:
      oracle: the oracle's tensors of that step.
      dtype: the precision of the sides, for the unit in the last place.
    """
    a, b = mismatch.sides
    place = mismatch.place
    lines = [
        f"first mismatch, on the rung {mismatch.rung}: {a} and {b} differ in {place.tensor}, "
        f"step {place.step}"
    ]
    if mismatch.problem:
        return f"{lines[0]}: {mismatch.problem}"
    share = mismatch.count / mismatch.size
    lines[0] += f": {mismatch.count:,} of {mismatch.size:,} elements ({share:.1%})"
    values = dict(mismatch.values)
    if place.tensor in oracle and ORACLE not in values:
        expected = np.asarray(oracle[place.tensor])
        if len(place.index) == expected.ndim:
            values[ORACLE] = float(expected[place.index])
    lines.append(f"  farthest beyond the bound at [{', '.join(map(str, place.index))}]")
    width = max(map(len, values))
    lines += [f"    {side:<{width}}  {value!r}" for side, value in values.items()]
    difference = abs(values[a] - values[b])
    ulps = difference / float(
        np.spacing(np.dtype(dtype).type(max(abs(values[a]), abs(values[b]))))
    )
    lines.append(
        f"  difference {difference:.3g}, {ulps:.3g} units in the last place of {dtype}; "
        f"allowed {mismatch.allowed:.3g}"
    )
    return "\n".join(lines)


def blame(verdict: Verdict) -> str:
    """Say which side departs from the oracle in the first tensor that differs."""
    if verdict.matches:
        return ""
    if verdict.mismatches[0].note:
        return verdict.mismatches[0].note
    departing = verdict.departing()
    if departing:
        return f"in this tensor, what differs from the oracle is {_and(departing)}"
    if verdict.mismatches[0].rung == "batch":
        return "the sides did not read the same batch; the oracle has no text of its own"
    return "in this tensor, neither side differs from the oracle by more than is allowed"


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def nearest_to_loss(verdict: Verdict) -> str:
    """Return which wrong gradient the backward pass computes first; empty without any.

    Gradients are computed from the loss down, so the first mismatch, in the lowest layer, may
    be the result of any wrong gradient above it.
    """
    if verdict.matches or not verdict.mismatches[0].place.tensor.startswith("gradient/"):
        return ""
    wrong = [
        name
        for evidence in verdict.evidence.values()
        for name in evidence.wrong
        if name.startswith("gradient/")
    ]
    return wrong[-1] if wrong else ""


def likely(verdict: Verdict) -> list[Cause]:
    """Return the faults of the catalogue that resemble the first mismatch, likeliest first."""
    best: dict[str, Cause] = {}
    for evidence in verdict.evidence.values():
        for cause in likely_causes(signature(evidence), evidence.network):
            if cause.fault not in best or cause.fit > best[cause.fault].fit:
                best[cause.fault] = cause
    return sorted(best.values(), key=lambda cause: -cause.fit)


def mismatch_story(first: dict[str, Any]) -> str:
    """Return the description of the first mismatch, without its likely causes."""
    lines = [first["story"], f"  {first['blame']}"]
    if first.get("nearest_to_loss") not in (None, first["tensor"]):
        lines.append(
            "  the backward pass computes gradients from the loss down; the first wrong one is "
            f"{first['nearest_to_loss']}"
        )
    return "\n".join(lines)


def mismatch_text(first: dict[str, Any]) -> str:
    """Return the text about the first mismatch, given as plain values."""
    return "\n".join([mismatch_story(first), *_causes(first["likely_causes"])])


def cause_lines(causes: list[dict[str, Any]]) -> list[str]:
    """Return a line for each topic of the likely causes, likeliest first."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for cause in causes:
        topics.setdefault(cause["topic"], []).append(cause)
    lines = []
    for topic, mine in topics.items():
        shown = [f"{cause['cause']} ({cause['fault']})" for cause in mine[:_MOST_CAUSES]]
        if len(mine) > len(shown):
            others = ", ".join(cause["fault"] for cause in mine[len(shown) :])
            shown.append(f"or, as likely, {others}")
        lines.append(f"{topic} ({mine[0]['fit']:.0%} alike): {'; '.join(shown)}")
    return lines


def _causes(causes: list[dict[str, Any]]) -> list[str]:
    lines = [f"    {line}" for line in cause_lines(causes)]
    return (
        [
            "  likely causes: known mistakes that, planted on purpose, looked like this "
            "(`parity faults --show NAME` shows one):",
            *lines,
        ]
        if lines
        else []
    )
