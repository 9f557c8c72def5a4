"""Flows: how a batch becomes gradients, and gradients become weights, as boxes and arrows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from docs.pictures.canvas import WIDTH, Canvas

# column -> the middle and the width of its boxes; the outer ones leave room for an arrow
_COLUMNS = {
    "outer left": (142.0, 128.0),
    "left": (180.0, 204.0),
    "middle": (WIDTH / 2, 250.0),
    "right": (WIDTH - 180.0, 204.0),
    "outer right": (WIDTH - 142.0, 128.0),
}
_LANE_WIDTH = 232.0
_TOP, _GAP, _LANE_TITLE, _LEGEND = 14.0, 22.0, 20.0, 30.0
_OUTSIDE = {"left": 32.0, "right": WIDTH - 32.0}  # where arrows pass beside the lanes
KINDS = {
    "data": "rows, activations, losses",
    "gradient": "gradients",
    "exchange": "between replicas",
    "weights": "weights, optimiser state",
}


@dataclass(frozen=True)
class Box:
    """A box of a flow.

    Attributes:
      name: what arrows call it.
      kind: what it holds or computes, one of `KINDS`.
      column: "left", "middle", "right", "outer left" or "outer right".
      row: the place in its column, from 0 at the top.
      lines: what it says; the first line is its title.
    """

    name: str
    kind: str
    column: str
    row: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Arrow:
    """An arrow of a flow.

    Attributes:
      start, end: the names of the boxes.
      kind: what goes along it, one of `KINDS`.
      outside: "left" or "right" for one that passes beside the lanes; else it is straight.
      shift: how far to the right of the middle it goes straight down or up.
    """

    start: str
    end: str
    kind: str
    outside: str = ""
    shift: float = 0.0


@dataclass(frozen=True)
class Lane:
    """A frame round some rows of one column: a replica, a tower, a worker, a stage.

    Attributes:
      column: "left" or "right".
      first, last: the rows that it surrounds.
      title: what is written on it.
    """

    column: str
    first: int
    last: int
    title: str


@dataclass(frozen=True)
class Flow:
    """A picture of boxes, which are drawn row by row, and of the arrows between them.

    Attributes:
      title: what it shows.
      boxes, arrows, lanes: its parts.
      exchange: what the colour of the kind "exchange" means here.
    """

    title: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    lanes: Sequence[Lane] = ()
    exchange: str = KINDS["exchange"]


@dataclass(frozen=True)
class _Placed:
    """Where a box is: its middle, and half of its width and height."""

    x: float
    y: float
    half_width: float
    half_height: float


def draw_flow(flow: Flow, say: Callable[[str], str], language: str) -> str:
    """Return a flow as the text of an SVG file.

    Args:
      flow: the flow.
      say: returns a line of text in the picture's language.
      language: the language, such as "en".
    """
    tops, heights = _rows(flow)
    bottom = max(tops[row] + heights[row] for row in tops)
    lowest = max((lane.last for lane in flow.lanes), default=-1)
    if lowest in tops:
        bottom = max(bottom, tops[lowest] + heights[lowest] + 10)
    canvas = Canvas(bottom + _LEGEND + 14, say(flow.title), language)
    for lane in flow.lanes:
        top = tops[lane.first] - 8 - _LANE_TITLE
        height = tops[lane.last] + heights[lane.last] + 10 - top
        x, _ = _COLUMNS[lane.column]
        canvas.box(x - _LANE_WIDTH / 2, top, _LANE_WIDTH, height, "lane", "frame", corner=8)
        # at the outer edge: arrows come in along the inner one
        x += (_LANE_WIDTH / 2 - 14) * (-1 if lane.column == "left" else 1)
        title = [say(lane.title)]
        canvas.text(x, top + 15, title, bold=True, align=lane.column, colour="faint")
    placed = {
        box.name: _Placed(
            _COLUMNS[box.column][0],
            tops[box.row] + heights[box.row] / 2,
            _COLUMNS[box.column][1] / 2,
            _height(box) / 2,
        )
        for box in flow.boxes
    }
    for arrow in flow.arrows:
        canvas.arrow(_points(arrow, placed), arrow.kind)
    for box in flow.boxes:
        at = placed[box.name]
        canvas.box(
            at.x - at.half_width,
            at.y - at.half_height,
            2 * at.half_width,
            2 * at.half_height,
            box.kind,
            f"{box.kind} line",
        )
        canvas.text(at.x, at.y, [say(line) for line in box.lines], bold=True)
    _legend(canvas, flow, say, bottom + _LEGEND)
    return canvas.svg()


def _height(box: Box) -> float:
    return 15 + 13.5 * len(box.lines)


def _rows(flow: Flow) -> tuple[dict[int, float], dict[int, float]]:
    """Return the top and the height of each row."""
    heights: dict[int, float] = {}
    for box in flow.boxes:
        heights[box.row] = max(heights.get(box.row, 0), _height(box))
    firsts = {lane.first for lane in flow.lanes}
    after = {lane.last + 1 for lane in flow.lanes}
    tops, y = {}, _TOP
    for row in sorted(heights):
        if row in firsts:
            y += _LANE_TITLE + 8
        if row in after:
            y += 8
        tops[row] = y
        y += heights[row] + _GAP
    return tops, heights


def _points(arrow: Arrow, placed: dict[str, _Placed]) -> list[tuple[float, float]]:
    start, end = placed[arrow.start], placed[arrow.end]
    if arrow.outside:
        x = _OUTSIDE[arrow.outside]
        side = -1 if arrow.outside == "left" else 1
        return [
            (start.x + side * start.half_width, start.y),
            (x, start.y),
            (x, end.y),
            (end.x + side * (end.half_width + 1), end.y),
        ]
    if start.y == end.y:
        side = 1 if end.x > start.x else -1
        return [
            (start.x + side * start.half_width, start.y),
            (end.x - side * (end.half_width + 1), end.y),
        ]
    down = 1 if end.y > start.y else -1
    from_y, to_y = start.y + down * start.half_height, end.y - down * (end.half_height + 1)
    # straight down where the boxes lie above each other, as far as possible
    low = max(start.x - start.half_width, end.x - end.half_width) + 24
    high = min(start.x + start.half_width, end.x + end.half_width) - 24
    if low <= high:
        x = min(max((start.x + end.x) / 2, low), high) + arrow.shift
        return [(x, from_y), (x, to_y)]
    return [(start.x, from_y), (end.x, to_y)]


def _legend(canvas: Canvas, flow: Flow, say: Callable[[str], str], y: float) -> None:
    used = {part.kind for part in (*flow.boxes, *flow.arrows)}
    names = {**KINDS, "exchange": flow.exchange}
    kinds = [kind for kind in KINDS if kind in used]
    texts = [say(names[kind]) for kind in kinds]
    widths = [16 + sum(9.5 if ord(letter) > 0x2E80 else 5.2 for letter in t) for t in texts]
    gap, x = (WIDTH - 64 - sum(widths)) / (len(kinds) - 1), 32.0
    for kind, text, width in zip(kinds, texts, widths, strict=True):
        canvas.box(x, y - 5, 10, 10, kind, f"{kind} line", corner=2)
        canvas.text(x + 16, y, [text], align="left", size=9.5, colour="faint")
        x += width + gap
