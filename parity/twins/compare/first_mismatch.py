"""What the oracle knows of the first mismatch: who departs, and where it may come from."""

from collections.abc import Mapping, Sequence

from parity.base.text import in_series
from parity.compare.relation import rounded
from parity.report.frameworks import title_of
from parity.report.mismatch import computed_before
from parity.trace.rungs import CHECKS
from parity.trace.side import Side
from parity.twins.compare.disagreement import (
    ALL_ALIKE,
    BATCH,
    BETWEEN_SIDES,
    CHECK,
    DIFFERENTLY,
    ONE_SIDE,
    REPLICAS,
    SEVERAL,
    SOME_ALIKE,
    Disagreement,
    checked_sides,
    find_disagreement,
)
from parity.twins.compare.verdict import RunVerdict

_SHARED = (
    "suspect the oracle, or a mistake that they share (the text, the batches, the schedule, "
    "the masks, the initial values, ...); docs/witnesses.md lists what they share"
)


def disagreement_of(verdict: RunVerdict) -> Disagreement:
    """Return who differs from whom, without distances if the comparison measured none."""
    if verdict.disagreement is not None:
        return verdict.disagreement
    return find_disagreement(verdict.mismatches, verdict.sides, verdict.dtype)


def blame(verdict: RunVerdict) -> str:
    """Say which sides differ from the oracle in the first wrong tensor; empty for a match."""
    if verdict.matches:
        return ""
    first = verdict.mismatches[0]
    if first.note:
        named = checked_sides(verdict.mismatches, verdict.sides) if first.check else []
        others = [side for side in named if side not in (*first.sides, first.within)]
        # the oracle takes no part where each side is compared with itself
        shared = _SHARED.replace("the oracle, or ", "") if first.within else _SHARED
        also = f"; the same check fails for {in_series(others)}: {shared}" if others else ""
        return first.note + also
    return disagreement_text(disagreement_of(verdict), verdict.sides)


def disagreement_text(found: Disagreement, sides: Mapping[str, Side]) -> str:
    """Say which sides differ from the oracle, whether they agree, and what to suspect.

    Args:
      sides: label -> side, of all sides.
    """
    if found.kind == BATCH:
        return "the sides did not read the same batch; the oracle has no text of its own"
    if found.kind == BETWEEN_SIDES:
        return (
            "no side differs from the oracle by more than is allowed; only the sides differ "
            f"from each other{_by([found.apart])}"
        )
    if found.kind == CHECK and max(map(len, found.groups), default=0) > 1:
        shared = "" if found.right else f": {_SHARED}"
        by = _by([*found.from_oracle.values()])
        return f"{in_series(found.departing)} differ from the oracle{by}{shared}"
    if found.kind == CHECK:
        return f"this check is about {in_series(found.departing)}"
    if found.kind == REPLICAS:
        return f"the replicas of {found.departing[0]} no longer hold the same values"
    if found.kind == SEVERAL:
        return f"{in_series(found.departing)} differ from the oracle"
    if found.kind == DIFFERENTLY:
        return _differently(found)
    (group,) = found.groups
    distances = [found.from_oracle.get(side) for side in group]
    if found.kind == ONE_SIDE:
        agree = f"; {in_series(found.right)} agree{'s' if len(found.right) == 1 else ''}"
        alone = f"only {group[0]} differs from the oracle{_by(distances)}"
        return alone + (agree if found.right else "")
    differ, agree = f"differ from the oracle{_by(distances)}", f"agree{_to(found.within)}"
    if found.kind == ALL_ALIKE:
        both = "both" if len(group) == 2 else f"all {len(group)}"
        return f"the sides {agree}, and {both} {differ}: {_SHARED}"
    if found.kind == SOME_ALIKE:
        right = f"{in_series(found.right)} {_do_not(found.right)}"
        return f"{in_series(group)} {differ} and {agree}; {right}"
    mine = title_of(sides[group[0]].framework)  # what is left is one framework
    others = dict.fromkeys(title_of(sides[label].framework) for label in found.right)
    right = f"; no side of {in_series(list(others))} does" if others else ""
    return f"all sides of {mine} ({in_series(group)}) {differ} and {agree}{right}"


