"""Mistakes in the backward pass alone, and in the sum of gradients over replicas."""

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.base.special_tokens import PAIR_UNKNOWN_ID, TEXT_UNKNOWN_ID
from parity.twins.compare.causes.gates import GATES
from parity.twins.compare.causes.suspect import (
    GRADIENT,
    Arrays,
    Case,
    Change,
    Replacements,
    Suspect,
    plain,
)
from parity.twins.compare.causes.views import in_replicas, returned, summed
from parity.twins.oracle.attention import memory_backward
from parity.twins.oracle.decoder import decoder_start_backward
from parity.twins.oracle.layers import look_up_backward
from parity.twins.oracle.optimizers import clip_by_global_norm
from parity.twins.oracle.recurrent import (
    gru_step_backward,
    lstm_step_backward,
    rnn_backward,
)

# faults in which the gradient of replica 0 is used in place of the sum: of all parameters, of
# one
_FIRST_ALONE = ("nothing-reduced", "nothing-reduced", "nothing-reduced")
_ONE_OF_FIRST = (
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
    "one-gradient-not-reduced",
)


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _cells(case)
    yield from _cuts(case)
    yield from _tables(case)
    yield from _sums(case)


def _cells(case: Case) -> Iterator[Suspect]:
    """Yield suspects in the backward pass of a cell."""
    if case.cell == "lstm":
        yield plain(
            "no derivative of the output's tanh",
            GRADIENT,
            {lstm_step_backward: _without_tanh()},
            faults=("tanh-derivative",),
        )
        yield plain(
            "the gradients of f and g taken for each other's",
            GRADIENT,
            {lstm_step_backward: _in_other_order()},
            faults=("block-lstm-v2",),
        )
    backward = {"lstm": lstm_step_backward, "gru": gru_step_backward}[case.cell]
    for words, cut in (
        ("h", lambda d: (np.zeros_like(d[0]), *d[1:])),
        ("h and c", lambda d: tuple(map(np.zeros_like, d))),
        ("c", lambda d: (d[0], *map(np.zeros_like, d[1:]))),
    ):
        if case.cell == "gru" and words != "h":
            continue

        @wraps(backward)
        def cut_off(d_state: Any, saved: Any, u: Any, cut: Any = cut) -> Any:
            d_a, d_u, d_before = original(backward)(d_state, saved, u)
            return d_a, d_u, cut(d_before)

        yield plain(
            f"no gradient of {words} from step to step",
            GRADIENT,
            {backward: cut_off},
            faults=("cut-in-time",) if words == "h" else (),
        )
    for place, gate in enumerate(GATES[case.cell]):
        yield plain(
            f"no gradient of gate {gate} to a layer's inputs",
            GRADIENT,
            {rnn_backward: _without_gate(place, len(GATES[case.cell]))},
            faults=("gradient-of-inputs",),
        )


def _without_tanh() -> Callable:
    @wraps(lstm_step_backward)
    def backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        o, tanh_c = saved[3], saved[6]
        d_h, d_c = d_state
        # what the derivative would take away comes back through c
        return original(lstm_step_backward)((d_h, d_c + d_h * o * tanh_c**2), saved, u)

    return backward


def _in_other_order() -> Callable:
    """Return the gradient of BlockLSTM (i, c, f, o), applied to the gates of BlockLSTMV2."""

    @wraps(lstm_step_backward)
    def backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        d_a, _, (_, d_c) = original(lstm_step_backward)(d_state, saved, u)
        d_i, d_f, d_g, d_o = np.split(d_a, 4, axis=1)
        d_a = np.concatenate([d_i, d_g, d_f, d_o], axis=1)
        return d_a, saved[4].T @ d_a, (d_a @ u.T, d_c)

    return backward


