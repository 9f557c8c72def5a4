"""Mistakes in micro-batches: which of them count, how often, and what each is given."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np

from parity.twins.compare.causes.inputs import fitted
from parity.twins.compare.causes.suspect import (
    FORWARD,
    GRADIENT,
    LOSS,
    Arrays,
    Case,
    Replacements,
    Suspect,
    plain,
)
from parity.twins.compare.causes.views import Share, in_replicas, returned, summed
from parity.twins.oracle.training import replica_losses
from parity.twins.spec.replicas import split_rows


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    count = case.side.micro_batches
    if count < 2:
        return
    parts = split_rows(sum(case.sizes), len(case.sizes), count)
    yield from _sums(parts, count)
    yield from _losses(case, parts, count)
    yield from _given(parts, count)


def _sums(parts: list[int], count: int) -> Iterator[Suspect]:
    """Yield suspects in how the gradients of the micro-batches become one."""
    filled = [number for number, rows in enumerate(parts) if rows]

    def weighted(weight: Callable[[int], float]) -> Replacements:
        def combine(found: list[Arrays]) -> Arrays:
            return summed(
                [
                    {name: weight(number) * each for name, each in gradients.items()}
                    for number, gradients in zip(filled, found, strict=True)
                ]
            )

        return in_replicas(combine=combine, parts=parts)

    for twice in filled:
        replica, micro_batch = divmod(twice, count)
        yield plain(
            f"the gradient of micro-batch {micro_batch} of replica {replica} counted twice",
            GRADIENT,
            weighted(lambda number, twice=twice: 2.0 if number == twice else 1.0),  # type: ignore[misc]
            faults=("micro-batch-counted-twice",),
        )
    for words, micro_batch in (("first", 0), ("last", count - 1)):
        yield plain(
            f"the gradient of each replica's {words} micro-batch alone",
            GRADIENT,
            weighted(lambda number, own=micro_batch: float(number % count == own)),  # type: ignore[misc]
            faults=(f"{words}-micro-batch-alone",),
        )
    yield plain(
        "the gradient of each replica's first micro-batch counted twice",
        GRADIENT,
        weighted(lambda number: 2.0 if number % count == 0 else 1.0),
        faults=("micro-batch-counted-twice",),
    )
    yield plain(
        "the gradients of the micro-batches averaged, not summed",
        GRADIENT,
        returned(lambda a, gradients: (a, {n: g / count for n, g in gradients.items()})),
        faults=("micro-batches-averaged",),
    )


def _losses(case: Case, parts: list[int], count: int) -> Iterator[Suspect]:
    """Yield suspects in the losses of the micro-batches."""
    bounds = list(pairwise(np.cumsum([0, *parts])))
    lengths = case.inputs.batch["lengths"]
    own = [max(int(lengths[a:b].sum()), 1) * len(parts) for a, b in bounds]

    def reported(combine: Callable[[np.ndarray], np.ndarray], divisors: Any = None) -> Any:
        @wraps(replica_losses)
        def losses(token_loss: np.ndarray, divisor: float, sizes: Sequence[int]) -> np.ndarray:
            of_parts = np.array([token_loss[a:b].sum() for a, b in bounds])
            of_parts = of_parts / (divisor if divisors is None else np.array(divisors))
            return combine(of_parts.reshape(len(sizes), count))

        return {replica_losses: losses}

    yield plain(
        "each micro-batch's loss divided by its own tokens and by the number of micro-batches",
        LOSS,
        reported(lambda losses: losses.sum(axis=1), own)
        | in_replicas(lambda share: replace(share, divisor=own[share.replica]), parts=parts),
        faults=("micro-batch-means",),
    )
    yield plain(
        "the loss of each replica's last micro-batch reported",
        LOSS,
        reported(lambda losses: losses[:, -1]),
        faults=("loss-of-last-micro-batch",),
    )
    yield plain(
        "the average loss of the micro-batches reported, not their sum",
        LOSS,
        reported(lambda losses: losses.mean(axis=1)),
        faults=("micro-batch-losses-averaged",),
    )


def _given(parts: list[int], count: int) -> Iterator[Suspect]:
    """Yield suspects in which a micro-batch is given what another one should have."""

    def first(share: Share) -> Share:
        return next(
            each for each in share.shares if each.replica // count == share.replica // count
        )

    def masks(share: Share) -> Share:
        firsts = first(share).masks
        return replace(share, masks={n: fitted(firsts[n], m) for n, m in share.masks.items()})

    def targets(share: Share) -> Share:
        taken = fitted(first(share).batch["targets"], share.batch["targets"])
        return replace(share, batch={**share.batch, "targets": taken})

    for words, change, where, fault in (
        ("dropout masks", masks, "forward/*", "masks-of-first-micro-batch"),
        ("targets", targets, "forward/token_loss", "targets-of-first-micro-batch"),
    ):
        yield plain(
            f"every micro-batch with the {words} of its replica's first one",
            FORWARD,
            in_replicas(change, parts=parts),
            faults=(fault,),
            where=where,
            by_row=False,
        )
    yield plain(
        "every micro-batch going on from the state that the one before it left",
        FORWARD,
        in_replicas(lambda share: _going_on(share, count), parts=parts),
        faults=("state-of-micro-batch-before",),
        by_row=False,
    )


def _going_on(share: Share, count: int) -> Share:
    """Return a share that starts from the final state of the micro-batch before it."""
    before = [
        each
        for each in share.shares
        if each.replica < share.replica and each.replica // count == share.replica // count
    ]
    if not before:
        return share
    activations, _ = _going_on(before[-1], count).run()
    left = {name: fitted(activations[name], part) for name, part in share.state.items()}
    return replace(share, state=left)
