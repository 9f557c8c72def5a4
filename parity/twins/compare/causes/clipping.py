"""Mistakes in clipping: left out, elsewhere, by another norm."""

from collections.abc import Callable, Iterator, Mapping
from functools import wraps

import numpy as np

from parity.twins.compare.causes.suspect import (
    CLIPPING,
    Arrays,
    Change,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.oracle.optimizers import clip_by_global_norm

# parameter name -> array, and the limit, to what clipping returns
Clip = Callable[[Arrays, float], tuple[Arrays, np.float64]]

_EPSILONS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5)


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield _suspect("no clipping", lambda g, limit: (g, _norm(g)), "not-clipped")
    limit = case.spec.training.clip_norm
    yield _suspect("each gradient clipped by its own norm", _one_by_one, "clipped-one-by-one")
    yield _solved(
        "each element of the gradient clipped to a limit",
        "each element of the gradient clipped to ±{}",
        lambda number: (
            lambda g, limit: (
                {n: np.clip(each, -abs(number), abs(number)) for n, each in g.items()},
                _norm(g),
            )
        ),
        (_largest_clipped(case), case.spec.training.clip_norm),
        ("clipped-by-value",),
    )
    for epsilon in _EPSILONS:
        # some operations take their constants in float32 only
        ways = (epsilon, float(np.float32(epsilon)))
        yield suspect(
            f"clipping that divides by the norm plus {epsilon:g}",
            CLIPPING,
            *(_replaced(_by_norm(lambda norm, e=each: norm + e)) for each in ways),  # type: ignore[misc]
            faults=("norm-epsilon",) if epsilon == 1e-6 else (),
        )
    yield _suspect("the gradient always scaled to the limit", _always)
    count = len(case.sizes)
    if count > 1:
        for words, factor in (("divided", 1 / count), ("multiplied", float(count))):
            yield _suspect(
                f"the limit {words} by the number of replicas ({limit * factor:g})",
                _by_norm(lambda norm: norm, factor),
            )
    yield _solved(
        "clipping to another limit",
        "clipping to {} " + f"in place of {limit:g}",
        lambda number: lambda g, limit: _by_norm(lambda norm: norm)(g, number),
        (limit, limit / 2),
        (),
    )
    yield from _norms(case)


def _norms(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which the norm is that of something else."""
    for name in case.parameters():
        table = name.endswith("table")
        yield _suspect(
            f"a norm that leaves out {name}",
            _by_norm_of(lambda g, name=name: {n: a for n, a in g.items() if n != name}),  # type: ignore[misc]
            "norm-without-embedding" if table else "",
        )


def _suspect(name: str, clip: Clip, fault: str = "") -> Suspect:
    return suspect(name, CLIPPING, _replaced(clip), faults=(fault,) if fault else ())


def _solved(
    name: str,
    sentence: str,
    clip: Callable[[float], Clip],
    guesses: tuple[float, ...],
    faults: tuple[str, ...],
) -> Suspect:
    return Suspect(
        name,
        sentence,
        CLIPPING,
        faults=faults,
        solve=lambda number: Change(_replaced(clip(number)), value=number),
        guesses=guesses,
    )


def _replaced(clip: Clip) -> Mapping[Callable, Callable]:
    @wraps(clip_by_global_norm)
    def clipped(gradients: Arrays, clip_norm: float) -> tuple[Arrays, np.float64]:
        return clip(gradients, clip_norm)

    return {clip_by_global_norm: clipped}


def _norm(gradients: Mapping[str, np.ndarray]) -> np.float64:
    total = sum(float(np.sum(np.square(gradient))) for gradient in gradients.values())
    return np.float64(np.sqrt(total))


def _by_norm(change: Callable[[np.float64], np.float64], factor: float = 1.0) -> Clip:
    """Return clipping by a changed norm, which is not recorded, to a multiple of the limit."""

    def clip(gradients: Arrays, limit: float) -> tuple[Arrays, np.float64]:
        norm, limit = _norm(gradients), limit * factor
        scale = limit / np.maximum(limit, change(norm))
        return {name: gradient * scale for name, gradient in gradients.items()}, norm

    return clip


def _by_norm_of(change: Callable[[Arrays], Arrays]) -> Clip:
    """Return clipping by the norm of other arrays, which is recorded."""

    def clip(gradients: Arrays, limit: float) -> tuple[Arrays, np.float64]:
        norm = _norm(change(gradients))
        scale = limit / np.maximum(limit, norm)
        return {name: gradient * scale for name, gradient in gradients.items()}, norm

    return clip


def _one_by_one(gradients: Arrays, limit: float) -> tuple[Arrays, np.float64]:
    found = {}
    for name, gradient in gradients.items():
        found[name] = gradient * (limit / np.maximum(limit, _norm({name: gradient})))
    return found, _norm(gradients)


def _always(gradients: Arrays, limit: float) -> tuple[Arrays, np.float64]:
    norm = _norm(gradients)
    return {name: gradient * (limit / norm) for name, gradient in gradients.items()}, norm


def _largest_clipped(case: WrongStep) -> float:
    """Return the largest element of the clipped gradients."""
    return max(
        float(np.abs(array).max(initial=0.0))
        for name, array in case.recorded.items()
        if name.startswith("clipped_gradient/")
    )
