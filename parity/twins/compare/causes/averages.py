"""Mistakes in the average of the replicas' gradients: by which weights, and of what."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    GRADIENT,
    Arrays,
    Replacements,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import in_replicas, summed
from parity.twins.oracle.optimizers import clip_by_global_norm


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case.

    A replica's part of the gradient is that of its mean loss, weighted by its share of the
    tokens. So a factor for each part makes the mistake.
    """
    count, lengths = len(case.sizes), case.inputs.batch["lengths"]
    bounds = np.cumsum([0, *case.sizes])
    tokens = np.array([int(lengths[a:b].sum()) for a, b in pairwise(bounds)])
    if count < 2 or not tokens.all():
        return
    shares, rows = tokens / tokens.sum(), np.array(case.sizes) / sum(case.sizes)
    weights: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {
        "averaged with equal weights": (
            np.full(count, 1 / count),
            (
                "average-with-equal-weights",
                "average-with-equal-weights",
                "average-with-equal-weights",
            ),
        ),
        "averaged by rows": (rows, ("average-by-rows",)),
        "weighted by tokens twice": (shares**2, ("average-weighted-twice",)),
        "summed, each that of a mean": (
            np.ones(count),
            ("means-summed", "means-summed", "means-summed"),
        ),
        "averaged by each other's tokens": (shares[::-1], ("average-by-weights-of-others",)),
        "averaged by tokens, but for the first, which counts by one over their number": (
            np.array([1 / count, *shares[1:]]),
            ("equal-but-for-the-others",),
        ),
    }
    if case.side.averages_replicas_alike:
        weights["averaged by tokens"] = shares, ("tokens-for-equal",)
    for words, (own, faults) in weights.items():
        factors = own / shares
        yield suspect(
            f"the replicas' gradients {words}",
            GRADIENT,
            in_replicas(combine=_weighted(factors)),
            faults=faults,
        )
    limit = case.spec.training.clip_norm
    yield suspect(
        f"the gradient of each replica's mean loss clipped to the limit ({limit:g})",
        GRADIENT,
        _clipped(shares, limit),
        faults=("clipped-per-replica",),
    )


def _weighted(factors: np.ndarray) -> Callable[[list[Arrays]], Arrays]:
    def combine(parts: list[Arrays]) -> Arrays:
        return summed(
            [
                {name: factor * gradient for name, gradient in part.items()}
                for factor, part in zip(factors, parts, strict=True)
            ]
        )

    return combine


def _clipped(shares: np.ndarray, limit: float) -> Replacements:
    def combine(parts: list[Arrays]) -> Arrays:
        means = [
            {name: gradient / share for name, gradient in part.items()}
            for share, part in zip(shares, parts, strict=True)
        ]
        clipped = [original(clip_by_global_norm)(mean, limit)[0] for mean in means]
        return _weighted(shares)(clipped)

    return in_replicas(combine=combine)
