"""The first mismatch in words: where it is, which side departs, what may be the cause."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.base.text import counted, in_series
from parity.compare.growth import GROWS, SHRINKS, STAYS, VANISHES
from parity.compare.tensors import ORACLE, Mismatch, in_words
from parity.trace.rungs import CHECKS

# What the report calls the oracle's values where it may print two of them.
_FREE_RUN = "oracle, free run"

_VERBS = {
    GROWS: "grows",
    STAYS: "stays about the same",
    SHRINKS: "shrinks",
    VANISHES: "vanishes",
}


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


def computed_before(tensor: str, names: Sequence[str]) -> str:
    """Return which of some tensors was computed next before one; empty if none was.

    Args:
      names: theirs, in the order of computation.
    """
    return ["", *names][names.index(tensor)] if tensor in names else ""


def mismatch_story(first: dict[str, Any]) -> str:
    """Return the description of the first mismatch, without its causes."""
    lines = [first["story"], f"  {first['blame']}"]
    if first.get("nearest_to_loss") not in (None, first["tensor"]):
        lines.append(
            "  the backward pass computes gradients from the loss down; the first wrong one is "
            f"{first['nearest_to_loss']}"
        )
    if first.get("rounded_to"):
        lines.append(
            f"  the difference is that of a rounding to {first['rounded_to']}: of "
            f"{first['tensor']}, or of what it is computed from"
        )
    sentence = growth_sentence(first.get("growth"))
    if sentence:
        lines.append(f"  {sentence}")
    return "\n".join(lines)


def mismatch_text(first: dict[str, Any]) -> str:
    """Return the text about the first mismatch, given as plain values."""
    causes = confirmed_lines(first.get("confirmed", []))
    return "\n".join([mismatch_story(first), *(f"  {line}" for line in causes)])


def first_lines(first: dict[str, Any]) -> list[str]:
    """Return what a reader needs first: what differs and where, who departs, and why if known.

    Args:
      first: the first mismatch, of report.json.
    """
    count, size = first["elements"]
    how_much = first["problem"] or f"{count:,} of {size:,} elements"
    if not first["problem"] and size == 1:
        short = {side: f"{value:.8g}" for side, value in first["values"].items()}
        shown = short if len(set(short.values())) > 1 else first["values"]
        how_much = ", ".join(f"{value} in {in_words(side)}" for side, value in shown.items())
    elif not first["problem"] and first["tensor"].startswith("replicas/"):
        which = f"replica {first['index'][0]}" if count == 1 else f"{count} replicas"
        how_much = f"{which} of {size}"
    check = f", check {first['rung']}" if first["rung"] in CHECKS else ""
    of = "" if first["within"] else in_series(first["disagreement"]["sides"])
    lines = [
        f"mismatch{of and f' of {of}'} in {first['tensor']}, step {first['step']}{check}: "
        f"{how_much}",
        f"  who: {first['blame']}",
        *_where_lines(first),
    ]
    if confirmed := first.get("confirmed"):
        lines += [f"  why: {line}" for line in confirmed_lines(confirmed)]
    elif first.get("explained"):
        lines += [f"  why: {each['sentence']}" for each in first["explained"]]
    elif first.get("rounded_to"):
        lines.append(f"  why: the difference is that of a rounding to {first['rounded_to']}")
    elif (tried := first.get("causes_tried")) is not None:
        none = f"none of the {len(tried)} mistakes that the oracle tried reproduces it"
        lines.append(f"  why: unknown: {none if tried else 'the oracle has none to try here'}")
    lines += _settings_lines(first.get("settings", []), first.get("settings_elsewhere", 0))
    if first["rung"] in CHECKS:
        lines.append(
            f"  next: the same command with --checks {first['rung']} checks this alone"
        )
    return lines


def _settings_lines(here: Sequence[Mapping[str, Any]], others: int) -> list[str]:
    """Return a line for each setting that differs where the mismatch is, up to three."""
    lines = []
    for each in here[:3]:
        shown = ", ".join(f"{value} in {side}" for side, value in each["values"].items())
        what = f"{each['what']}: {shown}" if shown else each["what"]
        lines.append(f"  settings: {what}; fix: {each['fix']}")
    if others or here[3:]:
        count = counted(others + len(here), "difference")
        lines.append(f"  next: parity doctor lists {count} in settings and conventions")
    return lines


def _where_lines(first: dict[str, Any]) -> list[str]:
    """Return a line for each source, with the sides whose tensor it made, and what is near."""
    sides: dict[str, list[str]] = {}
    for label, source in first.get("sources", {}).items():
        sides.setdefault(source, []).append(label)
    if first.get("is_every_gradient"):
        return [
            "  where: the gradient of the loss, or a sum of all gradients, such as that over "
            "the replicas, as every gradient is wrong",
            *(
                f"  where the replicas meet: {source}, in {' and '.join(labels)}"
                for source, labels in sides.items()
            ),
        ]
    nearest, agrees = first.get("nearest_to_loss"), first.get("last_agreeing")
    of = "in the backward pass of " if nearest else ""
    lines = [
        f"  where: {of}{source}, in {' and '.join(labels)}" for source, labels in sides.items()
    ]
    if nearest not in (None, first["tensor"]):
        lines.insert(0, f"  begin at: {nearest}, the first wrong on the way back from the loss")
    return [*lines, f"  last right: {agrees}"] if agrees else lines


def growth_sentence(growth: dict[str, Any] | None) -> str:
    """Say how the difference develops; empty where that cannot be said.

    Args:
      growth: what `Growth.to_json` returned, if anything.
    """
    if growth is None:
        return ""
    parts = []
    if growth["trend"] is not None:
        known = [
            (step, value)
            for step, value in zip(growth["steps"], growth["series"], strict=True)
            if value is not None
        ]
        (first, before), (last, after) = known[0], known[-1]
        parts.append(
            f"the difference {_VERBS[growth['trend']]}: {before:.2g} in step {first}, "
            f"{after:.2g} in step {last}"
        )
    if growth["ended"] is not None:
        parts.append(
            f"nothing was measured after step {growth['steps'][-1]}: {growth['ended']}"
        )
    return "; ".join(parts)


def confirmed_lines(confirmed: list[dict[str, Any]]) -> list[str]:
    """Return a line for the confirmed causes of each side, or of several sides alike."""
    alike: dict[tuple[tuple[str, ...], tuple[int, ...]], list[dict[str, Any]]] = {}
    for cause in confirmed:
        alike.setdefault((tuple(cause["sides"]), tuple(cause["steps"])), []).append(cause)
    lines = []
    for (sides, steps), causes in alike.items():
        mistakes = ", or with ".join(cause["sentence"] for cause in causes)
        worst = max(cause["distance"] for cause in causes)
        exactly = f"to {worst:.0e}" if worst else "exactly"
        first, last = steps[0], steps[-1]
        where = f"in every step from {first} to {last}" if first < last else f"in step {first}"
        line = (
            f"confirmed: with {mistakes}, the oracle reproduces {' and '.join(sides)} "
            f"{exactly} {where}"
        )
        lines.append(line + ("; which of these, no step tells" if len(causes) > 1 else ""))
    return lines
