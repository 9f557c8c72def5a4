"""Mistakes in weights and embeddings: layout, scale, left out."""

from collections.abc import Iterator

import numpy as np

from parity.twins.compare.causes.suspect import (
    FORWARD,
    Change,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import (
    one_weight,
)


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _layout(case)
    yield from _embeddings(case)
    yield from _left_out(case)


def _layout(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which a kernel is read in another layout."""
    for name in case.parameters("kernel"):
        shape = case.snapshot[f"weight/{name}"].shape
        if len(shape) == 2 and shape[0] == shape[1]:
            fault = {
                "attention/memory_kernel": ("square-kernel-transposed",),
                "attention/query_kernel": ("square-kernel-transposed",),
            }.get(name, ())
            view = one_weight([name], np.transpose, np.transpose)
            yield suspect(f"{name} transposed", FORWARD, view, faults=fault)


def _embeddings(case: WrongStep) -> Iterator[Suspect]:
    tables = case.parameters("/table")
    root = float(np.sqrt(case.spec.model.embedding_size))
    yield suspect(
        "embeddings multiplied by the root of their width",
        FORWARD,
        one_weight(tables, lambda w: w * root, lambda d: d * root),
        faults=("embedding-root",),
        where="forward/*embedded",
    )
    yield Suspect(
        "embeddings multiplied by a factor",
        "embeddings multiplied by {}",
        FORWARD,
        faults=("embedding-root",),
        where="forward/*embedded",
        solve=lambda factor: Change(
            one_weight(tables, lambda w: w * factor, lambda d: d * factor), value=factor
        ),
        guesses=(1.0, 2.0),
    )


def _left_out(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which a parameter reads as a constant."""
    for name in case.parameters():
        constant = 1.0 if name == "attention/scale" else 0.0
        faults = ("attention-scale-left-out",) if constant else ()
        yield suspect(
            f"{name} left out",
            FORWARD,
            one_weight([name], lambda w, c=constant: np.full_like(w, c), np.zeros_like),  # type: ignore[misc]
            faults=faults,
        )
