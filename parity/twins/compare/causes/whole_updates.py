"""Mistakes in the update as a whole: left out, repeated, unclipped, of other weights."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from parity.twins.compare.causes.suspect import (
    UPDATE,
    Arrays,
    Replacements,
    Suspect,
    Tensors,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.updates import updated

_APPLIED_TWICE = ("update-applied-twice", "update-applied-twice", "update-applied-twice")


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""

    def moved(snapshot: Tensors, after: Arrays, times: float) -> Arrays:
        return {n: snapshot[n] + times * (each - snapshot[n]) for n, each in after.items()}

    def times(factor: float) -> Replacements:
        return updated(
            lambda update, spec, snapshot, *rest: moved(
                snapshot, update(spec, snapshot, *rest), factor
            )
        )

    yield suspect(
        "no update of the weights",
        UPDATE,
        times(0),
        faults=("lost-update", "lost-update", "lost-update"),
    )
    repeated = ("mirrored-updated-per-replica", "mirrored-rate-times-replicas")
    for factor in sorted({2, len(case.sizes)} - {1}):
        yield suspect(
            f"an update of the weights {factor} times as large",
            UPDATE,
            times(factor),
            faults=(
                *(repeated if factor == len(case.sizes) else ()),
                *(_APPLIED_TWICE if factor == 2 else ()),
            ),
        )

    def unclipped(
        update: Any, spec: Any, snapshot: Any, slots: Any, gradients: Any, rate: float
    ) -> Arrays:
        before = {
            name: np.asarray(case.recorded[f"gradient/{name}"], np.float64)
            for name in gradients
        }
        return dict(update(spec, snapshot, slots, before, rate))

    yield suspect(
        "an update by the gradient before clipping",
        UPDATE,
        updated(unclipped),
        faults=("worker-does-not-clip",),
    )
    if case.read is None:
        return
    read = case.read

    def stale(update: Any, spec: Any, snapshot: Tensors, *rest: Any) -> Arrays:
        own = {f"weight/{name}": read[f"weight/{name}"] for name in case.parameters()}
        return dict(update(spec, {**snapshot, **own}, *rest))

    yield suspect(
        "an update of the weights that the worker had read, without the updates since then",
        UPDATE,
        updated(stale),
        faults=("update-of-own-copy",),
    )
