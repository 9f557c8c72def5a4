"""What optimisers keep for each parameter, by one name in all frameworks.

Of Adam these are `mean` and `square`, of SGD `momentum`, of Adagrad `sum`; and the number of
steps.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.text import some_of

Tensors = Mapping[str, np.ndarray]

# (framework, optimiser) -> what it keeps -> what it calls that
_SLOTS = {
    ("torch", "adam"): {"mean": "exp_avg", "square": "exp_avg_sq"},
    ("paddle", "adam"): {"mean": "moment1", "square": "moment2"},
    ("keras", "adam"): {"mean": "momentum", "square": "velocity"},
    ("jax", "optax"): {"mean": "mu", "square": "nu", "momentum": "trace"},
    ("torch", "sgd"): {"momentum": "momentum_buffer"},
    ("paddle", "momentum"): {"momentum": "velocity"},
    ("keras", "sgd"): {"momentum": "momentum"},  # times the rate, with the other sign
    ("tensorflow", "adam"): {"mean": "m", "square": "v"},
    ("tensorflow", "momentum"): {"momentum": "accum"},
    ("tensorflow", "rmsprop"): {"square": "ms"},
    ("tensorflow", "adagrad"): {"sum": "accum"},
    ("torch", "rmsprop"): {"square": "square_avg"},
    ("paddle", "rmsprop"): {"square": "mean_square"},
    ("keras", "rmsprop"): {"square": "velocity"},
    ("torch", "adagrad"): {"sum": "sum"},
    ("paddle", "adagrad"): {"sum": "moment"},
    ("keras", "adagrad"): {"sum": "accumulator"},
}
HOLDS_RATE = ("keras", "sgd")
# (framework, optimiser) -> what it keeps that others do not, or in another form
ALONE = {HOLDS_RATE: ("momentum",), ("paddle", "rmsprop"): ("mean_grad", "momentum")}
STEPS = "steps"
# What holds the number of steps, in forms of their own, and the rate.
_COUNTERS = (
    *("step", "beta1_pow_acc", "beta2_pow_acc"),
    *("iteration", "count", "learning_rate"),
)
MOST_STEPS = 10**6


def _kind(name: str) -> str:
    return "adam" if name.lower().startswith("adam") else name.lower()


def slots_of(framework: str, kind: str) -> dict[str, str]:
    """Return what an optimiser of a class keeps -> what the framework calls that slot."""
    return _SLOTS.get((framework, "optax" if framework == "jax" else _kind(kind)), {})


def recorded_state(
    framework: str, optimizer: Any, tensors: Tensors
) -> tuple[dict[tuple[str, str], np.ndarray], int | None]:
    """Return what an optimiser keeps after a step, and how many steps it has made.

    Args:
      optimizer: its kind and settings, as in the header.
      tensors: those of the recorded step.

    Returns:
      (parameter, what) -> array; and the steps, None where it does not count them.

    Raises:
      UsageError: for a slot that no other framework has, or steps that cannot be told.
    """
    match optimizer:
        case {"kind": str(kind), "settings": dict(settings)}:
            pass
        case _:
            raise UsageError("the trace does not say what its optimiser is")
    meanings = {slot: each for each, slot in slots_of(framework, kind).items()}
    found, counters = {}, dict[str, list[Any]]()
    for full, array in tensors.items():
        rung, _, rest = full.partition("/")
        name, _, slot = rest.rpartition("/")
        slot = slot.partition("#")[0] if slot.startswith(_COUNTERS) else slot
        if rung == "optimizer" and slot in meanings:
            found[name, meanings[slot]] = array
        elif rung == "optimizer" and slot in _COUNTERS:
            counters.setdefault(slot, []).extend(array.reshape(-1)[:1])
        elif rung == "optimizer":
            raise UsageError(
                f"{kind} keeps {rest!r}; allowed: {some_of(sorted(meanings)) or 'none'}, which "
                "other frameworks have, too"
            )
    if (framework, _kind(kind)) == HOLDS_RATE and found:
        factor = velocity_of(1.0, float(counters.get("learning_rate", [np.nan])[0]))
        found = {key: array / array.dtype.type(factor) for key, array in found.items()}
    return found, _steps(kind, settings, counters)


def velocity_of(momentum: Any, rate: float) -> Any:
    """Return the velocity of Keras's SGD: the momentum of others times the rate, negative.

    Raises:
      UsageError: for a rate by which a number cannot be multiplied and divided to the bit.
    """
    if np.frexp(rate)[0] != 0.5:
        raise UsageError(
            f"the velocity of Keras's SGD holds the rate, {rate:g}, and is not carried to the "
            "bit; allowed: a rate that is a power of two, such as 0.0078125"
        )
    return -rate * momentum


def _steps(
    kind: str, settings: Mapping[str, Any], counters: Mapping[str, list[Any]]
) -> int | None:
    order = ("step", "count", "iteration", "beta2_pow_acc")
    slot = next((each for each in order if each in counters), "")
    values = {float(each) for each in counters.get(slot, ())}
    if not values:
        return None
    first, beta = counters[slot][0], settings.get("beta2")
    steps = first
    if slot == "beta2_pow_acc" and isinstance(beta, float):
        steps, now = 0, first.dtype.type(beta)
        while now > first and steps <= MOST_STEPS:
            steps, now = steps + 1, now * first.dtype.type(beta)
        steps = steps if now == first != 0 else -1
    if len(values) > 1 or not 0 <= steps <= MOST_STEPS:
        told = some_of(sorted(map(str, values)))
        raise UsageError(f"{slot} of {kind} is {told}, from which its steps cannot be told")
    return int(steps)


def power_after(steps: int, beta: float, dtype: np.dtype) -> np.ndarray:
    """Return what Paddle's Adam keeps of a beta after some steps: the power for the next."""
    return np.multiply.accumulate(np.full(steps + 1, beta, dtype))[-1:]
