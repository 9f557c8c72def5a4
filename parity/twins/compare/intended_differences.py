"""Sides whose settings make them train something else on purpose, and by how much.

A side with `--shard-weights equal` averages the gradients of its replicas with equal weights:
another training as soon as two replicas have different numbers of real tokens. That is what
the setting asks for, and no mistake of the side. So the oracle averages in the same way where
it judges this side, and every rung of it is judged as ever. How far that training is from the
exact one is measured and reported. Sides that train differently are compared with each other
only up to the first step in which the difference has an effect.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from parity.twins.oracle.training import run_network, run_network_by_shards
from parity.twins.spec.replaceable import replacing
from parity.twins.trace.side import TrainedSide

Tensors = Mapping[str, np.ndarray]


@dataclass
class IntendedDifference:
    """How far a side that averages its replicas' gradients alike is from the exact training.

    The distance of a gradient is the norm of its difference from the exact gradient at the
    same weights, divided by the norm of the exact gradient; both norms are over all parameters.

    Attributes:
      side: the label of the side.
      setting: the setting that causes the difference.
      compared: the number of steps that were compared.
      uneven: the number of these in which replicas had different numbers of real tokens.
      first: the first of the uneven steps; None if there is none.
      tokens: the number of real tokens of each replica in that step.
      distance: the distance of the gradient in that step.
      largest: the largest distance of the gradient in any step.
      largest_at: the step of that.
      loss: the side's loss in the last compared step.
      exact_loss: the loss of the exact training in that step.
    """

    side: str
    setting: str
    compared: int = 0
    uneven: int = 0
    first: int | None = None
    tokens: list[int] = field(default_factory=list)
    distance: float = 0.0
    largest: float = 0.0
    largest_at: int | None = None
    loss: float = 0.0
    exact_loss: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values, and the sentence that describes them."""
        return asdict(self) | {"story": str(self)}

    def __str__(self) -> str:
        name = f"Known difference: {self.side} averages the gradients of its replicas alike, "
        name += f"however many real tokens each has ({self.setting})"
        if self.first is None:
            return (
                f"{name}. In each of the {self.compared} steps all of them had the same "
                "number, so it had no effect"
            )
        tokens = " and ".join(map(str, self.tokens))
        return (
            f"{name}. In {self.uneven} of {self.compared} steps they have different numbers, "
            f"first in step {self.first} ({tokens}): there its gradient differs from the exact "
            f"one by {self.distance:.2g} of its norm, and by at most {self.largest:.2g} in "
            f"step {self.largest_at}. In step {self.compared - 1} its loss is {self.loss:.6g}, "
            f"that of the exact training {self.exact_loss:.6g}. It is judged by an oracle that "
            "averages in the same way, and compared with sides that do not only before step "
            f"{self.first}"
        )


class IntendedDifferences:
    """Knows which sides differ from the exact training on purpose, and measures by how much.

    Args:
      sides: label -> side.

    Attributes:
      found: label -> the difference, of each side that has one.
    """

    def __init__(self, sides: Mapping[str, TrainedSide]):
        self._sides = sides
        self.found = {
            label: IntendedDifference(label, "--shard-weights equal")
            for label, side in sides.items()
            if side.averages_replicas_alike
        }

    def oracle_of(self, label: str) -> AbstractContextManager[None]:
        """Let the oracle train as a side does on purpose, within this context."""
        if label in self.found:
            return replacing({run_network: run_network_by_shards}, add=True)
        return nullcontext()

    def kind(self, label: str) -> tuple[Any, ...]:
        """Return a value that is equal for sides whose oracles train alike."""
        return ("by shards", self._sides[label].replicas) if label in self.found else ()

    def comparable(self, a: str, b: str) -> bool:
        """Return whether two sides still train alike, if they are correct."""
        effects = [f.first is not None for f in (self.found.get(s) for s in (a, b)) if f]
        return self.kind(a) == self.kind(b) or not any(effects)

    def add(
        self, label: str, step: int, recorded: Tensors, averaged: Tensors, exact: Tensors
    ) -> None:
        """Measure the difference of one step.

        Args:
          recorded: what the side recorded of the step.
          averaged: what the oracle expects if it averages as the side does.
          exact: what it expects at the same weights if it does not.
        """
        names = [name for name in exact if name.startswith("gradient/")]
        apart = _norm([averaged[name] - exact[name] for name in names])
        whole = _norm([exact[name] for name in names])
        distance = apart / whole if whole else 0.0
        found = self.found[label]
        found.uneven += 1
        if found.first is None:
            found.first, found.tokens, found.distance = step, _tokens(recorded), distance
        if found.largest_at is None or distance > found.largest:
            found.largest, found.largest_at = distance, step

    def add_losses(self, label: str, step: int, recorded: Tensors, exact: Tensors) -> None:
        """Keep the losses of the last compared step, of the side and of the exact training."""
        found = self.found[label]
        found.compared = step + 1
        found.loss, found.exact_loss = (
            float(tensors["loss/global"]) for tensors in (recorded, exact)
        )

    def has_effect(self, label: str, recorded: Tensors) -> bool:
        """Return whether a side has a known difference that has an effect in a step."""
        return label in self.found and len(set(_tokens(recorded))) > 1


def _tokens(recorded: Tensors) -> list[int]:
    """Return the number of real tokens of each replica."""
    bounds = np.cumsum([0, *recorded["batch/sizes"]])
    return [int(recorded["batch/lengths"][a:b].sum()) for a, b in pairwise(bounds)]


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(array).sum() for array in arrays)))
