"""Mistakes past the end of rows, and in the state that the decoder starts from."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    FORWARD,
    Replacements,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import in_replicas
from parity.twins.oracle.decoder import decoder_start, decoder_start_backward
from parity.twins.oracle.recurrent import (
    CELLS,
    State,
    masked_step,
    masked_step_backward,
    rnn_backward,
    rnn_forward,
)


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _ends(case)
    if case.spec.network == "seq2seq":
        yield from _starts()


def _ends(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which a layer does not stop at the end of each row."""
    yield suspect(
        "a state that goes on changing past the end of each row",
        FORWARD,
        {**in_replicas(), **_runs_on(output=False)},
        {**in_replicas(), **_runs_on(output=True)},
        faults=("state-runs-on",),
        by_row=False,
    )
    for by, faults in ((-1, ("length-short",)), (1, ())):
        yield suspect(
            f"recurrent layers that stop one step {'before' if by < 0 else 'after'} the end",
            FORWARD,
            {**in_replicas(), **_stops(by)},
            faults=faults,
            by_row=False,
        )


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

        yield suspect(
            name,
            FORWARD,
            {decoder_start: start, decoder_start_backward: backward},
            faults=faults,
            where="forward/[da]*",
        )
