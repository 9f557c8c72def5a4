"""Bounds without an oracle: how far rounding alone takes a training from itself.

A side is trained again, several times, with every number moved by a unit in the last place. A
tensor of the other side may be as far from this one as the farthest of these, times 16: aligned
pairs of four networks needed up to 8.6 times (an LSTM, a GRU, a transformer encoder, ResNet-18;
PyTorch and Paddle, float32), and mistakes planted in them were from 26 times upwards.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import read_file, reason, write_whole
from parity.base.text import parse_json
from parity.compare.tensors import compare_tensor, flips
from parity.trace.reader import Trace
from parity.trace.rungs import RUNGS, rung_of
from parity.trace.tolerances import Tolerance

FORMAT = 1
TIMES = 16.0
_ANY = 2.0  # the largest distance that there is
_NOISE = 0.1  # the distance of every run from which a gradient is nothing but rounding

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MeasuredBounds:
    """How far runs with moved numbers were from a trace.

    Attributes:
      side: what reports call the side that was run again.
      dtype: its precision.
      runs: the number of runs with moved numbers.
      steps: the steps of the trace.
      tensors: name -> the largest relative distance in each of the steps; None where the
        tensor was not recorded.
      noise: the gradients that are nothing but rounding, zero in exact arithmetic.
      kinks: name of an output -> the largest number of elements in any step of any run that
        were zero on one side alone.
    """

    side: str
    dtype: str
    runs: int
    steps: Sequence[int]
    tensors: Mapping[str, Sequence[float | None]]
    noise: Sequence[str]
    kinks: Mapping[str, int]

    def at(self, name: str, step: int) -> Tolerance:
        """Return the bound of a tensor that was measured.

        Raises:
          UsageError: for a step in which it was not.
        """
        found = dict(zip(self.steps, self.tensors[name], strict=True)).get(step)
        if found is None:
            raise UsageError(
                f"bounds: {name} was not measured in step {step}; allowed: steps of the trace "
                "that `parity bounds` was given"
            )
        if name in self.noise:
            return Tolerance(0.0, _ANY)
        unit = float(np.finfo(self.dtype).eps) / 2
        return Tolerance(0.0, TIMES * max(found, unit))

    def renamed(self, sources: Mapping[str, Iterable[str]]) -> "MeasuredBounds":
        """Return the bounds of tensors by other names.

        Args:
          sources: the other name -> the names of the tensors that it is made of.
        """
        tensors: dict[str, list[float | None]] = {}
        noise = []
        for name, given in sources.items():
            known = [each for each in given if each in self.tensors]
            if known:
                columns = zip(*(self.tensors[each] for each in known), strict=True)
                tensors[name] = [
                    max((each for each in column if each is not None), default=None)
                    for column in columns
                ]
                noise += [name] * all(each in self.noise for each in known)
        return replace(self, tensors=tensors, noise=noise)

    def write(self, path: Path) -> None:
        """Write the bounds as JSON.

        Raises:
          UsageError: if the file cannot be written.
        """
        values = {"format": FORMAT, **vars(self), "times": TIMES}
        write_whole(path, (json.dumps(values) + "\n").encode())


def read_bounds(path: Path) -> MeasuredBounds:
    """Read what `MeasuredBounds.write` wrote.

    Raises:
      UsageError: if it cannot be read.
    """
    try:
        values = parse_json(read_file(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is no JSON: {error}") from None
    names = list(MeasuredBounds.__dataclass_fields__)
    try:
        if _is_right(values):
            return MeasuredBounds(**{name: values[name] for name in names})
    except (AttributeError, KeyError, OverflowError, TypeError):
        pass
    raise UsageError(f"{path}: holds no bounds; allowed: what parity bounds writes")


def _is_right(values: Any) -> bool:
    steps, tensors = values["steps"], values["tensors"]
    return (
        values["format"] == FORMAT
        and values["dtype"] in ("float64", "float32")
        and isinstance(values["side"], str)
        and values["side"].isprintable()
        and isinstance(values["kinks"], dict)
        and isinstance(values["noise"], list)
        and all(type(each) is int for each in steps)
        and all(name.split("/", 1)[0] in RUNGS for name in tensors)
        and all(len(each) == len(steps) for each in tensors.values())
        and all(_is_distance(each) for column in tensors.values() for each in column)
    )


def _is_distance(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= _ANY)


def measure(trace: Trace, plain: Trace, runs: Sequence[Trace]) -> MeasuredBounds:
    """Return how far some runs are from a trace.

    Args:
      plain: a run in which nothing was moved; it may be elsewhere where a training is not
        deterministic.
      runs: those in which every number was moved.

    Raises:
      UsageError: for a run that recorded other steps, tensors or shapes.
    """
    numbers = trace.numbers()
    found: dict[str, list[float | None]] = {}
    least: dict[str, float] = {}
    kinks: dict[str, int] = {}
    for run in (plain, *runs):
        if not numbers or run.numbers() != numbers:
            raise UsageError(f"{trace.folder}: a run again recorded other steps, or none")
    for place, step in enumerate(numbers):
        tensors = trace.read(step)
        for run in (plain, *runs):
            moved = run.read(step)
            for name, array in tensors.items():
                if rung_of(name) == "batch":
                    continue  # what was read is the same, to the bit
                distance = _distance(trace, step, name, array, moved)
                distances = found.setdefault(name, [None] * len(numbers))
                distances[place] = max(distance, distances[place] or 0.0)
                if run is not plain:
                    least[name] = min(distance, least.get(name, distance))
                if name.startswith("forward/") and (count := flips(array, moved[name])):
                    kinks[name] = max(count, kinks.get(name, 0))
    noise = [n for n, each in least.items() if each >= _NOISE and rung_of(n) == "gradient"]
    dtype, side = str(trace.header["dtype"]), trace.side.framework
    return MeasuredBounds(side, dtype, len(runs), numbers, found, noise, kinks)


def _distance(trace: Trace, step: int, name: str, array: np.ndarray, moved: Tensors) -> float:
    if name not in moved or moved[name].shape != array.shape:
        raise UsageError(f"{trace.folder}: a run again recorded no such {name} in step {step}")
    distance, _ = compare_tensor(array, moved[name], ("", ""), step, name, None)
    if not isfinite(distance.relative):
        raise UsageError(f"{trace.folder}: {name} is not finite in step {step} of a run again")
    return distance.relative
