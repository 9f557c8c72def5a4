"""Mistakes inside the cells of recurrent layers: nonlinearities, biases, mixing, resetting."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original, replacing
from parity.twins.compare.causes.gates import GATES
from parity.twins.compare.causes.suspect import (
    FORWARD,
    Case,
    Change,
    Replacements,
    Suspect,
    plain,
)
from parity.twins.compare.causes.views import one_weight
from parity.twins.oracle.decoder import decoder_step, decoder_step_backward
from parity.twins.oracle.layers import sigmoid, tanh
from parity.twins.oracle.recurrent import (
    gru_step,
    gru_step_backward,
    lstm_step,
    lstm_step_backward,
)

# A nonlinearity, and its slope given its value.
Nonlinearity = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]
_TANH: Nonlinearity = (tanh, lambda y: 1 - y**2)
_SIGMOID: Nonlinearity = (sigmoid, lambda y: y * (1 - y))
_NONE: Nonlinearity = (lambda x: x, np.ones_like)


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _biases(case)
    yield from _with_scopes(case, _lstm(case) if case.cell == "lstm" else _gru())


def _biases(case: Case) -> Iterator[Suspect]:
    """Yield suspects in which biases read as other numbers than they are."""
    cell = case.cell
    biases = [f"{layer}/bias" for layer in case.layers()]

    def added(gates: str, constant: float) -> Change:
        width = {gate: constant if gate in gates else 0.0 for gate in GATES[cell]}

        def see(bias: np.ndarray) -> np.ndarray:
            by_gate = np.repeat(
                np.array([*width.values()], bias.dtype), len(bias) // len(width)
            )
            found: np.ndarray = bias + by_gate
            return found

        return Change(one_weight(biases, see, lambda d: d), value=constant)

    one = "added to the forget gate" if cell == "lstm" else "added to the gates r and z"
    fault = "forget-bias" if cell == "lstm" else "gru-gate-bias"
    gates = "f" if cell == "lstm" else "rz"
    yield Suspect(f"1 {one}", f"1 {one}", FORWARD, (added(gates, 1.0),), (fault,))
    double, same = (
        one_weight(biases, lambda b: 2 * b, back) for back in (lambda d: 2 * d, lambda d: d)
    )
    yield plain("each layer's bias added twice", FORWARD, double, same, faults=("bias-twice",))
    for gate in GATES[cell]:
        yield Suspect(
            f"a constant added to gate {gate}",
            f"{{}} added to gate {gate}",
            FORWARD,
            solve=lambda constant, gate=gate: added(gate, constant),  # type: ignore[misc]
        )


def _with_scopes(case: Case, found: Iterator[Suspect]) -> Iterator[Suspect]:
    """Yield suspects in every layer, and in the encoder's or the decoder's layers alone."""
    alone = {
        "sigmoid-candidate": "sigmoid-candidate",
        "gru-mix": "gru-mix",
    }
    for suspect in found:
        yield suspect
        if case.spec.network != "seq2seq" or suspect.solve:
            continue
        for part, scope in (("decoder", _in_decoder), ("encoder", _in_encoder)):
            faults = tuple(alone[f] for f in suspect.faults if f in alone and part == "decoder")
            name = f"{suspect.name} in the {part}"
            ways = tuple(Change(scope(way.replacements)) for way in suspect.ways)
            yield Suspect(name, name, FORWARD, ways, faults)


def _in_decoder(replacements: Replacements) -> Replacements:
    """Return replacements that act while the decoder takes a step."""

    def scoped(function: Callable) -> Callable:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            with replacing(replacements, add=True):
                return original(function)(*arguments)

        return call

    return {f: scoped(f) for f in (decoder_step, decoder_step_backward)}


def _in_encoder(replacements: Replacements) -> Replacements:
    """Return replacements that act everywhere but while the decoder takes a step."""

    def scoped(function: Callable) -> Callable:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            as_declared = {f: original(f) for f in replacements}
            with replacing(as_declared, add=True):
                return original(function)(*arguments)

        return call

    return {
        **replacements,
        **{f: scoped(f) for f in (decoder_step, decoder_step_backward)},
    }


def _lstm(case: Case) -> Iterator[Suspect]:
    both = (
        ("a sigmoid in place of the candidate's tanh", _SIGMOID, _TANH, ("sigmoid-candidate",)),
        ("no tanh in the candidate", _NONE, _TANH, ()),
        ("no tanh in the cell's output", _TANH, _NONE, ("no-output-tanh",)),
        ("a sigmoid in place of the output's tanh", _TANH, _SIGMOID, ()),
    )
    for name, candidate, output, faults in both:
        changed = _lstm_with(candidate, output)
        alone = {lstm_step: changed[lstm_step]}
        yield plain(name, FORWARD, changed, alone, faults=faults)
    for gate in "ifo":
        for derived in (True, False):
            without = "" if derived else ", which has no gradient"
            yield Suspect(
                f"a peephole of gate {gate}{without}",
                f"a peephole of weight {{}} from the cell to gate {gate}{without}",
                FORWARD,
                faults=("peephole",) if gate == "o" else (),
                solve=lambda weight, gate=gate, derived=derived: Change(  # type: ignore[misc]
                    _peephole(gate, weight, derived=derived), value=weight
                ),
                guesses=(0.0, 1e-3),
            )


def _lstm_with(candidate: Nonlinearity, output: Nonlinearity) -> Replacements:
    """Return replacements in which an LSTM has other nonlinearities."""

    @wraps(lstm_step)
    def step(a: np.ndarray, state: Any, u: np.ndarray) -> Any:
        h, c = state
        i, f, g, o = np.split(a + h @ u, 4, axis=1)
        i, f, o, g = sigmoid(i), sigmoid(f), sigmoid(o), candidate[0](g)
        new_c = f * c + i * g
        out = output[0](new_c)
        return (o * out, new_c), (i, f, g, o, h, c, out)

    @wraps(lstm_step_backward)
    def backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        i, f, g, o, h, c, out = saved
        d_h, d_c = d_state
        d_c = d_c + d_h * o * output[1](out)
        d_gates = np.concatenate(
            [
                d_c * g * i * (1 - i),
                d_c * c * f * (1 - f),
                d_c * i * candidate[1](g),
                d_h * out * o * (1 - o),
            ],
            axis=1,
        )
        return d_gates, h.T @ d_gates, (d_gates @ u.T, d_c * f)

    return {lstm_step: step, lstm_step_backward: backward}


def _peephole(gate: str, weight: float, *, derived: bool) -> Replacements:
    """Return replacements in which a gate also sees the cell, the output gate the new one."""

    @wraps(lstm_step)
    def step(a: np.ndarray, state: Any, u: np.ndarray) -> Any:
        h, c = state
        i, f, g, o = np.split(a + h @ u, 4, axis=1)
        i, f = (sigmoid(x + weight * c * (name == gate)) for name, x in (("i", i), ("f", f)))
        g = tanh(g)
        new_c = f * c + i * g
        o = sigmoid(o + weight * new_c * (gate == "o"))
        tanh_c = tanh(new_c)
        return (o * tanh_c, new_c), (i, f, g, o, h, c, tanh_c)

    @wraps(lstm_step_backward)
    def backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        i, f, g, o, h, c, tanh_c = saved
        d_h, d_c = d_state
        d_o = d_h * tanh_c * o * (1 - o)
        d_c = d_c + d_h * o * (1 - tanh_c**2) + weight * d_o * (gate == "o")
        d_i, d_f = d_c * g * i * (1 - i), d_c * c * f * (1 - f)
        d_gates = np.concatenate([d_i, d_f, d_c * i * (1 - g**2), d_o], axis=1)
        seen = {"i": d_i, "f": d_f}.get(gate, 0)
        return d_gates, h.T @ d_gates, (d_gates @ u.T, d_c * f + weight * seen)

    return {lstm_step: step, lstm_step_backward: backward} if derived else {lstm_step: step}


def _gru() -> Iterator[Suspect]:
    yield plain("z and 1 - z exchanged", FORWARD, _gru_mixed(), faults=("gru-mix",))
    yield plain(
        "the reset gate before the matrix product",
        FORWARD,
        _gru_reset_first(),
        faults=("gru-reset-before",),
    )
    yield Suspect(
        "a second bias in the recurrent product",
        "a second bias of {} in the recurrent product",
        FORWARD,
        faults=("gru-second-bias",),
        solve=lambda bias: Change(_gru_second_bias(bias), value=bias),
        guesses=(0.0, 0.01),
    )


def _gru_mixed() -> Replacements:
    @wraps(gru_step)
    def step(a: np.ndarray, state: Any, u: np.ndarray) -> Any:
        (h,) = state
        _, saved = original(gru_step)(a, state, u)
        _, z, c, _, _ = saved
        return ((1 - z) * h + z * c,), saved

    @wraps(gru_step_backward)
    def backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        r, z, c, u_c, h = saved
        (d_h,) = d_state
        d_c = d_h * z * (1 - c**2)
        d_z = d_h * (c - h) * z * (1 - z)
        d_r = d_c * u_c * r * (1 - r)
        d_product = np.concatenate([d_r, d_z, d_c * r], axis=1)
        d_a = np.concatenate([d_r, d_z, d_c], axis=1)
        return d_a, h.T @ d_product, (d_h * (1 - z) + d_product @ u.T,)

    return {gru_step: step, gru_step_backward: backward}


def _gru_reset_first() -> Replacements:
    @wraps(gru_step)
    def step(a: np.ndarray, state: Any, u: np.ndarray) -> Any:
        (h,) = state
        width = u.shape[0]
        r, z = np.split(sigmoid(a[:, : 2 * width] + h @ u[:, : 2 * width]), 2, axis=1)
        c = tanh(a[:, 2 * width :] + (r * h) @ u[:, 2 * width :])
        return (z * h + (1 - z) * c,), (r, z, c, h)

    @wraps(gru_step_backward)
    def backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        r, z, c, h = saved
        (d_h,) = d_state
        width = u.shape[0]
        d_c = d_h * (1 - z) * (1 - c**2)
        d_z = d_h * (h - c) * z * (1 - z)
        d_reset = d_c @ u[:, 2 * width :].T
        d_r = d_reset * h * r * (1 - r)
        d_gates = np.concatenate([d_r, d_z], axis=1)
        d_u = np.concatenate([h.T @ d_gates, (r * h).T @ d_c], axis=1)
        d_before = d_h * z + d_gates @ u[:, : 2 * width].T + d_reset * r
        return np.concatenate([d_gates, d_c], axis=1), d_u, (d_before,)

    return {gru_step: step, gru_step_backward: backward}


def _gru_second_bias(bias: float) -> Replacements:
    @wraps(gru_step)
    def step(a: np.ndarray, state: Any, u: np.ndarray) -> Any:
        (h,) = state
        width = u.shape[0]
        product = h @ u + bias
        r, z = np.split(sigmoid(a[:, : 2 * width] + product[:, : 2 * width]), 2, axis=1)
        u_c = product[:, 2 * width :]
        c = tanh(a[:, 2 * width :] + r * u_c)
        return (z * h + (1 - z) * c,), (r, z, c, u_c, h)

    return {gru_step: step}
