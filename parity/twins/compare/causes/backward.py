"""Mistakes in the backward pass alone, and in the sum of gradients over replicas."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    GRADIENT,
    Arrays,
    Change,
    Replacements,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import in_replicas, returned, summed
from parity.twins.oracle.optimizers import clip_by_global_norm

# faults in which the gradient of replica 0 is used in place of the sum: of all parameters, of
# one
_FIRST_ALONE = ("nothing-reduced", "nothing-reduced", "nothing-reduced")
_ONE_OF_FIRST = (
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
)


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _sums(case)


def _sums(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in how the replicas' gradients become one."""
    count = len(case.sizes)

    def times(factor: float) -> Replacements:
        return returned(lambda a, gradients: (a, {n: g * factor for n, g in gradients.items()}))

    for name in case.parameters():
        zero = returned(partial(_without_gradient, name))
        yield suspect(f"no gradient of {name}", GRADIENT, zero, where=f"gradient/{name}")
    yield from _some(case)
    if count == 1:
        yield _solved_factor(times, 1.0)
        return
    yield suspect(
        "the replicas' gradients averaged, not summed",
        GRADIENT,
        times(1 / count),
        faults=(
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
        ),
    )
    yield suspect(
        "the gradient multiplied by the number of replicas",
        GRADIENT,
        times(count),
        faults=("gradient-times-replicas", "gradient-times-replicas"),
    )
    for replica in range(count):
        alone = in_replicas(combine=lambda parts, r=replica: parts[min(r, len(parts) - 1)])  # type: ignore[misc]
        yield suspect(
            f"the gradient of replica {replica} alone",
            GRADIENT,
            alone,
            faults=_FIRST_ALONE if replica == 0 else (),
            apart=True,
        )
        yield suspect(
            f"the gradient of replica {replica} left out of the sum",
            GRADIENT,
            in_replicas(combine=partial(_all_but, replica)),
            faults=("last-replica-left-out", "last-replica-left-out") if replica == 2 else (),
        )
        for name in case.parameters():

            def but_one(
                parts: list[Arrays], name: str = name, replica: int = replica
            ) -> Arrays:
                return summed(parts) | {name: parts[min(replica, len(parts) - 1)][name]}

            yield suspect(
                f"the gradient of {name} of replica {replica} alone",
                GRADIENT,
                in_replicas(combine=but_one),
                faults=_ONE_OF_FIRST if not replica else (),
                where=f"gradient/{name}",
                apart=True,
            )
    limit = case.spec.training.clip_norm
    for number, words in ((limit, "the limit"), (limit / count, "its share of the limit")):

        def clipped(parts: list[Arrays], number: float = number) -> Arrays:
            return summed([original(clip_by_global_norm)(part, number)[0] for part in parts])

        yield suspect(
            f"each replica's gradient clipped to {words} ({number:g}) before the sum",
            GRADIENT,
            in_replicas(combine=clipped),
            faults=(
                "clipped-per-replica",
                "clipped-per-replica",
                "clipped-per-replica",
                "clipped-per-replica",
            ),
        )
    yield from _exchanged()
    yield _solved_factor(times, 1.0)


def _exchanged() -> Iterator[Suspect]:
    """Yield suspects in what the replicas send to each other, and what they do with it."""
    yield suspect(
        "the gradient of replica 0 added to the sum once more",
        GRADIENT,
        in_replicas(combine=lambda parts: summed([*parts, parts[0]])),
        faults=("process-own-gradient-twice",),
        apart=True,
    )
    yield suspect(
        "the replicas' gradients rounded to half precision before the sum",
        GRADIENT,
        in_replicas(combine=lambda parts: summed([*map(_in_half, parts)])),
        faults=("process-half-precision",),
    )


def _in_half(gradients: Arrays) -> Arrays:
    return {name: g.astype(np.float16).astype(g.dtype) for name, g in gradients.items()}


def _some(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which the gradients of some layers are scaled, and the others right."""
    wrong = [name for name in case.parameters() if f"gradient/{name}" in case.wrong]
    if not wrong or len(wrong) == len(case.parameters()):
        return
    listed = ", ".join(wrong)

    def times(factor: float) -> Replacements:
        return returned(
            lambda a, gradients: (a, gradients | {n: factor * gradients[n] for n in wrong})
        )

    if len(wrong) > 1:  # there is a suspect for each that is zero alone
        yield suspect(
            f"no gradient of {listed}", GRADIENT, times(0), faults=("nothing-sent-back",)
        )
    yield suspect(
        f"the gradient of {listed} doubled", GRADIENT, times(2), faults=("sent-back-twice",)
    )


def _all_but(replica: int, parts: list[Arrays]) -> Arrays:
    """Return the sum over the replicas that have rows, but for one."""
    return summed([part for place, part in enumerate(parts) if place != replica] or parts)


def _without_gradient(name: str, activations: Arrays, gradients: Arrays) -> tuple:
    return activations, gradients | {name: np.zeros_like(gradients[name])}


def _solved_factor(times: Callable[[float], Replacements], start: float) -> Suspect:
    return Suspect(
        "the gradient multiplied by a factor",
        "the gradient multiplied by {}",
        GRADIENT,
        faults=("workers-averaged", "micro-batches-averaged"),
        solve=lambda factor: Change(times(factor), value=factor),
        guesses=(start, start / 2),
    )
