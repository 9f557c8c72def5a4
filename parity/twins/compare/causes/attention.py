"""Mistakes in the attention: its mask, and the scale of its scores."""

from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    FORWARD,
    Change,
    Replacements,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import in_replicas
from parity.twins.oracle.attention import (
    Memory,
    memory_backward,
    memory_forward,
)

# with input feeding, what is fed reaches the bottom layer at the next step
_FED = "forward/[da]*"


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    if case.spec.network != "seq2seq":
        return
    yield from _masks()
    yield from _scores(case)


def _masks() -> Iterator[Suspect]:
    """Yield suspects in which attention looks at other steps of the source."""

    def everything(real: np.ndarray) -> np.ndarray:
        return np.ones_like(real)

    def all_but_last(real: np.ndarray) -> np.ndarray:
        ends = np.maximum(real.sum(axis=1, keepdims=True) - 1, 1)
        found: np.ndarray = np.arange(real.shape[1]) < ends
        return found

    def one_more(real: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.arange(real.shape[1]) < real.sum(axis=1, keepdims=True) + 1
        return found

    def all_but_first(real: np.ndarray) -> np.ndarray:
        shown = real.copy()
        shown[:, 0] &= real.sum(axis=1) == 1
        return shown

    for name, look, faults in (
        (
            "attention that also looks at padding",
            everything,
            ("attention-not-masked", "attention-not-masked"),
        ),
        ("attention that leaves out the last word", all_but_last, ("attention-mask-short",)),
        ("attention that looks one word too far", one_more, ()),
        ("attention that leaves out the first word", all_but_first, ()),
    ):

        @wraps(memory_forward)
        def remember(kind: str, weights: Any, values: Any, real: Any, look: Any = look) -> Any:
            return original(memory_forward)(kind, weights, values, look(real))

        replacements: Replacements = {**in_replicas(), memory_forward: remember}
        yield suspect(name, FORWARD, replacements, faults=faults, where=_FED, by_row=False)


def _scores(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which keys and queries are compared in another way."""
    root = float(np.sqrt(case.spec.model.hidden_size))
    yield suspect(
        "scores divided by the root of the width",
        FORWARD,
        _keys_times(1 / root),
        faults=("attention-root",),
        where=_FED,
    )
    yield Suspect(
        "scores multiplied by a factor",
        "scores multiplied by {}",
        FORWARD,
        faults=("attention-root",),
        where=_FED,
        solve=lambda factor: Change(_keys_times(factor), value=factor),
        guesses=(1.0, 1.1),
    )


def _keys_times(factor: float) -> Replacements:
    @wraps(memory_forward)
    def forward(kind: str, weights: Any, values: np.ndarray, real: np.ndarray) -> Memory:
        memory = original(memory_forward)(kind, weights, values, real)
        return replace(memory, keys=memory.keys * memory.keys.dtype.type(factor))

    @wraps(memory_backward)
    def backward(kind: str, weights: Any, memory: Memory, d_memory: Any, gradients: Any) -> Any:
        d_values, d_keys = d_memory
        d_memory = d_values, d_keys * factor
        return original(memory_backward)(kind, weights, memory, d_memory, gradients)

    return {memory_forward: forward, memory_backward: backward}
