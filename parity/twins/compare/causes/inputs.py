"""Mistakes in what a step is given: dropout masks, rows of replicas, the state carried."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from parity.twins.compare.causes.suspect import (
    FORWARD,
    Arrays,
    Case,
    Replacements,
    Suspect,
    plain,
)
from parity.twins.compare.causes.views import (
    Share,
    given,
    in_replicas,
    padding_looked_up,
    returned,
)
from parity.twins.oracle.layers import look_up
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.step_arrays import dropout_masks


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _masks(case)
    yield from _rows(case)
    if case.carries:
        yield from _states(case)
    if "targets" in case.inputs.batch:
        for by, faults in ((-1, ("targets-late",)), (1, ())):

            def moved(share: Share, by: int = by) -> Share:
                targets = np.roll(share.batch["targets"], by, axis=1)
                return replace(share, batch=dict(share.batch) | {"targets": targets})

            yield plain(
                f"targets one step too {'late' if by < 0 else 'early'}",
                FORWARD,
                in_replicas(moved),
                faults=faults,
                where="forward/token_loss",
                by_row=False,
            )

        def tokens(share: Share) -> Share:
            return replace(share, batch={**share.batch, "targets": share.batch["tokens"]})

        yield plain(
            "the tokens read as the targets",
            FORWARD,
            given(tokens),
            faults=("block-reads-tokens-as-targets",),
            where="forward/token_loss",
        )


def _masks(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which dropout acts by other masks."""
    masks, keep = case.inputs.masks, case.spec.model.keep
    if not masks:
        return

    def by(change: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]) -> dict:
        return dict(given(lambda share: replace(share, masks=change(share.masks))))

    yield plain("no dropout", FORWARD, by(lambda masks: {}))
    yield plain(
        "dropout that does not scale what it keeps",
        FORWARD,
        by(lambda masks: {n: m * m.dtype.type(keep) for n, m in masks.items()}),
        faults=("mask-not-scaled",),
    )
    yield plain(
        "dropout that keeps what it should drop",
        FORWARD,
        by(
            lambda masks: {
                n: (m == 0).astype(m.dtype) / m.dtype.type(1 - keep) for n, m in masks.items()
            }
        ),
        faults=("keep-is-drop",),
    )
    for place in masks:
        yield plain(
            f"no dropout at {place}",
            FORWARD,
            by(lambda masks, place=place: {n: m for n, m in masks.items() if n != place}),  # type: ignore[misc]
            faults=("no-dropout-at-the-top",)
            if place == list(masks)[-1]
            else ("sent-before-dropout",),
        )
        for other in masks:
            if place != other and masks[place].shape == masks[other].shape:
                yield plain(
                    f"the mask of {other} at {place}",
                    FORWARD,
                    by(lambda masks, a=place, b=other: dict(masks) | {a: masks[b]}),  # type: ignore[misc]
                    faults=("mask-of-other-layer",),
                )
    update = RecordedUpdate.of(case.recorded)
    if update is not None and update.first_row:
        firsts = dropout_masks(case.spec, case.step, case.inputs.batch)
        yield plain(
            "the dropout masks of the first worker's rows",
            FORWARD,
            by(lambda masks: {n: firsts[n].astype(masks[n].dtype) for n in masks}),
            faults=("mask-of-first-replica",),
            by_row=False,
        )
    for step in sorted({0, case.step - 1, case.step + 1} - {-1, case.step}):
        drawn = dropout_masks(case.spec, step, case.inputs.batch)
        yield plain(
            f"the dropout masks of step {step}",
            FORWARD,
            by(lambda masks, drawn=drawn: {n: drawn[n].astype(masks[n].dtype) for n in masks}),  # type: ignore[misc]
            faults=("mask-of-first-step",) if step == 0 else (),
            by_row=False,
        )


