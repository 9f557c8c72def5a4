"""Mistakes in what a step is given: dropout masks, rows of replicas, the state carried."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parity.twins.compare.causes.suspect import (
    FORWARD,
    Arrays,
    Replacements,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import (
    Share,
    given,
    in_replicas,
    returned,
)
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.step_arrays import dropout_masks


def suspects(case: WrongStep) -> Iterator[Suspect]:
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

            yield suspect(
                f"targets one step too {'late' if by < 0 else 'early'}",
                FORWARD,
                in_replicas(moved),
                faults=faults,
                where="forward/token_loss",
                by_row=False,
            )

        def tokens(share: Share) -> Share:
            return replace(share, batch={**share.batch, "targets": share.batch["tokens"]})

        yield suspect(
            "the tokens read as the targets",
            FORWARD,
            given(tokens),
            faults=("block-reads-tokens-as-targets",),
            where="forward/token_loss",
        )


def _masks(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which dropout acts by other masks."""
    masks, keep = case.inputs.masks, case.spec.model.keep
    if not masks:
        return

    def by(change: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]) -> dict:
        return dict(given(lambda share: replace(share, masks=change(share.masks))))

    yield suspect("no dropout", FORWARD, by(lambda masks: {}))
    yield suspect(
        "dropout that does not scale what it keeps",
        FORWARD,
        by(lambda masks: {n: m * m.dtype.type(keep) for n, m in masks.items()}),
        faults=("mask-not-scaled",),
    )
    yield suspect(
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
        yield suspect(
            f"no dropout at {place}",
            FORWARD,
            by(lambda masks, place=place: {n: m for n, m in masks.items() if n != place}),  # type: ignore[misc]
            faults=("no-dropout-at-the-top",)
            if place == list(masks)[-1]
            else ("sent-before-dropout",),
        )
        for other in masks:
            if place != other and masks[place].shape == masks[other].shape:
                yield suspect(
                    f"the mask of {other} at {place}",
                    FORWARD,
                    by(lambda masks, a=place, b=other: dict(masks) | {a: masks[b]}),  # type: ignore[misc]
                    faults=("mask-of-other-layer",),
                )
    update = RecordedUpdate.of(case.recorded)
    if update is not None and update.first_row:
        firsts = dropout_masks(case.spec, case.step, case.inputs.batch)
        yield suspect(
            "the dropout masks of the first worker's rows",
            FORWARD,
            by(lambda masks: {n: firsts[n].astype(masks[n].dtype) for n in masks}),
            faults=("mask-of-first-replica",),
            by_row=False,
        )
    for step in sorted({0, case.step - 1, case.step + 1} - {-1, case.step}):
        drawn = dropout_masks(case.spec, step, case.inputs.batch)
        yield suspect(
            f"the dropout masks of step {step}",
            FORWARD,
            by(lambda masks, drawn=drawn: {n: drawn[n].astype(masks[n].dtype) for n in masks}),  # type: ignore[misc]
            faults=("mask-of-first-step",) if step == 0 else (),
            by_row=False,
        )


def _rows(case: WrongStep) -> Iterator[Suspect]:
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
        yield suspect(
            f"every replica reading the first one's {words}",
            FORWARD,
            in_replicas(firsts),
            faults=faults.get(name, ()),
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


def _states(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which the recurrent state is another one."""
    rows, left = len(case.inputs.batch["lengths"]), case.left

    if case.inputs.carry:
        yield suspect(
            "the state not carried from the batch before",
            FORWARD,
            _with_state(lambda state: {n: np.zeros_like(a) for n, a in state.items()}),
            faults=("state-not-carried", "state-not-carried"),
        )
    elif left is not None and len(next(iter(left.values()))) == rows:
        yield suspect(
            "the state carried although the batch starts anew",
            FORWARD,
            _with_state(lambda state: {n: left[n].astype(a.dtype) for n, a in state.items()}),
            faults=("state-not-reset",),
            by_row=False,
        )
    if set(case.state) == {"h", "c"}:
        yield suspect(
            "h and c read as each other",
            FORWARD,
            _with_state(lambda state: {"h": state["c"], "c": state["h"]}),
        )

        def exchanged(activations: Arrays, gradients: Arrays) -> tuple[Arrays, Arrays]:
            return activations | {"h": activations["c"], "c": activations["h"]}, gradients

        yield suspect(
            "h and c passed on as each other",
            FORWARD,
            returned(exchanged),
            faults=("state-swapped",),
            where="forward/[ch]",
        )


def _with_state(change: Callable[[Arrays], Arrays]) -> Replacements:
    """Return replacements in which the network starts from a changed state."""
    return given(lambda share: replace(share, state=change(dict(share.state))))
