"""Mistakes in weights and embeddings: initial values, layout, scale, sharing, look-up."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from parity.base.special_tokens import PAIR_EOS_ID
from parity.twins.compare.causes.suspect import FORWARD, Arrays, Case, Change, Suspect, plain
from parity.twins.compare.causes.views import (
    Share,
    given,
    in_replicas,
    one_weight,
    seen_through,
)


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _layout(case)
    yield from _embeddings(case)
    yield from _left_out(case)
    yield from _rows(case)


def _layout(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which a kernel is read in another layout."""
    for name in case.parameters("kernel"):
        shape = case.snapshot[f"weight/{name}"].shape
        if len(shape) == 2 and shape[0] == shape[1]:
            fault = {
                "attention/memory_kernel": ("square-kernel-transposed",),
                "attention/query_kernel": ("square-kernel-transposed",),
            }.get(name, ())
            view = one_weight([name], np.transpose, np.transpose)
            yield plain(f"{name} transposed", FORWARD, view, faults=fault)
    if "attention/output_kernel" in case.parameters():

        def halves(kernel: np.ndarray) -> np.ndarray:
            return np.concatenate(np.split(kernel, 2)[::-1])

        yield plain(
            "context and decoder output joined in the other order",
            FORWARD,
            one_weight(["attention/output_kernel"], halves, halves),
            faults=("context-and-output-swapped",),
            where="forward/attention/output",
        )


def _embeddings(case: Case) -> Iterator[Suspect]:
    tables = case.parameters("/table")
    root = float(np.sqrt(case.spec.model.embedding_size))
    yield plain(
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
    for table in tables:
        for other in tables:
            if table != other and _alike(case, table, other):
                yield _shared(table, other)
        size = len(case.snapshot[f"weight/{table}"])
        for token in range(min(PAIR_EOS_ID + 2, size)):
            yield plain(
                f"row {token} of {table} reading as zero",
                FORWARD,
                one_weight([table], partial(_without, token), partial(_without, token)),
                faults=("padding-index",) if token == 1 else (),
                where="forward/*embedded",
            )


def _without(token: int, table: np.ndarray) -> np.ndarray:
    found = table.copy()
    found[token] = 0
    return found


def _alike(case: Case, a: str, b: str) -> bool:
    return case.snapshot[f"weight/{a}"].shape == case.snapshot[f"weight/{b}"].shape


def _shared(table: str, other: str) -> Suspect:
    def see(weights: Arrays) -> None:
        weights[table] = weights[other]

    def back(gradients: Arrays) -> None:
        gradients[other] = gradients[other] + gradients[table]
        gradients[table] = np.zeros_like(gradients[table])

    return plain(
        f"{other} in place of {table}",
        FORWARD,
        seen_through(see, back),
        faults=("embeddings-shared",) if table.startswith("decoder") else (),
        where="forward/*embedded",
    )


def _left_out(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which a parameter reads as a constant."""
    for name in case.parameters():
        constant = 1.0 if name == "attention/scale" else 0.0
        faults = ("attention-scale-left-out",) if constant else ()
        yield plain(
            f"{name} left out",
            FORWARD,
            one_weight([name], lambda w, c=constant: np.full_like(w, c), np.zeros_like),  # type: ignore[misc]
            faults=faults,
        )
    if len(case.sizes) > 1:
        for name in case.parameters("bias"):

            def zeroed(share: Share, name: str = name) -> Share:
                if share.replica == 0:
                    return share
                weights = dict(share.weights) | {name: np.zeros_like(share.weights[name])}
                return replace(share, weights=weights)

            def summed_where_seen(parts: list[Arrays], name: str = name) -> Arrays:
                total = {key: sum(each[key] for each in parts) for key in parts[0]}
                return total | {name: parts[0][name]}  # type: ignore[return-value]

            yield plain(
                f"{name} reading as zero on all replicas but the first",
                FORWARD,
                in_replicas(zeroed, summed_where_seen),
                faults=("towers-do-not-share",) if name == "softmax/bias" else (),
                by_row=False,
            )


def _rows(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which tokens are looked up one row off."""
    for by in (1, -1):
        for name in ("tokens", "source"):
            if name not in case.inputs.batch:
                continue
            table = next(iter(case.parameters("table")))
            if case.spec.network == "seq2seq":
                table = {"source": "encoder/embed/table", "tokens": "decoder/embed/table"}[name]
            if f"weight/{table}" not in case.snapshot:
                continue
            size = len(case.snapshot[f"weight/{table}"])

            def moved(share: Share, name: str = name, by: int = by, size: int = size) -> Share:
                batch = dict(share.batch) | {name: (share.batch[name] + by) % size}
                return replace(share, batch=batch)

            yield plain(
                f"{table} read {abs(by)} row {'below' if by > 0 else 'above'}",
                FORWARD,
                given(moved),
                faults=("table-shifted",) if by > 0 and case.spec.network != "seq2seq" else (),
                where="forward/*embedded",
            )