def _rows(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which replicas read rows that are not theirs."""
    if len(case.sizes) < 2:
        return
    lengths = NETWORKS[case.spec.network].lengths.values()
    names = [f"batch/{name}" for name in case.inputs.batch if name not in lengths]
    names += ["masks", "state"]
    for name in names:
        if name == "state" and not case.carries:
            continue

        def firsts(share: Share, name: str = name) -> Share:
            first = share.shares[0]
            if name in ("masks", "state"):
                mine, its = getattr(share, name), getattr(first, name)
                taken: Any = {key: fitted(its[key], mine[key]) for key in mine}
                return replace(share, **{name: taken})
            key = name.split("/")[1]
            cut = fitted(first.batch[key], share.batch[key])
            return replace(share, batch=dict(share.batch) | {key: cut})

        words = {"masks": "dropout masks", "state": "recurrent state"}.get(name, name[6:])
        faults = {
            "masks": ("mask-of-first-replica", "mask-of-first-replica"),
            "batch/tokens": ("same-rows", "same-rows", "same-rows"),
        }
        yield plain(
            f"every replica reading the first one's {words}",
            FORWARD,
            in_replicas(firsts),
            faults=faults.get(name, ()),
            by_row=False,
        )
    yield plain(
        "each replica's rows put together in reversed order",
        FORWARD,
        _reversed_rows(case),
        faults=("rows-in-other-order",),
        by_row=False,
    )


def fitted(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return as many rows and steps of an array as another has, padded with zeros.

    Args:
      array: the array to cut or pad.
      like: the array with the shape wanted.
    """
    array = array[tuple(slice(size) for size in like.shape)]
    return np.pad(array, [(0, b - a) for a, b in zip(array.shape, like.shape, strict=True)])


def _reversed_rows(case: Case) -> Mapping[Callable, Callable]:
    """Return replacements in which each replica computes its rows in reversed order.

    What it recorded of real tokens alone, as a list, is put where its own rows have tokens.
    """
    bounds = np.cumsum([0, *case.sizes])
    order = np.concatenate([np.arange(a, b)[::-1] for a, b in pairwise(bounds)])
    lengths = case.inputs.batch["lengths"]
    axes = NETWORKS[case.spec.network].activations(case.spec.model)

    def change(activations: Arrays, gradients: Arrays) -> tuple[Arrays, Arrays]:
        found = {}
        for name, array in activations.items():
            moved = array[order]
            if name in ("logits", "token_loss"):
                moved = np.zeros_like(array)
                for a, b in pairwise(bounds):
                    rows = order[a:b]
                    steps = np.arange(array.shape[1])[:, None]
                    taken = array[rows].swapaxes(0, 1)[steps < lengths[rows]]
                    moved[a:b].swapaxes(0, 1)[steps < lengths[a:b]] = taken
            elif "time" in axes[name]:
                beyond = np.arange(array.shape[1]) >= lengths[:, None]
                moved = np.where(beyond[:, :, None], 0, moved)
            found[name] = moved
        return found, gradients

    return {**returned(change), look_up: padding_looked_up}


def _states(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which the recurrent state is another one."""
    rows, left = len(case.inputs.batch["lengths"]), case.left

    if case.inputs.carry:
        yield plain(
            "the state not carried from the batch before",
            FORWARD,
            _with_state(lambda state: {n: np.zeros_like(a) for n, a in state.items()}),
            faults=("state-not-carried", "state-not-carried"),
        )
    elif left is not None and len(next(iter(left.values()))) == rows:
        yield plain(
            "the state carried although the batch starts anew",
            FORWARD,
            _with_state(lambda state: {n: left[n].astype(a.dtype) for n, a in state.items()}),
            faults=("state-not-reset",),
            by_row=False,
        )
    if set(case.state) == {"h", "c"}:
        yield plain(
            "h and c read as each other",
            FORWARD,
            _with_state(lambda state: {"h": state["c"], "c": state["h"]}),
        )

        def exchanged(activations: Arrays, gradients: Arrays) -> tuple[Arrays, Arrays]:
            return activations | {"h": activations["c"], "c": activations["h"]}, gradients

        yield plain(
            "h and c passed on as each other",
            FORWARD,
            returned(exchanged),
            faults=("state-swapped",),
            where="forward/[ch]",
        )
    yield from _other_states(case)


def _with_state(change: Callable[[Arrays], Arrays]) -> Replacements:
    """Return replacements in which the network starts from a changed state."""
    return given(lambda share: replace(share, state=change(dict(share.state))))


def _other_states(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which a layer or a row starts from another one's state."""
    layers = case.spec.model.num_layers
    for layer in range(layers if layers > 1 else 0):
        yield plain(
            f"every layer starting from the state of layer {layer}",
            FORWARD,
            _with_state(
                lambda state, k=layer: {  # type: ignore[misc]
                    n: np.repeat(a[:, k : k + 1], a.shape[1], axis=1) for n, a in state.items()
                }
            ),
            faults=("layers-share-state",) if layer == 0 else (),
        )
    for layer in range(layers if case.inputs.carry else 0):
        for names in ("h", "c", "hc"):
            yield plain(
                f"{' and '.join(names)} of layer {layer} not carried from the batch before",
                FORWARD,
                _with_state(partial(_zeroed, layer, names)),
                faults={
                    ("h", 2): ("layer-not-carried",),
                    ("hc", 1): ("layer-not-carried",),
                }.get((names, layer), ()),
            )
    if layers > 1:
        yield plain(
            "the layers' states in the other order",
            FORWARD,
            _with_state(lambda state: {n: a[:, ::-1] for n, a in state.items()}),
        )
    for shift in (1, -1):
        yield plain(
            f"the state of the row {'above' if shift > 0 else 'below'}",
            FORWARD,
            _with_state(partial(_rolled, shift)),
            by_row=False,
        )


def _zeroed(layer: int, names: str, state: Arrays) -> Arrays:
    found = {name: array.copy() for name, array in state.items()}
    for name in names:
        found[name][:, layer] = 0
    return found


def _rolled(rows: int, state: Arrays) -> Arrays:
    return {name: np.roll(array, rows, axis=0) for name, array in state.items()}
