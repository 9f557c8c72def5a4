"""Mistakes in the biases of recurrent layers."""

from collections.abc import Iterator

import numpy as np

from parity.twins.compare.causes.gates import GATES
from parity.twins.compare.causes.suspect import (
    FORWARD,
    Change,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.compare.causes.views import one_weight


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _biases(case)


def _biases(case: WrongStep) -> Iterator[Suspect]:
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
    yield suspect(
        "each layer's bias added twice", FORWARD, double, same, faults=("bias-twice",)
    )
    for gate in GATES[cell]:
        yield Suspect(
            f"a constant added to gate {gate}",
            f"{{}} added to gate {gate}",
            FORWARD,
            solve=lambda constant, gate=gate: added(gate, constant),  # type: ignore[misc]
        )
