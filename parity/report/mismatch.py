"""The first mismatch in words: where it is, which side departs, what may be the cause."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.compare.disagreement import ALL_ALIKE
from parity.compare.signatures import Cause, likely_causes, signature
from parity.compare.tensors import ORACLE, Mismatch
from parity.compare.verdict import Verdict
from parity.report.growth import growth_sentence

# What the report calls the oracle's values where it may print two of them.
_FREE_RUN = "oracle, free run"

# What the percentage of a likely cause means, where it is printed.
LOOKS_LIKE = (
    "No cause is confirmed. The mismatch looks like these mistakes did when they were planted "
    "on purpose (`parity faults --show NAME` shows one). The percentage is the share of the "
    "signature that agrees: the first wrong tensor, how its values relate to the right ones, "
    "where, how many and how much they are wrong, and which other tensors are wrong:"
)

_MOST_CAUSES = 3  # the number of causes of one topic that are described in full


def describe_mismatch(
    mismatch: Mismatch, oracle: Mapping[str, Mapping[str, np.ndarray]], dtype: str
) -> str:
    """Describe a mismatch in full: where it is, how large, and the values there.

    Args:
      oracle: label -> what the oracle, training by itself, expects of that side in that step.
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
    values = {_FREE_RUN if side == ORACLE else side: v for side, v in mismatch.values.items()}
    expected = oracle.get(a, {}).get(place.tensor)
    if expected is not None and _FREE_RUN not in values:
        values[_FREE_RUN] = float(np.asarray(expected)[place.index])
    lines.append(f"  farthest beyond the bound at [{', '.join(map(str, place.index))}]")
    width = max(map(len, values))
    lines += [f"    {side:<{width}}  {value!r}" for side, value in values.items()]
    x, y = mismatch.values.values()
    difference = abs(x - y)
    ulps = difference / float(np.spacing(np.dtype(dtype).type(max(abs(x), abs(y)))))
    lines.append(
        f"  difference {difference:.3g}, {ulps:.3g} units in the last place of {dtype}; "
        f"allowed {mismatch.allowed:.3g}"
    )
    return "\n".join(lines)


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
    """Return the faults of the catalogue that resemble the first mismatch, likeliest first.

    None where all sides depart from the oracle alike: each fault is a mistake of one side.
    """
    if verdict.disagreement is not None and verdict.disagreement.kind == ALL_ALIKE:
        return []
    best: dict[str, Cause] = {}
    for evidence in verdict.evidence.values():
        for cause in likely_causes(
            signature(evidence), evidence.network, strategy=evidence.strategy
        ):
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
    sentence = growth_sentence(first.get("growth"))
    if sentence:
        lines.append(f"  {sentence}")
    return "\n".join(lines)


def mismatch_text(first: dict[str, Any]) -> str:
    """Return the text about the first mismatch, given as plain values."""
    return "\n".join([mismatch_story(first), *(f"  {line}" for line in cause_text(first))])


def cause_text(first: dict[str, Any]) -> list[str]:
    """Return what is known of the cause: the confirmed one, or what the mismatch looks like."""
    if first.get("confirmed"):
        return confirmed_lines(first["confirmed"])
    lines = cause_lines(first["likely_causes"])
    return [LOOKS_LIKE, *(f"  {line}" for line in lines)] if lines else []


def confirmed_lines(confirmed: list[dict[str, Any]]) -> list[str]:
    """Return a line for the confirmed causes of each side, or of several sides alike."""
    by_sides: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cause in confirmed:
        by_sides.setdefault(tuple(cause["sides"]), []).append(cause)
    lines = []
    for sides, causes in by_sides.items():
        mistakes = ", or with ".join(cause["sentence"] for cause in causes)
        worst = max(cause["distance"] for cause in causes)
        exactly = f"to {worst:.0e}" if worst else "exactly"
        line = (
            f"confirmed: with {mistakes}, the oracle reproduces {' and '.join(sides)} {exactly}"
        )
        lines.append(line + ("; this step cannot tell these apart" if len(causes) > 1 else ""))
    return lines


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
