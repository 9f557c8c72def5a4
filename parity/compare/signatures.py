"""What a mismatch looks like, and which known faults look like it.

A planted fault leaves a signature: the first tensor that is wrong, how its values relate to the
expected ones, where in the tensor they are wrong, and which other tensors are wrong although
what they are computed from is right. The signatures of the fault catalogue
(signatures.json beside this file, written by `python -m parity faults --save-signatures`) are
the reference for a mismatch of unknown cause.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

import numpy as np

from parity.compare.relation import SAME, rounded
from parity.compare.relation import relation as relation_of
from parity.trace.rungs import rung_of

# How much each part of a signature counts when two are compared.
_WEIGHTS = {
    "tensor": 4.0,
    "relation": 3.0,
    "region": 1.5,
    "wrong": 3.0,
    "late": 1.0,
    "share": 1.0,
    "size": 1.5,
    "likeness": 2.0,
}
# What a mistake needs of a run, by its topic or by a word of its name.
_NEEDS = {
    "Adam ε": "adam",
    "Sparse Adam": "adam",
    "moments": "adam",
    "steps-of-first-worker": "adam",
    "steps-per-replica": "adam",
    "LSTM gates": "lstm",
    "GRU": "gru",
    "Attention": "attention",
    "Bidirectional encoder": "bidirectional",
    "Dropout": "dropout",
    "mask-of": "dropout",
    "before-dropout": "dropout",
    "State from batch to batch": "carried state",
    "state-not-carried": "carried state",
    "Micro-batches": "micro-batches",
}

_FITS = 0.75  # the fit from which a fault is named as a likely cause
_NEAR = 0.08  # how far below the best fit it may be
_MOST = 3  # the number of topics to name causes from


@dataclass(frozen=True)
class Evidence:
    """What a side recorded of the first wrong tensor, and what it should have recorded.

    Attributes:
      step: the step of the mismatch.
      tensor: the name of the tensor.
      found, expected: recorded and expected values; None where they cannot be compared.
      wrong: the names of all tensors of that step that are wrong, given what the side itself
        recorded on the rung below.
      sizes: the number of rows of each replica.
      lengths: the length of each row along the tensor's time axis, if it has one.
      network: the name of the trained network.
      strategy: the name of the side's strategy.
      traits: what the run has of which a mistake may need one, such as "adam"; None if unknown.
    """

    step: int
    tensor: str
    found: np.ndarray | None = None
    expected: np.ndarray | None = None
    wrong: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    lengths: np.ndarray | None = None
    network: str = ""
    strategy: str = ""
    traits: frozenset[str] | None = None


@dataclass(frozen=True)
class Signature:
    """What a mismatch looks like, independent of size, layer and network.

    Attributes:
      tensor: the kind of the first wrong tensor, such as "forward/lstm/hidden".
      relation: how the recorded values relate to the expected ones, such as "larger".
      region: where the tensor is wrong, such as "some replicas".
      wrong: the kinds of all wrong tensors.
      late: whether the first step was right.
      share: how many elements are wrong: "all", "most", "some" or "few".
      size: the power of ten of the largest difference, as a share of the largest magnitude.
      likeness: how alike wrong and expected values are: the cosine of the angle between them,
        in tenths.
    """

    tensor: str
    relation: str
    region: str
    wrong: frozenset[str]
    late: bool
    share: str = ""
    size: int = 0
    likeness: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "tensor": self.tensor,
            "relation": self.relation,
            "region": self.region,
            "wrong": sorted(self.wrong),
            "late": self.late,
            "share": self.share,
            "size": self.size,
            "likeness": self.likeness,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Signature":
        """Return what `to_json` gave."""
        return Signature(**{**values, "wrong": frozenset(values["wrong"])})

    def fit(self, other: "Signature") -> float:
        """Return how well two signatures fit, 0 to 1."""
        union = self.wrong | other.wrong
        shared = len(self.wrong & other.wrong) / len(union) if union else 1.0
        score = _WEIGHTS["wrong"] * shared
        for name in ("tensor", "relation", "region", "late", "share"):
            score += _WEIGHTS[name] * (getattr(self, name) == getattr(other, name))
        # networks of other sizes may be a power of ten, or a few tenths, off
        score += _WEIGHTS["size"] * max(0.0, 1 - abs(self.size - other.size) / 2)
        score += _WEIGHTS["likeness"] * max(0.0, 1 - abs(self.likeness - other.likeness) / 4)
        return score / sum(_WEIGHTS.values())


def kind_of(tensor: str) -> str:
    """Return a tensor's name without layer number, encoder or decoder, and direction."""
    rung, *path = tensor.split("/")
    parts = [re.sub(r"_\d+$", "", part) for part in path]
    parts = [
        part for part in parts if part not in ("encoder", "decoder", "forward", "backward")
    ]
    return "/".join([rung, *parts])


def signature(evidence: Evidence) -> Signature:
    """Return what a mismatch looks like."""
    relation, region = "other", "whole"
    share, size, likeness = "all", 0, 0
    if evidence.found is not None and evidence.expected is not None:
        found = np.asarray(evidence.found, np.float64)
        expected = np.asarray(evidence.expected, np.float64)
        relation = relation_of(found, expected).kind
        region = _region(found, expected, evidence)
        if found.shape == expected.shape and found.size:
            share, size, likeness = _extent(found, expected)
    return Signature(
        kind_of(evidence.tensor),
        relation,
        region,
        frozenset(kind_of(name) for name in evidence.wrong),
        evidence.step > 0,
        share,
        size,
        likeness,
    )