def _differently(found: Disagreement) -> str:
    """Describe sides that depart from the oracle, but not in the same way."""
    parts = []
    for group in found.groups:
        by = _by([found.from_oracle.get(side) for side in group])
        parts.append(f"{in_series(group)}{by}" + (" (alike)" if len(group) > 1 else ""))
    apart = f", and from each other{_by([found.apart])}" if found.apart is not None else ""
    right = f"; {in_series(found.right)} {_do_not(found.right)}" if found.right else ""
    return (
        f"several sides differ from the oracle, in different ways: "
        f"{in_series(parts)}{apart}: suspect a mistake in each{right}"
    )


def _do_not(names: Sequence[str]) -> str:
    return "does not" if len(names) == 1 else "do not"


def _by(distances: Sequence[float | None]) -> str:
    """Return " by 0.2 to 0.3 times the tensor's largest value"; empty if none is known."""
    known = sorted(f"{each:.2g}" for each in distances if each is not None)
    known = sorted(dict.fromkeys(known), key=float)
    if not known:
        return ""
    last = f" to {known[-1]}" if len(known) > 1 else ""
    return f" by {known[0]}{last} times the tensor's largest value"


def _to(distance: float | None) -> str:
    """Return " with each other to 8.5e-16", or without the number if it is not known."""
    if distance is None:
        return " with each other"
    how_closely = "the last bit" if distance == 0 else f"{distance:.2g}"
    return f" with each other to {how_closely}"


def nearest_to_loss(verdict: RunVerdict) -> str:
    """Return which wrong gradient the backward pass computes first; empty without any.

    Gradients are computed from the loss down, so the first mismatch, in the lowest layer, may
    be the result of any wrong gradient above it, of whichever side.
    """
    if verdict.matches or not verdict.mismatches[0].place.tensor.startswith("gradient/"):
        return ""
    wrong = [
        name
        for evidence in verdict.evidence.values()
        for name in evidence.wrong
        if name.startswith("gradient/")
    ]
    place = {name: number for number, name in enumerate(verdict.history.tensors)}
    return max(wrong[::-1], key=lambda name: place.get(name, -1), default="")


def is_every_gradient(verdict: RunVerdict) -> bool:
    """Return whether the first mismatch is a gradient, and no gradient is right.

    That of the layer next to the loss needs little more than the gradient of the loss: then it
    is no layer that is wrong, but what all gradients come from or go through.
    """
    if not nearest_to_loss(verdict):
        return False
    right = {
        name
        for each in verdict.evidence.values()
        for name in {*each.compared} - {*each.wrong}
        if name.startswith("gradient/")
    }
    return not right


def last_agreeing(verdict: RunVerdict) -> str:
    """Return which tensor agrees that was computed next before the first that does not.

    Of activations, and of parameters' gradients, which are computed from the loss down, where
    an oracle tells which are wrong; empty for any other, and where there is none. A check of
    whole runs comes after all recorded steps.
    """
    first, nearest = verdict.mismatches[0], nearest_to_loss(verdict)
    if first.check in CHECKS:
        return "every tensor of the recorded steps, which this check comes after"
    tensor = nearest or first.place.tensor
    kind = "gradient/" if nearest else "forward/"
    names = [name for name in verdict.history.tensors if name.startswith(kind)]
    if nearest:
        names.reverse()
    return "" if first.check else computed_before(tensor, names)


def rounded_to(verdict: RunVerdict) -> str:
    """Return the narrower precision that the first wrong tensor was rounded to, or ""."""
    dtypes = (
        rounded(each.found, each.expected)
        for each in verdict.evidence.values()
        if each.found is not None and each.expected is not None
    )
    return next(filter(None, dtypes), "")
