"""Mistakes in the initial values: solved for from the first update, then tried."""

from collections.abc import Iterator, Mapping
from functools import wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import FORWARD, Arrays, Case, Change, Suspect
from parity.twins.compare.causes.views import seen_through
from parity.twins.oracle.moves import UNIT
from parity.twins.oracle.optimizers import in_precision, update_weights

_ROUNDED = 64  # unit roundoffs by which a solved weight may be off


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    if case.step:
        return
    found, kinds = {}, {}
    for name, before in _weights_before(case).items():
        spec = np.asarray(case.snapshot[f"weight/{name}"], np.float64)
        size = float(max(np.abs(before).max(), np.abs(spec).max()))
        slack = _ROUNDED * UNIT[case.spec.training.dtype] * size
        if np.abs(before - spec).max() > slack:
            kinds[name], exact = _kind(before, spec, slack)
            found[name] = exact - spec
    if not found:
        return

    def see(weights: Arrays) -> None:
        for name, by in found.items():
            weights[name] = weights[name] + by.astype(weights[name].dtype)

    @wraps(update_weights)
    def update(spec: Any, snapshot: Mapping[str, np.ndarray], *rest: Any) -> Any:
        moved = {
            f"weight/{name}": snapshot[f"weight/{name}"] + by for name, by in found.items()
        }
        return original(update_weights)(spec, {**snapshot, **moved}, *rest)

    change = Change({**seen_through(see, lambda _: None), update_weights: update})
    named = "; ".join(f"{name} {kind}" for name, kind in kinds.items())
    yield Suspect(
        "other initial values",
        f"other initial values ({named})",
        FORWARD,
        (change,),
        ("bias-from-zero", "glorot", "table-not-loaded", "half-precision-weight"),
    )


def _kind(before: np.ndarray, spec: np.ndarray, slack: float) -> tuple[str, np.ndarray]:
    """Return what initial values are, in words, and the values without the solution's error."""
    with np.errstate(over="ignore"):
        known = {
            "zero": np.zeros_like(spec),
            "rounded to float16": spec.astype(np.float16).astype(np.float64),
            "rounded to float32": spec.astype(np.float32).astype(np.float64),
        }
    for kind, values in known.items():
        if np.abs(before - values).max() <= slack:
            return kind, values
    squares = float(np.vdot(spec, spec))
    factor = float(np.vdot(spec, before)) / squares if squares else 0.0
    if np.abs(before - factor * spec).max() <= slack:
        return f"times {factor:.6g}", before
    return "of other values", before


def _weights_before(case: Case) -> dict[str, np.ndarray]:
    """Return the weights before the update, solved for from what was recorded after it."""
    spec, recorded = case.spec, case.recorded
    rate, epsilon = in_precision(spec, case.rate, spec.training.epsilon)
    found = {}
    for name in case.parameters():
        if spec.training.optimizer == "adam":
            m, v = (np.asarray(recorded[f"optimizer/{name}/{s}"], np.float64) for s in "mv")
            power1, power2 = (case.snapshot[f"optimizer/beta{k}_power"] for k in (1, 2))
            step = m / (1 - np.float64(power1))
            step = step / (np.sqrt(v / (1 - np.float64(power2))) + epsilon)
        else:
            step = np.asarray(recorded[f"clipped_gradient/{name}"], np.float64)
        found[name] = np.asarray(recorded[f"weight/{name}"], np.float64) + rate * step
    return found
