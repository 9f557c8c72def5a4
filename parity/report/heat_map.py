"""The map of every tensor at every step, coloured by how much of its bound it used."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from parity.report.page import Figure, fragment
from parity.report.svg import LABELS, Axis, Values, path
from parity.report.table import Table
from parity.report.verdict_tables import number, share

# Shares of a bound from 0 to 100%: calm where there is room left, and red is kept for more.
_SHARES = ("#35608f", "#4f86a8", "#86a99b", "#c9b264", "#f0a030")
_NONE, _EQUAL, _LEAST, AFTER, WRONG = 0, 1, 2, 7, 8  # places in what follows
COLOURS = ("#ffffff", "#9a9a9a", *_SHARES, "#f0b4a8", "#e02020")
_BEYOND = ("#b01818", "#801010", "#500808")  # 10, 100 and 1000 times the bound, in a tensor
_UP_TO = ("to 20%", "to 40%", "to 60%", "to 80%", "to 100%")
_LEGEND = ("not judged", "equal", *_UP_TO, "wrong, and so was another before", "wrong")
_MOST_POINTS = 60  # of the line of one tensor
_AROUND = Axis(1e-3, 1e3, log=True)  # of that line: the bound is in its middle

# Rungs whose tensors are not computed from each other: each of them is wrong by itself.
_APART = ("batch", "initial", "clipped_gradient", "optimizer", "weight", "replicas")


@dataclass(frozen=True)
class Tensor:
    """A tensor of the map.

    Attributes:
      name: its name.
      id: that of what the page shows of this tensor alone.
      levels: for each step, the place of its colour in `COLOURS`.
      used: for each step, the share of its bound.
      worst: the largest of these, and the first step that has it.
      relative: the largest relative error, and the first step that has it.
    """

    name: str
    id: str
    levels: Sequence[int]
    used: Values
    worst: tuple[float | None, int | None]
    relative: tuple[float | None, int | None]

    @property
    def kind(self) -> str:
        """Return the first part of its name, the rung's or nearly."""
        return self.name.partition("/")[0]

    @property
    def colour(self) -> str:
        """Return its worst colour."""
        return COLOURS[max(self.levels)]

    @property
    def differs(self) -> bool:
        """Return whether the two sides of it ever differ."""
        return max(self.levels) > _EQUAL

    @property
    def said(self) -> str:
        """Return what it used of its bound at most, and how far its sides were apart."""
        (used, step), (far, where) = self.worst, self.relative
        return (
            f"largest share of the bound: {share(used)}, in step {step}; "
            f"largest relative error: {number(far)}, in step {where}"
        )

    @property
    def line(self) -> str:
        """Return the path of its shares over the steps."""
        every = -(-len(self.used) // _MOST_POINTS)
        parts = [self.used[i : i + every] for i in range(0, len(self.used), every)]
        most = [max((v for v in part if v is not None), default=None) for part in parts]
        across = Axis(0, len(most) - 1)
        return path([across.place(i) for i in range(len(most))], most, _AROUND)


def tensors_of(dtype: str, history: Mapping[str, Any], guilty: str | None) -> list[Tensor]:
    """Return the tensors of a map, in the order of computation.

    Args:
      dtype: the precision, for their ids.
      history: one precision's, of report.json.
      guilty: the wrong tensor that no other wrong one was computed before; what else is wrong
        is then paler, as it may follow from that. None: all are alike.
    """
    steps, relative, used = history["steps"], history["relative"], history["used"]
    found = []
    for place, name in enumerate(relative):
        later = guilty is not None and not _alike(name, guilty)
        levels = [_level(each, later) for each in used[name]]
        worst = _worst(steps, used[name]), _worst(steps, relative[name])
        found.append(Tensor(name, f"{dtype}-{place}", levels, used[name], *worst))
    return found


def heat_map(
    dtype: str, history: Mapping[str, Any], tensors: Sequence[Tensor], marked: str | None
) -> Figure:
    """Draw how much of its bound every tensor used at every step, as a map of colours.

    Args:
      dtype: the precision, for the figure's name.
      history: one precision's, of report.json.
      tensors: what `tensors_of` returned.
      marked: the tensor to frame at the last step, if any.
    """
    steps = history["steps"]
    count, every = len(steps), -(-len(steps) // LABELS)
    kinds = [
        (kind, rows, pixels([each.levels for each in rows]))
        for kind, group in groupby(tensors, key=lambda each: each.kind)
        if (rows := list(group))
    ]
    seen = {level for each in tensors for level in each.levels}
    drawing = fragment(
        "heat.html.jinja",
        kinds=kinds,
        marked=marked,
        width=100 / count,
        across=[(100 * (i + 0.5) / count, steps[i]) for i in range(0, count, every)],
        legend=[(COLOURS[each], _LEGEND[each]) for each in sorted(seen | {_EQUAL}) if each],
    )
    told = [(each.name, *each.worst, *each.relative) for each in tensors]
    columns = [
        "tensor",
        "largest share of bound",
        "at step",
        "largest relative error",
        "at step",
    ]
    return Figure(f"heat-{dtype}", drawing, Table(columns, told))


def pixels(rows: Sequence[Sequence[int]]) -> str:
    """Return an image as the address of a PNG that is contained in it.

    Args:
      rows: from the top; each the places of its pixels' colours in `COLOURS`, or behind it
        of those of what is far beyond the bound.
    """
    data = b"".join(b"\0" + bytes(row) for row in rows)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0),
        b"PLTE": bytes.fromhex("".join(COLOURS + _BEYOND).replace("#", "")),
        b"tRNS": b"\0",  # what is not judged is transparent
        b"IDAT": zlib.compress(data, 9),
        b"IEND": b"",
    }
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts.items()
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _level(used: float | None, later: bool) -> int:
    if used is None:
        return _NONE
    if used > 1:
        return AFTER if later else WRONG
    return _LEAST + min(int(5 * used), 4) if used else _EQUAL


def _alike(name: str, guilty: str) -> bool:
    """Return whether a tensor is wrong by itself where the guilty one is."""
    rung = name.split("/", 1)[0]
    return name == guilty or (rung in _APART and rung == guilty.split("/", 1)[0])


def _worst(steps: Sequence[int], row: Values) -> tuple[float | None, int | None]:
    """Return the largest value, and the first step that has it."""
    known = [
        (value, -step) for step, value in zip(steps, row, strict=True) if value is not None
    ]
    if not known:
        return None, None
    value, step = max(known)
    return value, -step
