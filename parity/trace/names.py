"""Names of recorded tensors: the rung in front, and a framework's own names behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.base.errors import UsageError

# Prefix of a tensor's name -> rung, in the order of computation.
RUNGS = {
    "batch": "batch",
    "forward": "forward",
    "loss": "loss",
    "activation_gradient": "gradient",
    "gradient": "gradient",
    "gradient_norm": "gradient",
    "clipped_gradient": "gradient",
    "optimizer": "optimizer",
    "weight": "weight",
    "replicas": "replicas",
    "decode": "decode",
}


def rung_of(name: str) -> str:
    """Return the rung of a tensor's name.

    Raises:
      UsageError: for a name on no rung.
    """
    prefix = name.split("/", 1)[0]
    if prefix not in RUNGS:
        raise UsageError(f"tensor {name!r} is on no rung; allowed prefixes: {', '.join(RUNGS)}")
    return RUNGS[prefix]


@dataclass(frozen=True)
class Rename:
    """What both sides call a tensor, and how its axes lie there.

    Attributes:
      name: the shared name. On a rung ("weight/fc1/kernel") it stands for the one tensor that
        goes by the own name; without one ("fc1/kernel") for every tensor "RUNG/OWN NAME":
        weight, gradient and whatever an optimizer keeps of it.
      transpose: the shared tensor is the transposed matrix.
      axes: the same for more axes, as `numpy.transpose` takes them: axis i of the shared tensor
        is axis axes[i] of the recorded one.

    Raises:
      UsageError: for an empty name, or axes that are no permutation.
    """

    name: str
    transpose: bool = False
    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        name: Any = self.name  # whatever a user gave
        if not isinstance(name, str) or not _is_path(name):
            raise UsageError(f"name of a Rename is {name!r}; allowed: a path, a/b/c")
        if self.axes is None:
            return
        axes = tuple(self.axes)
        if self.transpose:
            raise UsageError(f"{self.name!r}: transpose and axes; allowed: one of them")
        if sorted(axes) != list(range(len(axes))):
            raise UsageError(
                f"{self.name!r}: axes is {axes}; allowed: each of 0 to {len(axes) - 1} once"
            )
        object.__setattr__(self, "axes", axes)

    def laid_out(self, array: np.ndarray, own: str) -> np.ndarray:
        """Return the tensor as both sides have it.

        Args:
          own: its own name, for the message.

        Raises:
          UsageError: if it has another number of axes than was declared.
        """
        axes = (1, 0) if self.transpose else self.axes
        if axes is None:
            return array
        if array.ndim != len(axes):
            raise UsageError(
                f"tensor {own!r} has shape {list(array.shape)}; its name map allows "
                f"{len(axes)} axes"
            )
        return array.transpose(axes)


class NameMap:
    """Brings a framework's own names to those that both sides share.

    Args:
      names: own name -> shared name, or a `Rename` where the layout differs too.

    Raises:
      UsageError: for a row that is neither.
    """

    def __init__(self, names: Mapping[str, "str | Rename"]):
        self._whole: dict[str, Rename] = {}
        self._parts: dict[str, Rename] = {}
        for own, shared in names.items():
            row = Rename(shared) if isinstance(shared, str) else shared
            if not isinstance(row, Rename):
                raise UsageError(
                    f"name map, {own!r}: is {shared!r}; allowed: a name or a Rename"
                )
            # an own name on a rung, or a shared one: this one tensor alone
            whole = _on_rung(row.name) or _on_rung(own)
            if whole:
                check_name(row.name)
            (self._whole if whole else self._parts)[own] = row

    def find(self, own: str) -> tuple[str | None, str, Rename | None]:
        """Return (own name in the map, shared name, its row) of a tensor as it was given.

        The first and the last are None for a tensor that the map leaves as it is.

        Raises:
          UsageError: for a tensor on no rung.
        """
        if own in self._whole:
            return own, self._whole[own].name, self._whole[own]
        check_name(own)
        rung, _, rest = own.partition("/")
        if rest in self._parts:
            return rest, f"{rung}/{self._parts[rest].name}", self._parts[rest]
        if rung == "optimizer":  # what it keeps of a parameter has a name of its own behind it
            parameter, _, slot = rest.rpartition("/")
            if parameter in self._parts:
                row = self._parts[parameter]
                return parameter, f"{rung}/{row.name}/{slot}", row
        return None, own, None

    def unused(self, met: set[str]) -> list[str]:
        """Return the rows of the map that are not among those met."""
        return sorted((self._whole.keys() | self._parts.keys()) - met)


def check_name(name: str) -> None:
    """See that a tensor's name is a path that begins with a rung.

    Raises:
      UsageError: otherwise.
    """
    rung_of(name)
    if not _is_path(name) or (name in RUNGS and name != "gradient_norm"):
        raise UsageError(f"tensor {name!r}: no name behind the rung; allowed: RUNG/NAME")


def _on_rung(name: str) -> bool:
    return name == "gradient_norm" or ("/" in name and name.split("/", 1)[0] in RUNGS)


def _is_path(name: str) -> bool:
    return all(name.split("/"))
