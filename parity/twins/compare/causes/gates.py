"""Mistakes in the order of gates: all orders."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import permutations
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    FORWARD,
    Change,
    Replacements,
    Suspect,
    WrongStep,
)
from parity.twins.oracle.recurrent import (
    gru_step,
    gru_step_backward,
    lstm_step,
    lstm_step_backward,
)

GATES = {"lstm": "ifgo", "gru": "rzc"}
STEPS: dict[str, tuple[Callable, Callable]] = {
    "lstm": (lstm_step, lstm_step_backward),
    "gru": (gru_step, gru_step_backward),
}


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    gates = GATES[case.cell]
    orders = [
        order for order in permutations(range(len(gates))) if order != tuple(sorted(order))
    ]
    # exchanges of two gates before other orders
    orders.sort(key=lambda order: sum(at != gate for at, gate in enumerate(order)))
    for order in orders:
        ways = [_in_cell(case.cell, order, derived=True)]
        if case.cell == "lstm":  # some sides differentiate it themselves
            ways.append(_in_cell(case.cell, order, derived=False))
        name = _named(gates, order)
        yield Suspect(name, name, FORWARD, tuple(map(Change, ways)), _faults(case.cell, order))


def _named(gates: str, order: Sequence[int]) -> str:
    moved = [gates[at] for at, gate in enumerate(order) if at != gate]
    if len(moved) == 2:
        return f"gates {moved[0]} and {moved[1]} exchanged"
    return f"gates in the order {', '.join(gates[gate] for gate in order)}"


def _faults(cell: str, order: Sequence[int]) -> tuple[str, ...]:
    moved = [GATES[cell][at] for at, gate in enumerate(order) if at != gate]
    return (f"{cell}-gates-{'-'.join(moved)}",) if len(moved) == 2 else ()


def _in_order(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return the blocks of the last axis in another order."""
    blocks = np.split(array, len(order), axis=-1)
    return np.concatenate([blocks[gate] for gate in order], axis=-1)


def _in_cell(cell: str, order: Sequence[int], *, derived: bool) -> Replacements:
    """Return replacements in which the cell of every layer takes its gates in another order.

    Args:
      derived: whether the gradient follows; otherwise it is taken as if nothing had moved.
    """
    step, backward = STEPS[cell]
    back = np.argsort(order).tolist()

    @wraps(step)
    def moved(a: np.ndarray, state: Any, u: np.ndarray) -> Any:
        return original(step)(_in_order(a, order), state, _in_order(u, order))

    @wraps(backward)
    def moved_backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        d_a, d_u, d_before = original(backward)(d_state, saved, _in_order(u, order))
        return _in_order(d_a, back), _in_order(d_u, back), d_before

    return {step: moved, backward: moved_backward} if derived else {step: moved}
