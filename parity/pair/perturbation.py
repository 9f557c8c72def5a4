"""What `parity bounds` and `parity localise` ask a watched training for, which they run again.

They start it with an environment variable that names the trace and another folder for it.

With a seed, numbers are moved by a unit in the last place: the weights before the first step,
what the model is given, and every module's output and its gradient, each up or down at random,
from a generator of their own.

With a file, every module's output and its gradient in one step are replaced by those in the
file, once its own are recorded: then each module reads what it should, whatever the one before
it computed.
"""

import json
import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.reader import read_step

VARIABLE = "PARITY_PERTURB"

# A number times 1 plus this share of its type's epsilon is the next one after rounding: the
# share is between 0.6 and 1.2 units in the last place over a binade.
_SHARE = 0.6
_EPSILONS = {"float64": 2**-52, "float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10}

Draw = Callable[[tuple[int, ...]], np.ndarray]


class Perturbation:
    """Draws by which share of itself each number is moved."""

    def __init__(self, seed: int):
        self._draw = np.random.default_rng(seed)

    def of(self, kind: Any) -> Draw | None:
        """Return what draws shares, up or down, by shape; None: such numbers are not moved.

        Args:
          kind: a framework's type, in whose text NumPy's name of it stands.
        """
        epsilon = next((each for name, each in _EPSILONS.items() if name in str(kind)), None)
        return None if epsilon is None else partial(self._shares, epsilon)

    def _shares(self, epsilon: float, shape: tuple[int, ...]) -> np.ndarray:
        up = self._draw.integers(0, 2, shape, dtype=np.int8)
        return np.asarray((2.0 * up - 1) * _SHARE * epsilon)


@dataclass(frozen=True)
class Asked:
    """What is asked of a training that is watched.

    Attributes:
      folder: where its trace is written.
      perturbation: how its numbers are moved; None: they are not.
      given: name of a module's output, or of its gradient, such as "forward/fc" -> what takes
        its place.
      step: the step in which it does.
    """

    folder: Path
    perturbation: Perturbation | None = None
    given: Mapping[str, np.ndarray] = field(default_factory=dict)
    step: int = 0


def asked_for(folder: Path) -> Asked:
    """Return what is asked of the training that would write its trace to a folder.

    Raises:
      UsageError: if the variable holds something else, or its file cannot be read.
    """
    text = os.environ.get(VARIABLE, "{}")
    try:
        asked = json.loads(text)
        if not asked or Path(asked["of"]).resolve() != folder.resolve():
            return Asked(folder)
        moved = None if asked["seed"] is None else Perturbation(asked["seed"])
        to, given, step = Path(asked["to"]), asked["given"], asked["step"]
    except (LookupError, RecursionError, TypeError, ValueError):
        raise UsageError(
            f"{VARIABLE} is {shortened(text)}; allowed: what parity bounds or localise sets"
        ) from None
    return Asked(to, moved, read_step(Path(given)) if given else {}, step)


def environment(
    of: Path, to: Path, seed: int | None = None, given: str = "", step: int = 0
) -> dict[str, str]:
    """Return the environment that asks for it; see `asked_for`."""
    values = {"of": str(of.resolve()), "to": str(to), "seed": seed, "given": given}
    return {**os.environ, VARIABLE: json.dumps(values | {"step": step})}


def mapped(value: Any, is_tensor: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Return what a module was given or returned, with other tensors in it."""
    if isinstance(value, is_tensor):
        return change(value)
    if isinstance(value, Mapping):
        found = copy(value)
        for key, each in value.items():
            found[key] = mapped(each, is_tensor, change)  # type: ignore[index]
        return found
    if hasattr(value, "_asdict"):
        return type(value)(*(mapped(each, is_tensor, change) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(each, is_tensor, change) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{n: mapped(each, is_tensor, change) for n, each in vars(value).items()}
        )
    return value
