"""The network as boxes in the order of execution, and where in a tensor it is wrong."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.report.heat_map import COLOURS, Tensor, pixels

_GATES = {"LSTM": 4, "GRU": 3}  # kind of a module -> gates in one axis of its parameters
_OUTPUTS = ("forward", "activation_gradient")


@dataclass
class Node:
    """A module.

    Attributes:
      name: its name in the module that it is part of.
      kind: the name of its class; empty if that is unknown.
      level: the place in `COLOURS` of that of the tensor, also of a part, that used most.
      worst: kind of tensors -> the one of its own that used most of its bound.
      parts: the modules in it, in the order of execution.
    """

    name: str = ""
    kind: str = ""
    level: int = 0
    worst: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, "Node"] = field(default_factory=dict)

    @property
    def colour(self) -> str:
        """Return that colour."""
        return COLOURS[self.level]


def network(tensors: Sequence[Tensor], kinds: Mapping[str, str]) -> Node:
    """Return the modules that recorded anything, as parts of one that has them all.

    Args:
      tensors: in the order of computation.
      kinds: name of a module -> its kind; empty if nothing is known of modules: each output is
        then taken for one.
    """
    outputs = [each for each in tensors if each.kind == "forward"]
    known = kinds or {_own(each.name): "" for each in outputs}
    network = Node()
    for each in [*outputs, *(other for other in tensors if other.kind != "forward")]:
        node, module = network, _module(_own(each.name), known)
        for part in re.finditer(r"[^./]+", module):
            kind = known.get(module[: part.end()], "")
            node = node.parts.setdefault(part[0], Node(part[0], kind))
            node.level = max(node.level, *each.levels)
        before = node.worst.get(each.kind)
        if each.differs and (before is None or (each.worst[0] or 0) > (before.worst[0] or 0)):
            node.worst[each.kind] = each
    return network


def inside(
    name: str,
    within: Mapping[str, Any],
    kinds: Mapping[str, str],
    batch: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """Return the map of a wrong tensor: its image, what it shows, and lines between gates.

    Args:
      name: its name.
      within: what `report.json` has of it.
      kinds: as for `network`.
      batch: the shapes of what the step read.
    """
    shape, rows, (count, size) = within["shape"], within["shares"], within["elements"]
    axes = [f"axis {axis}" for axis in range(len(shape))]
    gates, of_gates = _GATES.get(kinds.get(_module(_own(name), kinds), ""), 0), 0
    if name.startswith(_OUTPUTS):
        gates = 0
        if any(each[:1] == shape[:1] for each in batch):
            axes[0] = "row"
        if len(shape) == 3 and any(each[:2] == shape[:2] for each in batch):
            axes[1] = "time step"
    elif gates:
        of_gates = len(shape) - 1 if "kernel" in name else 0
        gates = gates if of_gates < 2 and shape[of_gates] % gates == 0 else 0
    if gates:
        axes[of_gates] = f"{gates} gates of {shape[of_gates] // gates}"
    ways = ["downwards", "to the right", *["the largest of"] * len(shape)][len(shape) == 1 :]
    said = "; ".join(f"{way}: {axis}" for way, axis in zip(ways, axes, strict=False))
    wrong = f"step {within['step']}: {count:,} of {size:,} elements beyond the bound"
    return {
        # the map of steps has one more colour behind a bound's last fifth
        "image": pixels([[int(each) + 1 + (each > "5") for each in row] for row in rows]),
        "said": f"{wrong} (10, 100 and 1000 times beyond: darker); {said}",
        "way": "to right" if of_gates or len(shape) == 1 else "to bottom",
        "gates": gates,
        "size": f"{len(rows[0])}/{len(rows)}",
    }


def _own(name: str) -> str:
    return re.sub(r"#\d+", "", name.partition("/")[2])


def _module(name: str, known: Mapping[str, str]) -> str:
    """Return the longest beginning of a name that is a module's; empty if none is."""
    while name and name not in known:
        name = re.sub(r"(^|[./])[^./]*$", "", name)
    return name
