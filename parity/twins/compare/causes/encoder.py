"""Mistakes past the end of rows, and between layers, directions, encoder and decoder."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import FORWARD, Case, Replacements, Suspect, plain
from parity.twins.compare.causes.views import Share, in_replicas
from parity.twins.oracle.decoder import decoder_start, decoder_start_backward
from parity.twins.oracle.encoder import (
    Direction,
    directions,
    join_final_states,
    join_final_states_backward,
)
from parity.twins.oracle.recurrent import (
    CELLS,
    State,
    masked_step,
    masked_step_backward,
    rnn_backward,
    rnn_forward,
)
from parity.twins.oracle.training import run_network


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _ends(case)
    yield from _precision()
    if case.spec.network == "language-model":
        yield from _layers(case)
    if case.spec.network == "seq2seq":
        yield from _starts()
        if case.spec.model.bidirectional:
            yield from _directions()


def _ends(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which a layer does not stop at the end of each row."""
    yield plain(
        "a state that goes on changing past the end of each row",
        FORWARD,
        {**in_replicas(), **_runs_on(output=False)},
        {**in_replicas(), **_runs_on(output=True)},
        faults=("state-runs-on",),
        by_row=False,
    )
    if case.spec.network == "seq2seq":
        yield plain(
            "a source of one token taken for one of two",
            FORWARD,
            {**in_replicas(), **_taken_for_two()},
            faults=("source-of-one",),
            by_row=False,
        )
    for by, faults in ((-1, ("length-short",)), (1, ())):
        yield plain(
            f"recurrent layers that stop one step {'before' if by < 0 else 'after'} the end",
            FORWARD,
            {**in_replicas(), **_stops(by)},
            faults=faults,
            by_row=False,
        )


def _taken_for_two() -> Replacements:
    """Return replacements in which the encoder takes rows of one token for rows of two."""

    def at_least_two(real: np.ndarray) -> np.ndarray:
        longer = np.minimum(np.maximum(real.sum(axis=1, keepdims=True), 2), real.shape[1])
        found: np.ndarray = np.arange(real.shape[1]) < longer
        return found

    @wraps(directions)
    def longer(model: Any, layer: int, lengths: np.ndarray) -> list[Direction]:
        return original(directions)(model, layer, np.maximum(lengths, 2))

    return {**_with_ends(at_least_two), directions: longer}


def _runs_on(*, output: bool) -> Replacements:
    """Return replacements in which the state goes on changing past the end of each row.

    Args:
      output: whether the next layer reads the layer's output there.
    """

    @wraps(masked_step)
    def step(cell: str, a: np.ndarray, state: State, u: np.ndarray, on: np.ndarray) -> Any:
        new, saved = CELLS[cell][0](a, state, u)
        return new[0] if output else np.where(on, new[0], 0), new, saved

    @wraps(masked_step_backward)
    def backward(
        cell: str,
        d_output: np.ndarray,
        d_state: State,
        saved: Any,
        u: np.ndarray,
        on: np.ndarray,
    ) -> Any:
        d_h, *d_others = d_state
        d_output = d_output if output else np.where(on, d_output, 0)
        return CELLS[cell][1]((d_h + d_output, *d_others), saved, u)

    return {masked_step: step, masked_step_backward: backward}


def _stops(by: int) -> Replacements:
    """Return replacements in which the layers stop so many steps after the end of each row."""

    def moved(real: np.ndarray) -> np.ndarray:
        ends = real.sum(axis=1, keepdims=True) + by
        found: np.ndarray = np.arange(real.shape[1]) < ends
        return found

    return _with_ends(moved)


def _with_ends(moved: Callable[[np.ndarray], np.ndarray]) -> Replacements:
    """Return replacements in which layers take other steps of a row for its real ones."""

    @wraps(rnn_forward)
    def forward(cell: str, inputs: np.ndarray, real: np.ndarray, *rest: Any) -> Any:
        return original(rnn_forward)(cell, inputs, moved(real), *rest)

    @wraps(rnn_backward)
    def backward(
        cell: str, d_hidden: Any, d_state: Any, inputs: Any, real: np.ndarray, *rest: Any
    ) -> Any:
        return original(rnn_backward)(cell, d_hidden, d_state, inputs, moved(real), *rest)

    return {rnn_forward: forward, rnn_backward: backward}


def _precision() -> Iterator[Suspect]:
    """Yield suspects in which a layer's output passes through another precision."""

    def rounded(x: np.ndarray, to: type[np.floating]) -> np.ndarray:
        found: np.ndarray = x.astype(to).astype(x.dtype)
        return found

    for to in (np.float32, np.float16):

        @wraps(rnn_forward)
        def forward(*arguments: Any, to: Any = to) -> Any:
            hidden, state, saved = original(rnn_forward)(*arguments)
            return rounded(hidden, to), state, saved

        @wraps(rnn_backward)
        def backward(cell: str, d_hidden: np.ndarray, *rest: Any, to: Any = to) -> Any:
            return original(rnn_backward)(cell, rounded(d_hidden, to), *rest)

        yield plain(
            f"the recurrent layers' output rounded to {np.dtype(to).name}",
            FORWARD,
            {rnn_forward: forward, rnn_backward: backward},
            {rnn_forward: forward},
            faults=("single-precision-layer",) if to is np.float32 else (),
        )


