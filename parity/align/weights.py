"""Initial weights of one side, in the names and layouts of the other, and back."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from parity.align.layout import Layout
from parity.align.mapping import NameMapping
from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.base.text import some_of
from parity.trace.reader import Trace, read_step

Tensors = Mapping[str, np.ndarray]


def carried(trace: Trace, mapping: NameMapping) -> dict[str, np.ndarray]:
    """Return the weights that a side had before its first step, as the other side has them.

    Of a sum (two biases that are one there), the other side's first term is all of it.

    Raises:
      UsageError: if the trace is of neither side, or a layout does not fit.
    """
    side = mapping.side_of(trace)
    tensors = trace.read(trace.numbers()[0])
    found: dict[str, np.ndarray] = {}
    for name, parts in mapping.parameters().items():
        own, other = parts[side], parts[1 - side]
        try:
            given = [tensors[f"initial/{each}"] for each in own.names]
            shared = Layout.read(own.layout).apply(given)
            back = Layout.read(other.layout).invert(shared, len(other.names))
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
        found |= zip(other.names, back, strict=True)
    return found


def write_weights(weights: Tensors, path: Path) -> None:
    """Write weights as a file of safetensors.

    Raises:
      UsageError: if it cannot be written.
    """
    write_whole(path, save({n: np.asarray(each, order="C") for n, each in weights.items()}))


def read_weights(
    path: str | Path, shapes: Mapping[str, tuple[int, ...]], optional: set[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, values) of the parameters and buffers of a model.

    Args:
      shapes: name -> shape, of all that the model has.
      optional: those that the file need not hold: buffers.

    Raises:
      UsageError: for a file that cannot be read, or is of another model.
    """
    found = read_step(Path(path))
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
    yield from found.items()


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
