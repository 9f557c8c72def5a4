"""Mistakes in the loss: what is counted, what it is divided by, how it is put together."""

from collections.abc import Iterator, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    FORWARD,
    LOSS,
    Case,
    Change,
    Replacements,
    Suspect,
    plain,
)
from parity.twins.compare.causes.views import divided
from parity.twins.oracle.layers import log_softmax, project
from parity.twins.oracle.training import replica_losses
from parity.twins.spec.networks.network import records_logits


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    for token in range(4):
        yield plain(
            f"targets of token {token} without a loss",
            FORWARD,
            _ignoring(token),
            faults=("ignore-index",) if token == 1 else (),
            where="forward/token_loss",
        )
    yield Suspect(
        "labels smoothed",
        "labels smoothed by {}",
        FORWARD,
        faults=("label-smoothing",),
        where="forward/token_loss",
        solve=lambda share: Change(_smoothed(share), value=share),
        guesses=(0.0, 1e-3),
    )
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
        yield plain(
            "the first replica's loss reported for all",
            LOSS,
            {replica_losses: firsts},
            faults=("loss-of-first-replica",),
        )
        yield plain(
            "the first replica's loss reported, and none of the others",
            LOSS,
            {replica_losses: first_alone},
            faults=("loss-of-first-replica",),
        )


def _ignoring(token: int) -> Replacements:
    """Return replacements in which targets of one token have no loss, and no gradient."""

    @wraps(project)
    def without(
        outputs: np.ndarray,
        real: np.ndarray,
        targets: np.ndarray,
        kernel: np.ndarray,
        bias: np.ndarray,
        divisor: Any = None,
    ) -> Any:
        divisor = int(real.sum()) if divisor is None else divisor
        call = original(project)
        whole, _ = call(outputs, real, targets, kernel, bias, divisor)
        found, gradients = call(
            outputs, real & (targets != token), targets, kernel, bias, divisor
        )
        return whole | {"token_loss": found["token_loss"]}, gradients

    return {project: without}


def _smoothed(share: float) -> Replacements:
    """Return replacements in which a share of each label is spread over all tokens."""

    @wraps(project)
    def smoothed(
        outputs: np.ndarray,
        real: np.ndarray,
        targets: np.ndarray,
        kernel: np.ndarray,
        bias: np.ndarray,
        divisor: Any = None,
    ) -> Any:
        inputs, wanted = outputs[real], targets[real]
        divisor = len(inputs) if divisor is None else divisor
        logits = inputs @ kernel + bias
        log_probs = log_softmax(logits)
        at_target = np.arange(len(wanted)), wanted
        found = {"token_loss": np.zeros(targets.shape, logits.dtype)}
        losses = -(1 - share) * log_probs[at_target] - share * log_probs.mean(axis=1)
        found["token_loss"][real] = losses
        if records_logits(targets.size * len(bias)):
            found["logits"] = np.zeros((*targets.shape, len(bias)), logits.dtype)
            found["logits"][real] = logits
        d_logits = np.exp(log_probs) - logits.dtype.type(share / len(bias))
        d_logits[at_target] -= 1 - share
        d_logits /= divisor
        d_outputs = np.zeros_like(outputs)
        d_outputs[real] = d_logits @ kernel.T
        return found, (d_outputs, inputs.T @ d_logits, d_logits.sum(axis=0))

    return {project: smoothed}


def _divisors(case: Case) -> Iterator[Suspect]:
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
            yield plain(words, LOSS, divided(case, divisors), faults=faults)
    nothing = float("inf")
    yield plain(
        "no loss and no gradient of the batch",
        LOSS,
        divided(case, [nothing] * count),
        faults=("partial-batch-untrained",),
    )
    for replica in range(count if count > 1 else 0):
        yield plain(
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


def _solved_divisor(case: Case) -> float:
    """Return the divisor that gives the recorded loss."""
    found = float(np.sum(case.recorded["loss/replicas"], dtype=np.float64))
    expected = float(np.sum(case.expected["loss/replicas"], dtype=np.float64))
    return case.inputs.loss_divisor * expected / found if found else 1.0
