"""A suspect: one mistake that a side may have made, as a change of the oracle."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, learning_rate
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.side import TrainedSide

Arrays = dict[str, np.ndarray]
Tensors = Mapping[str, np.ndarray]
Replacements = Mapping[Callable, Callable]

FORWARD = ("forward",)
LOSS = ("loss",)
GRADIENT = ("gradient",)
CLIPPING = ("gradient_norm", "clipped_gradient")
OPTIMIZER = ("optimizer",)
UPDATE = ("weight",)
SCHEDULE = ("batch",)

# run's precision -> the narrower ones that a side may have rounded to
NARROWER = {"float64": ("float32", "float16", "bfloat16"), "float32": ("float16", "bfloat16")}


@dataclass(frozen=True)
class WrongStep:
    """One step of one side that differs from the oracle's, and what it started from.

    Attributes:
      spec: what was trained.
      step: the number of the step.
      per_epoch: the number of steps of an epoch.
      snapshot: weights and optimizer state before the step.
      state: the recurrent state that the step should start from.
      left: the recurrent state that the step before left; None at the first step.
      inputs: the inputs of the step.
      recorded: what the side recorded of the step.
      expected: what the oracle computes of it, each rung from the recorded rung below.
      first: the first tensor that is wrong.
      wrong: all tensors that are wrong.
      read: the weights that the gradient was computed with, where they are not those before the
        step, as in an asynchronous training.
      side: the side that recorded it.
      is_first: whether it is the first wrong step; others show whether a cause holds there.
      before: the weights before the last step, and that step's rate; None at the first.
      place: its place among the recorded steps, which in an asynchronous training is another
        number than its own.
    """

    spec: Spec
    step: int
    per_epoch: int
    snapshot: Tensors
    state: Tensors
    left: Tensors | None
    inputs: StepInputs
    recorded: Tensors
    expected: Tensors
    first: str
    wrong: tuple[str, ...]
    read: Tensors | None = None
    side: TrainedSide = field(default_factory=lambda: TrainedSide(""))
    is_first: bool = True
    before: tuple[Tensors, float] | None = None
    place: int = 0

    @property
    def activations(self) -> Collection[str]:
        """Return the names of the network's activations."""
        return NETWORKS[self.spec.network].activations(self.spec.model)

    @property
    def sizes(self) -> list[int]:
        """Return the number of rows of each replica."""
        return [int(size) for size in self.recorded["batch/sizes"]]

    @property
    def rate(self) -> float:
        """Return the learning rate that the schedule has for the step."""
        return learning_rate(self.spec.training, self.step // self.per_epoch)

    @property
    def kind(self) -> str:
        """Return the first part of the name of the first wrong tensor, such as "forward"."""
        return self.first.split("/")[0]

    def follows_drift(self, first: "WrongStep") -> bool:
        """Return whether it comes after a wrong step that let the replicas drift apart."""
        distances = (a for n, a in first.recorded.items() if n.startswith("replicas/weight"))
        return self.place > first.place and any(map(np.any, distances))

    def parameters(self, ending: str = "") -> list[str]:
        """Return the names of the parameters, those that end so."""
        names = (name.removeprefix("weight/") for name in self.snapshot if "weight/" in name)
        return [name for name in names if name.endswith(ending)]

    def layers(self) -> list[str]:
        """Return the paths of the recurrent layers, each direction by itself."""
        return [
            name.removesuffix("/recurrent_kernel")
            for name in self.parameters("/recurrent_kernel")
        ]

    @property
    def cell(self) -> str:
        """Return the kind of the recurrent cells: "lstm" or "gru"."""
        return getattr(self.spec.model, "cell", "lstm")

    def factors(self, again: str = "") -> dict[float, str]:
        """Return what a mistake may multiply by, and each in words: by what, and why so many.

        Args:
          again: what also doubles, such as "summed twice".
        """
        # a worker's step has its own rows alone
        replicas, processes = max(len(self.sizes), self.side.replicas), self.side.processes
        of_side = {
            "replicas": replicas,
            "micro-batches": self.side.micro_batches,
            "processes": processes,
            "replicas in a process": replicas // processes if processes > 1 else 1,
        }
        found: dict[float, str] = {}
        for number in sorted({count for count in of_side.values() if count > 1}):
            few = [words for words, count in of_side.items() if count == number]
            by = f"by {number}, the number of {', or of '.join(few)}"
            twice = f", or {again}" if again and number == 2 else ""
            found |= {1 / number: f"divided {by}", number: f"multiplied {by}{twice}"}
        return found

    @property
    def carries(self) -> bool:
        """Return whether the network passes a state from batch to batch."""
        return bool(NETWORKS[self.spec.network].state(self.spec.model))


@dataclass(frozen=True)
class Change:
    """One way of making a mistake.

    Attributes:
      replacements: function of the oracle -> what is called in its place.
      rate: the learning rate in place of the schedule's; None for the schedule's.
      value: the number solved for, in a mistake that has one.
    """

    replacements: Replacements
    rate: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class Suspect:
    """One mistake that a side may have made.

    Attributes:
      name: a short name, such as "gates i and f exchanged".
      sentence: the mistake as the end of "with ...": "gates i and f exchanged". A solved number
        stands where it has {}.
      starts: the kinds of tensors that the mistake makes wrong first.
      ways: the ways of making it: the derivative may follow the change or not.
      faults: the faults of the catalogue that it stands for.
      where: a shell pattern for the first wrong tensor.
      by_row: whether the mistake treats each row of a batch by itself, so that a single row
        shows whether it explains the forward pass.
      solve: returns the way of making the mistake with a given number, where the record decides
        the number.
      guesses: the numbers from which the solution starts, that without the mistake first: the
        solved one must be told from it.
      apart: whether the mistake lets the replicas' weights drift apart.
    """

    name: str
    sentence: str
    starts: tuple[str, ...]
    ways: tuple[Change, ...] = ()
    faults: tuple[str, ...] = ()
    where: str = "*"
    by_row: bool = True
    solve: Callable[[float], Change] | None = None
    guesses: tuple[float, float] = (0.0, 1.0)
    apart: bool = False


def suspect(
    name: str,
    *ways: Replacements | Change,
    starts: tuple[str, ...] = (),
    sentence: str = "",
    faults: str = "",
    **values: Any,
) -> Suspect:
    """Return a suspect whose sentence is its name, unless one is given.

    Args:
      ways: the replacements of each way of making the mistake.
      starts: as of a `Suspect`; the table fills in those of the rung.
      faults: the faults of the catalogue that it stands for, between spaces.
      **values: other fields of the suspect.
    """
    changes = tuple(way if isinstance(way, Change) else Change(way) for way in ways)
    return Suspect(name, sentence or name, starts, changes, tuple(faults.split()), **values)


def solved(
    sentence: str,
    make: Callable[[float], Replacements],
    guesses: tuple[float, float],
    *,
    name: str = "",
    **values: Any,
) -> Suspect:
    """Return a suspect with a number that the record decides.

    Args:
      sentence: has {} where the number stands.
      make: returns the replacements of the mistake with a given number.
      guesses: the numbers from which the solution starts.
      name: what the sentence says without the number; "a factor" in its place if not given.
      **values: as for `suspect`.
    """

    def solve(number: float) -> Change:
        return Change(make(number), value=number)

    name = name or sentence.replace("{}", "a factor")
    return suspect(name, sentence=sentence, solve=solve, guesses=guesses, **values)


@dataclass(frozen=True)
class Confirmed:
    """A mistake with which the oracle reproduces what a side recorded of every step.

    Attributes:
      suspect: the suspect's name.
      sentence: the mistake, as the end of "with ...".
      faults: the faults of the catalogue that the suspect stands for.
      distance: the largest distance between oracle and side in the tensors that were wrong,
        each divided by the largest magnitude in its tensor.
      sides: the labels of the sides that are reproduced.
      steps: the first and the last step that were tried, and are reproduced.
      value: the number of the mistake that was solved for; None if it has none.
    """

    suspect: str
    sentence: str
    faults: tuple[str, ...]
    distance: float
    sides: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "suspect": self.suspect,
            "sentence": self.sentence,
            "faults": list(self.faults),
            "distance": self.distance,
            "sides": list(self.sides),
            "steps": list(self.steps),
        }


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array rounded to a precision, and held in its own.

    Args:
      dtype: "float32", "float16" or "bfloat16", the upper half of a float32.
    """
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):  # what is too large becomes infinite, as on a side
            return np.asarray(array).astype(dtype).astype(array.dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    # to the nearest, and to the even one of two that are equally near
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return near.astype(np.uint32).view(np.float32).astype(array.dtype)


def rounded_number(value: float, dtype: str) -> float:
    """Return a number rounded to a precision."""
    return float(rounded(np.array([value], np.float64), dtype)[0])


def computed_in(dtype: str, seen: np.ndarray, exact: np.ndarray) -> bool:
    """Return whether numbers look like sums that were computed in a narrower precision.

    They are then numbers of that precision, which others are by chance once in 2**29 (float64,
    float32), and as near to the exact ones as its rounding leaves them. Those of a sum are the
    roundings of many operations: how many, and in which order, no record tells.
    """
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    apart = np.abs(seen - exact)
    near = np.abs(rounded(seen, dtype) - seen) <= 4 * np.finfo(np.float64).eps * np.abs(seen)
    return bool(apart.any() and near.all() and (apart <= 16 * unit * np.abs(exact)).all())


def telling(value: float, right: float) -> str:
    """Return a number with six digits, or as many as tell it from the right one."""
    for digits in range(6, 17):
        text = f"{value:.{digits}g}"
        if text != f"{right:.{digits}g}":
            return text
    return f"{value:.17g}"