def _without_gate(place: int, gates: int) -> Callable:
    @wraps(rnn_backward)
    def backward(
        cell: str,
        d_hidden: Any,
        d_state: Any,
        inputs: Any,
        real: Any,
        saved: Any,
        w: Any,
        u: Any,
    ) -> Any:
        width = w.shape[1] // gates
        seen = w.copy()
        seen[:, place * width : (place + 1) * width] = 0
        return original(rnn_backward)(cell, d_hidden, d_state, inputs, real, saved, seen, u)

    return backward


def _cuts(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which no gradient flows from the decoder into a part of the encoder."""
    if case.spec.network != "seq2seq":
        return

    @wraps(decoder_start_backward)
    def cut(d_states: Any) -> Any:
        return [tuple(np.zeros_like(part) for part in each) for each in d_states]

    yield plain(
        "no gradient from the decoder's first state",
        GRADIENT,
        {decoder_start_backward: cut},
        faults=("encoder-cut-off",),
    )
    if case.spec.model.attention == "dot":
        return

    @wraps(memory_backward)
    def without_keys(
        kind: str, weights: Any, memory: Any, d_memory: Any, gradients: Any
    ) -> Any:
        original(memory_backward)(kind, weights, memory, d_memory, gradients)
        return d_memory[0]

    @wraps(memory_backward)
    def without_values(
        kind: str, weights: Any, memory: Any, d_memory: Any, gradients: Any
    ) -> Any:
        found = original(memory_backward)(kind, weights, memory, d_memory, gradients)
        return found - d_memory[0]

    yield plain(
        "no gradient from the attention's keys",
        GRADIENT,
        {memory_backward: without_keys},
        faults=("memory-cut-off",),
    )
    yield plain(
        "no gradient from the attention's context",
        GRADIENT,
        {memory_backward: without_values},
    )


def _tables(case: Case) -> Iterator[Suspect]:
    """Yield suspects in the gradients of embeddings."""

    @wraps(look_up_backward)
    def last_wins(gradient: np.ndarray, tokens: np.ndarray, d_rows: np.ndarray) -> None:
        # in the order of time, as the sides have their rows
        gradient[tokens.T.reshape(-1)] = d_rows.swapaxes(0, 1).reshape(-1, d_rows.shape[-1])

    yield plain(
        "of a token that occurs twice, one occurrence kept in the embedding's gradient",
        GRADIENT,
        {**in_replicas(), look_up_backward: last_wins},
        {look_up_backward: last_wins},
        faults=("rows-overwrite",),
        where="gradient/*table",
    )
    unknown = PAIR_UNKNOWN_ID if case.spec.network == "seq2seq" else TEXT_UNKNOWN_ID
    for token in range(4):

        @wraps(look_up_backward)
        def without(
            gradient: np.ndarray, tokens: np.ndarray, d_rows: np.ndarray, token: int = token
        ) -> None:
            original(look_up_backward)(gradient, tokens, d_rows)
            gradient[token] = 0

        yield plain(
            f"no gradient in row {token} of the embedding",
            GRADIENT,
            {look_up_backward: without},
            faults=("unknown-not-trained",) if token == unknown else (),
            where="gradient/*table",
        )


def _sums(case: Case) -> Iterator[Suspect]:
    """Yield suspects in how the replicas' gradients become one."""
    count = len(case.sizes)

    def times(factor: float) -> Replacements:
        return returned(lambda a, gradients: (a, {n: g * factor for n, g in gradients.items()}))

    for name in case.parameters():
        zero = returned(partial(_without_gradient, name))
        yield plain(f"no gradient of {name}", GRADIENT, zero, where=f"gradient/{name}")
    yield from _some(case)
    if count == 1:
        yield _solved_factor(times, 1.0)
        return
    yield plain(
        "the replicas' gradients averaged, not summed",
        GRADIENT,
        times(1 / count),
        faults=(
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
            "gradient-averaged",
        ),
    )
    yield plain(
        "the gradient multiplied by the number of replicas",
        GRADIENT,
        times(count),
        faults=("gradient-times-replicas", "gradient-times-replicas"),
    )
    for replica in range(count):
        alone = in_replicas(combine=lambda parts, r=replica: parts[min(r, len(parts) - 1)])  # type: ignore[misc]
        yield plain(
            f"the gradient of replica {replica} alone",
            GRADIENT,
            alone,
            faults=_FIRST_ALONE if replica == 0 else (),
            apart=True,
        )
        yield plain(
            f"the gradient of replica {replica} left out of the sum",
            GRADIENT,
            in_replicas(combine=partial(_all_but, replica)),
            faults=("last-replica-left-out", "last-replica-left-out") if replica == 2 else (),
        )
        for name in case.parameters():

            def but_one(
                parts: list[Arrays], name: str = name, replica: int = replica
            ) -> Arrays:
                return summed(parts) | {name: parts[min(replica, len(parts) - 1)][name]}

            yield plain(
                f"the gradient of {name} of replica {replica} alone",
                GRADIENT,
                in_replicas(combine=but_one),
                faults=_ONE_OF_FIRST if not replica else (),
                where=f"gradient/{name}",
                apart=True,
            )
    limit = case.spec.training.clip_norm
    for number, words in ((limit, "the limit"), (limit / count, "its share of the limit")):

        def clipped(parts: list[Arrays], number: float = number) -> Arrays:
            return summed([original(clip_by_global_norm)(part, number)[0] for part in parts])

        yield plain(
            f"each replica's gradient clipped to {words} ({number:g}) before the sum",
            GRADIENT,
            in_replicas(combine=clipped),
            faults=(
                "clipped-per-replica",
                "clipped-per-replica",
                "clipped-per-replica",
                "clipped-per-replica",
            ),
        )
    yield from _exchanged()
    yield _solved_factor(times, 1.0)


def _exchanged() -> Iterator[Suspect]:
    """Yield suspects in what the replicas send to each other, and what they do with it."""
    yield plain(
        "the gradient of replica 0 added to the sum once more",
        GRADIENT,
        in_replicas(combine=lambda parts: summed([*parts, parts[0]])),
        faults=("process-own-gradient-twice",),
        apart=True,
    )
    yield plain(
        "the replicas' gradients rounded to half precision before the sum",
        GRADIENT,
        in_replicas(combine=lambda parts: summed([*map(_in_half, parts)])),
        faults=("process-half-precision",),
    )


def _in_half(gradients: Arrays) -> Arrays:
    return {name: g.astype(np.float16).astype(g.dtype) for name, g in gradients.items()}


def _some(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which the gradients of some layers are scaled, and the others right."""
    wrong = [name for name in case.parameters() if f"gradient/{name}" in case.wrong]
    if not wrong or len(wrong) == len(case.parameters()):
        return
    listed = ", ".join(wrong)

    def times(factor: float) -> Replacements:
        return returned(
            lambda a, gradients: (a, gradients | {n: factor * gradients[n] for n in wrong})
        )

    if len(wrong) > 1:  # there is a suspect for each that is zero alone
        yield plain(
            f"no gradient of {listed}", GRADIENT, times(0), faults=("nothing-sent-back",)
        )
    yield plain(
        f"the gradient of {listed} doubled", GRADIENT, times(2), faults=("sent-back-twice",)
    )


def _all_but(replica: int, parts: list[Arrays]) -> Arrays:
    """Return the sum over the replicas that have rows, but for one."""
    return summed([part for place, part in enumerate(parts) if place != replica] or parts)


def _without_gradient(name: str, activations: Arrays, gradients: Arrays) -> tuple:
    return activations, gradients | {name: np.zeros_like(gradients[name])}


def _solved_factor(times: Callable[[float], Replacements], start: float) -> Suspect:
    return Suspect(
        "the gradient multiplied by a factor",
        "the gradient multiplied by {}",
        GRADIENT,
        faults=("workers-averaged",),
        solve=lambda factor: Change(times(factor), value=factor),
        guesses=(start, start / 2),
    )