def narrower(evidence: Evidence) -> str:
    """Return the type that a tensor seems to have been rounded to on its way; "" for none."""
    if evidence.found is None or evidence.expected is None:
        return ""
    return rounded(evidence.found, evidence.expected)


def _extent(found: np.ndarray, expected: np.ndarray) -> tuple[str, int, int]:
    """Return how many elements are wrong, by how much, and how alike the arrays are."""
    difference = np.abs(found - expected)
    wrong = difference > SAME * difference.max()
    real = (found != 0) | (expected != 0)  # padding is right by definition
    part = float(wrong.sum() / max(1, real.sum()))
    names = ((0.95, "all"), (0.5, "most"), (0.1, "some"), (0.0, "few"))
    share = next(name for least, name in names if part >= least)
    largest = float(max(np.abs(found).max(), np.abs(expected).max()))
    relative = float(difference.max()) / largest if largest else 0.0
    size = round(np.log10(relative)) if relative else -16
    norms = float(np.linalg.norm(found) * np.linalg.norm(expected))
    # a norm may overflow where no element does
    cosine = float(np.vdot(found, expected)) / norms if 0 < norms < np.inf else 0.0
    return share, size, round(10 * cosine) if np.isfinite(cosine) else 0


def _region(found: np.ndarray, expected: np.ndarray, evidence: Evidence) -> str:
    """Return where in the tensor the difference is."""
    if found.shape != expected.shape:
        return "whole"
    difference = np.abs(found - expected)
    wrong = difference > SAME * difference.max()
    if not wrong.any() or found.ndim == 0:
        return "whole"
    rung = rung_of(evidence.tensor)
    if rung == "forward" and sum(evidence.sizes) == len(found):
        rows = wrong.reshape(len(found), -1).any(axis=1)
        bounds = np.cumsum([0, *evidence.sizes])
        hit = [rows[a:b].any() for a, b in pairwise(bounds)]
        if len(hit) > 1 and not all(hit):
            return "some replicas"
        if evidence.lengths is not None and found.ndim >= 2:
            steps = wrong.reshape(*wrong.shape[:2], -1).any(axis=2)
            at = np.nonzero(steps)
            if np.all(at[1] == evidence.lengths[at[0]] - 1):
                return "last steps"
            if not steps[:, 0].any():
                return "after the first step"
            if not steps[:, 1:].any():
                return "first step"
        if rows.mean() <= 0.5:
            return "some rows"
    elif rung in ("gradient", "optimizer", "weight") and found.ndim >= 1:
        for axis, name in ((found.ndim - 1, "some columns"), (0, "some rows")):
            others = tuple(a for a in range(found.ndim) if a != axis)
            if wrong.any(axis=others).mean() <= 0.8:
                return name
    elif rung == "loss" and wrong.mean() < 1:
        return "some replicas"
    return "whole"


@dataclass(frozen=True)
class Cause:
    """A fault of the catalogue whose signature resembles that of a mismatch.

    Attributes:
      fault: the name of the fault.
      cause: what is wrong, in words.
      topic: what the fault is about; faults of one topic may look alike.
      fit: how well the signatures agree, from 0 to 1.
    """

    fault: str
    cause: str
    topic: str
    fit: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "fault": self.fault,
            "cause": self.cause,
            "topic": self.topic,
            "fit": round(self.fit, 3),
        }


def likely_causes(
    seen: Signature,
    network: str = "",
    known: Iterable[Mapping[str, Any]] | None = None,
    *,
    strategy: str | None = None,
    traits: frozenset[str] | None = None,
) -> list[Cause]:
    """Return the faults whose signature fits a mismatch, likeliest first.

    They come from a few topics, but there may be many from one: a result does not show which
    two gates were exchanged.

    Args:
      seen: the signature of the mismatch.
      network: the name of the trained network; "" for any. Faults in layers that only another
        network has are not named for it.
      known: entries of signatures.json; None for the saved ones.
      strategy: the strategy of the side. Faults of other strategies are not named for it: a
        micro-batch cannot count twice where there is none. None to name those of any strategy.
      traits: what the run has; faults that need something else are not named. None for all.
    """
    found: dict[str, Cause] = {}
    for entry in signatures() if known is None else known:
        if network and entry.get("only_in", network) != network:
            continue
        if strategy is not None and entry.get("strategy", strategy) != strategy:
            continue
        said = f"{entry['topic']} {entry['fault']}"
        if traits is not None and any(
            word in said and trait not in traits for word, trait in _NEEDS.items()
        ):
            continue
        fit = seen.fit(Signature.from_json(entry["signature"]))
        name = entry["fault"]
        if name not in found or fit > found[name].fit:
            found[name] = Cause(name, entry["cause"], entry["topic"], fit)
    ranked = sorted(found.values(), key=lambda cause: -cause.fit)
    if not ranked:
        return []
    least = max(_FITS, ranked[0].fit - _NEAR)
    topics = list(dict.fromkeys(cause.topic for cause in ranked if cause.fit >= least))[:_MOST]
    return [cause for cause in ranked if cause.fit >= least and cause.topic in topics]


@cache
def signatures() -> Sequence[Mapping[str, Any]]:
    """Return the catalogue's signatures: [{"fault", "cause", "topic",
    "signature"}], "only_in" with the network for a fault in layers that others lack, and
    "strategy" for a fault of another strategy than the default one."""
    file = resources.files("parity.compare").joinpath("signatures.json")
    if not file.is_file():
        return []
    loaded: list[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
