"""Maps the names that a side's code gives to its tensors to those that both sides share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.rungs import RUNGS, check_name, is_path


@dataclass(frozen=True)
class Rename:
    """The shared name of a tensor, and how its axes are ordered on both sides.

    Attributes:
      name: the shared name. With a rung ("weight/fc1/kernel") it renames one tensor. Without
        one ("fc1/kernel") it renames every tensor RUNG/NAME of that name: the weight, its
        gradient, and whatever an optimizer keeps for it.
      transpose: whether the shared tensor is the transpose of the recorded matrix.
      axes: the same for more axes, as `numpy.transpose` takes them: axis i of the shared tensor
        is axis axes[i] of the recorded one.

    Raises:
      UsageError: for an empty name, or axes that are not a permutation.
    """

    name: str
    transpose: bool = False
    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        name: Any = self.name  # a user may have given anything
        if not isinstance(name, str) or not is_path(name):
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

    def in_shared_layout(self, array: np.ndarray, name: str) -> np.ndarray:
        """Return the tensor with its axes in the order that both sides share.

        Args:
          name: the name in the side's code, for the message.

        Raises:
          UsageError: if the number of axes is not the declared one.
        """
        axes = (1, 0) if self.transpose else self.axes
        if axes is None:
            return array
        if array.ndim != len(axes):
            raise UsageError(
                f"tensor {name!r} has shape {list(array.shape)}; its name map allows "
                f"{len(axes)} axes"
            )
        return array.transpose(axes)


class NameMap:
    """Maps the names in a side's code to shared names.

    Args:
      names: name in the side's code -> shared name, or a `Rename` where the layout differs too.

    Raises:
      UsageError: for a row that is neither.
    """

    def __init__(self, names: Mapping[str, "str | Rename"]):
        self._whole: dict[str, Rename] = {}
        self._parts: dict[str, Rename] = {}
        for given, shared in names.items():
            row = Rename(shared) if isinstance(shared, str) else shared
            if not isinstance(row, Rename):
                raise UsageError(
                    f"name map, {given!r}: is {shared!r}; allowed: a name or a Rename"
                )
            # with a rung in either name, the row is for this one tensor
            whole = _on_rung(row.name) or _on_rung(given)
            if whole:
                check_name(row.name)
            (self._whole if whole else self._parts)[given] = row

    def find(self, given: str) -> tuple[str | None, str, Rename | None]:
        """Return (key of the row, shared name, row) for a tensor of the side's code.

        The first and the last are None for a tensor that the map leaves as it is.

        Raises:
          UsageError: for a tensor on no rung.
        """
        if given in self._whole:
            return given, self._whole[given].name, self._whole[given]
        check_name(given)
        rung, _, rest = given.partition("/")
        if rest in self._parts:
            return rest, f"{rung}/{self._parts[rest].name}", self._parts[rest]
        if rung == "optimizer":  # optimizer/PARAMETER/SLOT: the parameter is renamed
            parameter, _, slot = rest.rpartition("/")
            if parameter in self._parts:
                row = self._parts[parameter]
                return parameter, f"{rung}/{row.name}/{slot}", row
        return None, given, None

    def unused(self, used: set[str]) -> list[str]:
        """Return the keys of the rows that are not among those used."""
        return sorted((self._whole.keys() | self._parts.keys()) - used)


def _on_rung(name: str) -> bool:
    return name == "gradient_norm" or ("/" in name and name.split("/", 1)[0] in RUNGS)
