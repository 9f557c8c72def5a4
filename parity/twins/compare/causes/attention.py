"""Mistakes in the attention, and in what is fed back into the decoder."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    FORWARD,
    Case,
    Change,
    Replacements,
    Suspect,
    plain,
)
from parity.twins.compare.causes.views import in_replicas
from parity.twins.oracle.attention import (
    Memory,
    attention_backward,
    attention_forward,
    memory_backward,
    memory_forward,
)
from parity.twins.oracle.decoder import (
    attentional_output,
    attentional_output_backward,
    decoder_step,
    decoder_step_backward,
    fed_back,
    fed_back_backward,
)
from parity.twins.oracle.layers import rows_of, sigmoid

_WEIGHTS = "forward/attention/weights"
# with input feeding, what is fed reaches the bottom layer at the next step
_FED = "forward/[da]*"


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    if case.spec.network != "seq2seq":
        return
    yield from _masks()
    yield from _scores(case)
    yield from _queries()
    yield from _outputs()
    if case.spec.model.input_feeding:
        yield from _fed()


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
        yield plain(name, FORWARD, replacements, faults=faults, where=_FED, by_row=False)
    yield Suspect(
        "padding's scores lowered",
        "padding's attention scores lowered by {} only",
        FORWARD,
        faults=("attention-mask-weak",),
        where=_FED,
        by_row=False,
        # solved for as a factor of the weights: these depend on it nearly linearly
        solve=lambda factor: Change(
            {**in_replicas(), **_weighed(factor)},
            value=-float(np.log(factor)) if factor > 0 else np.inf,
        ),
        guesses=(0.0, 1e-3),
    )


def _weighed(factor: float) -> Replacements:
    """Return replacements in which padding keeps a share of its attention."""

    @wraps(attention_forward)
    def forward(
        kind: str, weights: Any, memory: Memory, query: np.ndarray, on: np.ndarray
    ) -> Any:
        seen = replace(memory, real=np.ones_like(memory.real))
        attended, _, saved = original(attention_forward)(kind, weights, seen, query, on)
        lowered = attended * np.where(memory.real, 1, factor).astype(attended.dtype)
        total = lowered.sum(axis=1, keepdims=True)
        attended = np.divide(lowered, total, out=np.zeros_like(lowered), where=total > 0)
        context = (attended[:, None] @ memory.values)[:, 0]
        return attended, context, (*saved[:3], attended)

    return {attention_forward: forward}


def _scores(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which keys and queries are compared in another way."""
    root = float(np.sqrt(case.spec.model.hidden_size))
    yield plain(
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
    yield plain(
        "the plain mean of the source as the context",
        FORWARD,
        {**in_replicas(), **_plain_mean()},
        faults=("context-without-weights",),
        where=_FED,
        by_row=False,
    )
    if case.spec.model.attention == "bahdanau":
        changed = _no_tanh()
        yield plain(
            "no tanh in the scores",
            FORWARD,
            changed,
            {attention_forward: changed[attention_forward]},
            faults=("additive-no-tanh",),
            where=_FED,
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


def _plain_mean() -> Replacements:
    @wraps(attention_forward)
    def forward(
        kind: str, weights: Any, memory: Memory, query: np.ndarray, on: np.ndarray
    ) -> Any:
        attended, context, saved = original(attention_forward)(kind, weights, memory, query, on)
        mean = attended.sum(axis=1, keepdims=True) / attended.shape[1]
        context = mean * memory.values.sum(axis=1)
        return attended, context, (*saved[:3], attended)

    @wraps(attention_backward)
    def backward(
        kind: str,
        weights: Any,
        memory: Memory,
        d_context: np.ndarray,
        saved: Any,
        gradients: Any,
        d_memory: Any,
    ) -> np.ndarray:
        attended = saved[3]
        d_values, d_keys = d_memory
        on = attended.sum(axis=1, keepdims=True) / attended.shape[1]
        d_values += (d_context * on)[:, None]
        # the weights sum to one whatever the scores are, so only rounding reaches these
        mean = np.broadcast_to(memory.values.mean(axis=1, keepdims=True), memory.values.shape)
        d_memory = np.zeros_like(d_values), d_keys
        averaged = replace(memory, values=mean)
        return original(attention_backward)(
            kind, weights, averaged, d_context, saved, gradients, d_memory
        )

    return {attention_forward: forward, attention_backward: backward}


def _no_tanh() -> Replacements:
    @wraps(attention_forward)
    def forward(
        kind: str, weights: Any, memory: Memory, query: np.ndarray, on: np.ndarray
    ) -> Any:
        seen = (query @ weights["attention/query_kernel"])[:, None] + memory.keys
        raw = (rows_of(seen) @ weights["attention/score_kernel"]).reshape(memory.real.shape)
        scores = np.where(memory.real, raw, -np.inf)
        attended = np.exp(scores - scores.max(axis=1, keepdims=True))
        attended = np.where(on, attended / attended.sum(axis=1, keepdims=True), 0)
        context = (attended[:, None] @ memory.values)[:, 0]
        return attended, context, (query, seen, raw, attended)

    @wraps(attention_backward)
    def backward(
        kind: str,
        weights: Any,
        memory: Memory,
        d_context: np.ndarray,
        saved: Any,
        gradients: Any,
        d_memory: Any,
    ) -> np.ndarray:
        query, seen, _, attended = saved
        d_values, d_keys = d_memory
        d_values += attended[:, :, None] * d_context[:, None]
        d_attended = (memory.values @ d_context[:, :, None])[:, :, 0]
        d_scores = attended * (d_attended - (attended * d_attended).sum(axis=1, keepdims=True))
        gradients["attention/score_kernel"] += rows_of(seen).T @ d_scores.reshape(-1)
        d_sum = d_scores[:, :, None] * weights["attention/score_kernel"]
        d_keys += d_sum
        d_moved = d_sum.sum(axis=1)
        gradients["attention/query_kernel"] += query.T @ d_moved
        found: np.ndarray = d_moved @ weights["attention/query_kernel"].T
        return found

    return {attention_forward: forward, attention_backward: backward}


class _Late(threading.local):
    """Passes on at each step what it was given at the step before; backwards likewise.

    Rounding is measured in several runs at once, each in a thread of its own.

    Attributes:
      saved: what the first step of the run saved for its backward pass.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._last: np.ndarray | None = None
        self._waiting: np.ndarray | None = None
        self.saved: Any = None

    def forward(self, run: Any, value: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the value of the step before; `first` at the first step of a run."""
        if run is not self._run:
            self._run, self._last, self._waiting, self.saved = run, first, None, None
        before, self._last = self._last, value
        return before  # type: ignore[return-value]

    def backward(self, d_used: np.ndarray) -> np.ndarray:
        """Return the gradient of this step's value, which the next step used."""
        waiting, self._waiting = self._waiting, d_used
        return np.zeros_like(d_used) if waiting is None else waiting


def _queries() -> Iterator[Suspect]:
    """Yield suspects in which attention gets another query."""
    late = _Late()

    @wraps(attention_forward)
    def forward(
        kind: str, weights: Any, memory: Memory, query: np.ndarray, on: np.ndarray
    ) -> Any:
        used = late.forward(memory, query, query)
        found = original(attention_forward)(kind, weights, memory, used, on)
        if late.saved is None:
            late.saved = found[2]
        return found

    @wraps(attention_backward)
    def backward(
        kind: str, weights: Any, memory: Any, d_context: Any, saved: Any, *rest: Any
    ) -> Any:
        d_used = original(attention_backward)(kind, weights, memory, d_context, saved, *rest)
        waiting = late.backward(d_used)
        # the first step uses its own query as well
        return waiting + d_used if saved is late.saved else waiting

    yield plain(
        "each query of the step before",
        FORWARD,
        {attention_forward: forward, attention_backward: backward},
        faults=("query-late",),
        where=_WEIGHTS,
        by_row=False,
    )


def _outputs() -> Iterator[Suspect]:
    """Yield suspects in the attentional output."""

    def squashed(
        name: str,
        value: Callable[[np.ndarray], np.ndarray],
        slope: Callable[[np.ndarray], np.ndarray],
        faults: tuple[str, ...],
    ) -> Suspect:
        @wraps(attentional_output)
        def output(summed: np.ndarray) -> np.ndarray:
            return value(summed)

        @wraps(attentional_output_backward)
        def backward(d_output: np.ndarray, output: np.ndarray) -> np.ndarray:
            found: np.ndarray = d_output * slope(output)
            return found

        replacements: Replacements = {
            attentional_output: output,
            attentional_output_backward: backward,
        }
        # padding is set to zero by what records it, not by the nonlinearity
        return plain(
            name, FORWARD, {**in_replicas(), **replacements}, faults=faults, where=_FED
        )

    yield squashed(
        "a sigmoid in place of the attentional output's tanh",
        sigmoid,
        lambda y: y * (1 - y),
        ("attentional-sigmoid",),
    )
    yield squashed("no tanh in the attentional output", lambda x: x, np.ones_like, ())


def _fed() -> Iterator[Suspect]:
    """Yield suspects in what is fed back into the decoder."""

    @wraps(fed_back)
    def context(found: Any) -> np.ndarray:
        array: np.ndarray = found["attention/context"]
        return array

    @wraps(fed_back_backward)
    def context_backward(d_fed: np.ndarray) -> Any:
        return np.zeros_like(d_fed), d_fed

    @wraps(fed_back)
    def nothing(found: Any) -> np.ndarray:
        return np.zeros_like(found["attention/output"])

    @wraps(fed_back_backward)
    def nothing_backward(d_fed: np.ndarray) -> Any:
        return np.zeros_like(d_fed), np.zeros_like(d_fed)

    yield plain(
        "the context fed into the decoder in place of the attentional output",
        FORWARD,
        {fed_back: context, fed_back_backward: context_backward},
        faults=("feeds-context",),
        where=_FED,
    )
    yield plain(
        "nothing fed back into the decoder",
        FORWARD,
        {fed_back: nothing, fed_back_backward: nothing_backward},
        where=_FED,
    )
    late = _Late()

    @wraps(decoder_step)
    def step(
        model: Any, weights: Any, memory: Memory, x: Any, states: Any, fed: Any, *rest: Any
    ) -> Any:
        used = late.forward(memory, fed, np.zeros_like(fed))
        return original(decoder_step)(model, weights, memory, x, states, used, *rest)

    @wraps(decoder_step_backward)
    def step_backward(*arguments: Any) -> Any:
        d_x, d_states, d_fed, found = original(decoder_step_backward)(*arguments)
        return d_x, d_states, late.backward(d_fed), found

    yield plain(
        "what is fed into the decoder one step too old",
        FORWARD,
        {decoder_step: step, decoder_step_backward: step_backward},
        faults=("context-late",),
        where=_FED,
        by_row=False,
    )