def _layers(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which the language model leaves a layer out."""
    last = case.spec.model.num_layers - 1
    if not last:
        return

    @wraps(run_network)
    def run(
        spec: Any,
        weights: Any,
        batch: Any,
        masks: Any,
        state: Any,
        _: Any,
        divisor: Any,
        __: Any,
    ) -> Any:
        whole = Share(spec, weights, batch, masks, state, divisor)
        model = replace(spec.model, num_layers=last)
        lower = {n: m for n, m in masks.items() if n != f"lstm_{last}"}
        if masks:
            lower[f"lstm_{last - 1}"] = masks[f"lstm_{last}"]
        part = replace(
            whole,
            spec=replace(spec, model=model),
            masks=lower,
            state={n: a[:, :last] for n, a in state.items()},
        )
        activations, _ = whole.run()
        of_part, gradients = part.run()
        above = {n: of_part[n] for n in ("logits", "token_loss") if n in of_part}
        zeros = {n: np.zeros_like(w) for n, w in weights.items()}
        return activations | above, zeros | gradients

    yield plain(
        "the projection reading the layer below the top one",
        FORWARD,
        {run_network: run},
        faults=("one-layer-too-few",),
        where="forward/logits",
    )


def _starts() -> Iterator[Suspect]:
    """Yield suspects in which the decoder starts from another state than the encoder's."""

    def zero(states: list[State]) -> list[State]:
        return [tuple(np.zeros_like(part) for part in each) for each in states]

    def upside_down(states: list[State]) -> list[State]:
        return states[::-1]

    def without_c(states: list[State]) -> list[State]:
        return [(h, *map(np.zeros_like, others)) for h, *others in states]

    for name, change, faults in (
        ("a decoder that starts from zeros", zero, ("decoder-starts-from-zero",)),
        (
            "the decoder's layers starting from the encoder's in the other order",
            upside_down,
            ("decoder-starts-upside-down",),
        ),
        ("a decoder that starts from the encoder's h alone", without_c, ()),
    ):
        # each of these changes is its own backward pass
        @wraps(decoder_start)
        def start(states: Any, change: Any = change) -> Any:
            return change(states)

        @wraps(decoder_start_backward)
        def backward(d_states: Any, change: Any = change) -> Any:
            return change(d_states)

        yield plain(
            name,
            FORWARD,
            {decoder_start: start, decoder_start_backward: backward},
            faults=faults,
            where="forward/[da]*",
        )


def _directions() -> Iterator[Suspect]:
    """Yield suspects in the encoder's two directions."""

    def flipped(x: np.ndarray) -> np.ndarray:
        return x[:, ::-1]

    def unchanged(x: np.ndarray) -> np.ndarray:
        return x

    orders: tuple[tuple[str, Any, Any, tuple[str, ...]], ...] = (
        (
            "a backward direction that reads forwards",
            unchanged,
            None,
            ("backward-not-reversed",),
        ),
        (
            "a backward direction that reads forwards, its outputs not reversed either",
            unchanged,
            unchanged,
            (),
        ),
        (
            "a backward direction that begins with the padding",
            flipped,
            None,
            ("backward-over-padding",),
        ),
        (
            "a backward direction that begins with the padding, its outputs put back likewise",
            flipped,
            flipped,
            (),
        ),
        (
            "the backward direction's outputs left in reversed order",
            None,
            unchanged,
            ("backward-not-turned-back",),
        ),
    )
    for name, into, out_of, faults in orders:
        yield plain(
            name,
            FORWARD,
            {**in_replicas(), **_reads(into, out_of)},
            faults=faults,
            by_row=False,
        )

    yield _exchanged_finals()


def _exchanged_finals() -> Suspect:
    @wraps(join_final_states)
    def join(finals: Any) -> Any:
        return original(join_final_states)(finals[::-1])

    @wraps(join_final_states_backward)
    def join_backward(d_final: Any, count: int) -> Any:
        return original(join_final_states_backward)(d_final, count)[::-1]

    return plain(
        "the two directions' final states joined in the other order",
        FORWARD,
        {join_final_states: join, join_final_states_backward: join_backward},
        faults=("directions-swapped",),
    )


def _reads(into: Callable | None, out_of: Callable | None) -> Replacements:
    """Return replacements in which the backward direction orders time in another way."""

    @wraps(directions)
    def changed(model: Any, layer: int, lengths: np.ndarray) -> list[Direction]:
        first, *rest = original(directions)(model, layer, lengths)
        return [
            first,
            *(Direction(each.name, into or each.into, out_of or each.out_of) for each in rest),
        ]

    return {directions: changed}
