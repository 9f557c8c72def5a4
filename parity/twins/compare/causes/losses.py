"""Mistakes in the loss: what is counted, what it is divided by, how it is put together."""

from collections.abc import Iterator, Sequence
from functools import wraps
from itertools import pairwise

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    LOSS,
    Change,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import divided
from parity.twins.oracle.training import replica_losses


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _divisors(case)

    @wraps(replica_losses)
    def firsts(token_loss: np.ndarray, divisor: float, sizes: Sequence[int]) -> np.ndarray:
        losses = original(replica_losses)(token_loss, divisor, sizes)
        return np.repeat(losses[:1], len(losses))

    @wraps(replica_losses)
    def first_alone(token_loss: np.ndarray, divisor: float, sizes: Sequence[int]) -> np.ndarray:
        losses = original(replica_losses)(token_loss, divisor, sizes)
        return np.where(np.arange(len(losses)) == 0, losses, 0)

    if len(case.sizes) > 1:
        yield suspect(
            "the first replica's loss reported for all",
            LOSS,
            {replica_losses: firsts},
            faults=("loss-of-first-replica",),
        )
        yield suspect(
            "the first replica's loss reported, and none of the others",
            LOSS,
            {replica_losses: first_alone},
            faults=("loss-of-first-replica",),
        )


def _divisors(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which the loss is divided by another number."""
    inputs, count = case.inputs, len(case.sizes)
    bounds = np.cumsum([0, *case.sizes])
    tokens = [int(inputs.batch["lengths"][a:b].sum()) for a, b in pairwise(bounds)]
    own = [max(1, each) for each in tokens]
    true = inputs.loss_divisor
    counts: dict[str, tuple[float, tuple[str, ...]]] = {
        "all positions, padding included": (inputs.positions, ("pads-counted",)),
        "the rows": (inputs.rows, ("per-sentence",)),
        "the real tokens": (inputs.num_tokens, ()),
        "the tokens without each row's last": (
            inputs.num_tokens - inputs.rows,
            ("end-not-counted",),
        ),
        "the tokens and one more in each row": (inputs.num_tokens + inputs.rows, ()),
        "nothing": (1, ()),
        "the steps": (inputs.batch["targets"].shape[1], ()),
        "its divisor times the replicas": (true * count, ()),
        "its divisor over the replicas": (true / count, ()),
    }
    if "source_lengths" in inputs.batch:
        counts["the source's tokens"] = (int(inputs.batch["source_lengths"].sum()), ())
    seen = {float(true)}
    for words, (number, faults) in counts.items():
        if number <= 0 or float(number) in seen:
            continue
        seen.add(float(number))
        sentence = f"the loss divided by {words} ({number:g}, not {true})"
        change = Change(divided(case, [number] * count))
        yield Suspect(f"divided by {words}", sentence, LOSS, (change,), faults)
    if count > 1:
        lists: tuple[tuple[str, list[float], tuple[str, ...]], ...] = (
            (
                "each replica's loss divided by its own tokens and by the number of replicas",
                [each * count for each in own],
                ("mean-of-means",),
            ),
            (
                "each replica's loss divided by its own tokens",
                [*own],
                ("process-loss-per-own-tokens",),
            ),
            (
                "the loss of all replicas but the first divided by their own tokens",
                [true, *own[1:]],
                ("scale-on-first-replica",),
            ),
        )
        for words, divisors, faults in lists:
            yield suspect(words, LOSS, divided(case, divisors), faults=faults)
    nothing = float("inf")
    yield suspect(
        "no loss and no gradient of the batch",
        LOSS,
        divided(case, [nothing] * count),
        faults=("partial-batch-untrained",),
    )
    for replica in range(count if count > 1 else 0):
        yield suspect(
            f"no loss and no gradient of replica {replica}",
            LOSS,
            divided(case, [nothing if r == replica else true for r in range(count)]),
            faults=("last-replica-left-out",) if replica == 2 else (),
        )
    yield Suspect(
        "the loss divided by another number",
        f"the loss divided by {{}}, not by {true}",
        LOSS,
        solve=lambda number: Change(divided(case, [number] * count), value=number),
        guesses=(float(true), _solved_divisor(case)),
    )


def _solved_divisor(case: WrongStep) -> float:
    """Return the divisor that gives the recorded loss."""
    found = float(np.sum(case.recorded["loss/replicas"], dtype=np.float64))
    expected = float(np.sum(case.expected["loss/replicas"], dtype=np.float64))
    return case.inputs.loss_divisor * expected / found if found else 1.0
