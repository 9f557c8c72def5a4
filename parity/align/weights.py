"""Weights and optimiser state of one side, in the names and layouts of the other, and back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from parity.align.kinds import Part
from parity.align.layout import Layout
from parity.align.mapping import NameMapping
from parity.align.optimizer_state import MOST_STEPS, STEPS, recorded_state
from parity.align.proposal import framework_of
from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.base.text import some_of
from parity.trace.reader import Trace, read_step

Tensors = Mapping[str, np.ndarray]

STATE = "optimizer/"  # of the names in a file that are no weights


def carried(
    trace: Trace, mapping: NameMapping, after: int | None = None
) -> dict[str, np.ndarray]:
    """Return the weights that a side had before its first step, as the other side has them.

    Of a sum (two biases that are one there), the other side's first term is all of it.

    Args:
      after: the step after which the side had them, in place of those before the first; then
        the optimiser's state is returned, too.

    Raises:
      UsageError: if the trace is of neither side, lacks that step, or a layout does not fit, or
        if the other side cannot hold the state.
    """
    side = mapping.side_of(trace)
    tensors = trace.read(trace.numbers()[0] if after is None else after)
    rung = "initial" if after is None else "weight"
    parts = mapping.parameters().values()
    start = f"{rung}/"
    own = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
    found = _in_other_terms(own, parts, side, terms=True)
    if missing := sorted({n for each in parts for n in each[1 - side].names} - found.keys()):
        lacking = some_of([start + name for name in missing])
        raise UsageError(f"{trace.folder}: the step lacks {lacking}")
    if after is not None:
        framework, facts = framework_of(trace), trace.header["facts"]
        state, steps = recorded_state(framework, facts.get("optimizer"), tensors)
        for what in sorted({what for _, what in state}):
            mine = {name: array for (name, each), array in state.items() if each == what}
            other = _in_other_terms(mine, parts, side, terms=False)
            found |= {f"{STATE}{name}/{what}": array for name, array in other.items()}
        if steps is not None:
            found[STATE + STEPS] = np.asarray(steps)
    return found


def _in_other_terms(
    own: Tensors, parts: Iterable[tuple[Part, Part]], side: int, *, terms: bool
) -> dict[str, np.ndarray]:
    """Return what a side has of each parameter, as the other has it.

    Args:
      terms: as for `Layout.apply`.
    """
    found: dict[str, np.ndarray] = {}
    for both in parts:
        mine, other = both[side], both[1 - side]
        if not all(name in own for name in mine.names):
            continue
        try:
            given = [own[name] for name in mine.names]
            shared = Layout.read(mine.layout).apply(given, terms=terms)
            back = Layout.read(other.layout).invert(shared, len(other.names), terms=terms)
        except ValueError as error:
            raise UsageError(f"{', '.join(mine.names)}: {error}") from None
        found |= zip(other.names, back, strict=True)
    return found


def write_weights(weights: Tensors, path: Path) -> None:
    """Write weights as a file of safetensors.

    Raises:
      UsageError: if it cannot be written.
    """
    write_whole(path, save({n: np.asarray(each, order="C") for n, each in weights.items()}))


@dataclass
class Given:
    """What a model and its optimiser are to hold.

    Attributes:
      weights: name -> values, of parameters and buffers.
      state: (parameter, slot) -> values.
      steps: the number of steps that the optimiser has made.
    """

    weights: dict[str, np.ndarray]
    state: dict[tuple[str, str], np.ndarray]
    steps: int = 0


def read_weights(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]],
    optional: set[str],
    slots: Mapping[str, str] | None,
) -> Given:
    """Read what `write_weights` wrote for a model.

    Args:
      shapes: name -> shape, of all parameters and buffers of the model.
      optional: those that the file need not hold: buffers.
      slots: those of the optimiser that is to take a state, as `slots_of` returns them; None:
        there must be no state.

    Raises:
      UsageError: for a file that cannot be read, or is of another model or optimiser.
    """
    given = Given({}, {})
    for name, array in read_step(Path(path)).items():
        parameter, _, what = name.removeprefix(STATE).rpartition("/")
        if not name.startswith(STATE):
            given.weights[name] = array
        elif slots is None:
            raise UsageError(f"{path}: has an optimiser's state; allowed: `load` with it")
        elif name == STATE + STEPS:
            if array.size != 1 or not 0 <= array.reshape(()) <= MOST_STEPS:
                raise UsageError(f"{path}: {name!r} is no number of steps")
            given.steps = int(array.reshape(()))
        elif what not in slots or array.shape != shapes.get(parameter):
            has = ", ".join(sorted(slots)) or "nothing"
            raise UsageError(
                f"{path}: {name!r} does not fit; allowed: {has}, with the shape of a parameter"
            )
        else:
            given.state[parameter, slots[what]] = array
    if slots and not given.state:
        raise UsageError(f"{path}: lacks an optimiser's state; allowed: `load` with none")
    found = given.weights
    if lacking := sorted(shapes.keys() - found.keys() - optional):
        raise UsageError(f"{path}: lacks {some_of(lacking)}, which the model has")
    if unknown := sorted(found.keys() - shapes.keys()):
        raise UsageError(f"{path}: has {some_of(unknown)}, which the model has not")
    for name, array in found.items():
        if array.shape != shapes[name]:
            raise UsageError(
                f"{path}: {name!r} has shape {list(array.shape)}; allowed: "
                f"{list(shapes[name])}, as in the model"
            )
    return given


def check_kept(path: str | Path, name: str, given: np.ndarray, loaded: np.ndarray) -> None:
    """Check that a model holds what the file holds, to the bit.

    Raises:
      UsageError: if its type cannot.
    """
    if not np.array_equal(given, loaded.astype(given.dtype), equal_nan=True):
        raise UsageError(
            f"{path}: {name!r} is {given.dtype}, which the model rounds; allowed: a model of "
            "that type"
        )
