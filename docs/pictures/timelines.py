"""Timelines: what runs when, by the code that decides it in a training, at an assumed speed.

`layers` is drawn by the `Exchange` of Paddle's pipeline, which gives the devices to passes;
`asynchronous` by the schedule that a seed draws.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from docs.pictures.canvas import WIDTH, Canvas
from parity.twins.spec.asynchronous_schedule import DrawnSchedule, Update

_LEFT, _RIGHT = 78.0, 16.0  # margins of the lanes; their names are on the left
_LANE, _BAR = 32.0, 24.0  # the height of a lane and of a bar in it
_BACKWARD = 2.0  # how many times as long as a forward pass a backward pass takes


class Pass(NamedTuple):
    """A pass of one micro-batch in one stage.

    Attributes:
      stage, micro_batch: whose pass it is.
      direction: "forward" or "backward".
      start, stop: when; all forward passes of a stage together take 4.
    """

    stage: int
    micro_batch: int
    direction: str
    start: float
    stop: float


class _NotYetError(Exception):
    """A pass cannot start yet."""


def pipeline_passes(stages: int, micro_batches: int) -> list[Pass]:
    """Return the passes of one replica as Paddle's pipeline orders them, by their ends.

    It is assumed that every stage takes as long as the others.

    Args:
      stages: the number of stages.
      micro_batches: the number of micro-batches.
    """
    exchange, now = _exchange(), 0.0
    takes = {"forward": 4 / micro_batches, "backward": _BACKWARD * 4 / micro_batches}
    waiting = {("forward", s, m) for s in range(stages) for m in range(micro_batches)}
    running: list[Pass] = []
    ended: list[Pass] = []

    def run(direction: str, stage: int, micro_batch: int) -> None:
        running.append(Pass(stage, micro_batch, direction, now, now + takes[direction]))

    def end(each: Pass) -> None:
        stage, micro_batch, direction, _, _ = each
        ended.append(each)
        exchange.send(micro_batch, {f"{direction} {stage}": None})
        if direction == "forward" and stage == stages - 1:
            run("backward", stage, micro_batch)  # at once, without giving the device away
            return
        exchange.give_back(stage)
        if direction == "forward":
            waiting.add(("backward", stage, micro_batch))

    while waiting or running:
        for each in [each for each in running if each.stop == now]:
            running.remove(each)
            end(each)
        for direction, stage, micro_batch in sorted(
            waiting
        ):  # those that go backward ask first
            before = stage + 1 if direction == "backward" else stage - 1
            reads = [f"{direction} {before}"] if before >= 0 else []
            try:
                exchange.receive(micro_batch, reads)
                exchange.take(stage, direction, micro_batch)
            except _NotYetError:
                continue
            waiting.remove((direction, stage, micro_batch))
            run(direction, stage, micro_batch)
        if waiting and not running:
            raise RuntimeError(f"no pass can start any more; waiting: {sorted(waiting)}")
        now = min((each.stop for each in running), default=now)
    return ended


def _exchange() -> Any:
    """Return an Exchange that raises _NotYetError where the pipeline's own would wait."""
    from paddle_impl.strategies.pipeline import Exchange

    class Attempts(Exchange):
        def _wait(self, condition: Callable[[], bool]) -> None:
            if not condition():
                raise _NotYetError

    return Attempts()


def draw_pipelines(say: Callable[[str], str], language: str) -> str:
    """Return the timeline of two stages with one, two and four micro-batches, as SVG.

    Args:
      say, language: as for `draw_flow`.
    """
    stages, panels = 2, {count: pipeline_passes(2, count) for count in (1, 2, 4)}
    end = max(each.stop for passes in panels.values() for each in passes)
    scale = (WIDTH - _LEFT - _RIGHT) / (end + 1)
    height = 20 + _LANE * stages + 14
    title = "layers: what two stages compute when, with 1, 2 and 4 micro-batches"
    canvas = Canvas(height * len(panels) + 44, say(title), language)
    top = 12.0
    for count, passes in panels.items():
        words = f"--stages {stages} --micro-batches {count}"
        canvas.text(_LEFT, top + 8, [words], align="left", bold=True)
        for stage in range(stages):
            y = top + 20 + stage * _LANE
            canvas.text(14, y + _LANE / 2, [say(f"stage {stage}")], align="left")
            canvas.box(
                _LEFT, y + 2, WIDTH - _LEFT - _RIGHT, _LANE - 4, "lane", "lane", corner=4
            )
        for each in passes:
            kind = "data" if each.direction == "forward" else "gradient"
            name = f"{each.direction[0].upper()}{each.micro_batch}"
            y = top + 20 + each.stage * _LANE + (_LANE - _BAR) / 2
            width = (each.stop - each.start) * scale
            _bar(canvas, _LEFT + each.start * scale, width, y, kind, name)
        last = max(each.stop for each in passes)
        tall = _LANE * stages - (_LANE - _BAR)
        y = top + 20 + (_LANE - _BAR) / 2
        canvas.box(
            _LEFT + last * scale + 2, y, scale - 4, tall, "weights", "weights line", corner=4
        )
        canvas.text(_LEFT + (last + 0.5) * scale, y + tall / 2, [say("U")], bold=True, size=9.5)
        top += height
    takes = (
        "F, B: forward and backward pass of a micro-batch; B is assumed to take twice as long"
    )
    _note(canvas, 14, top + 6, say(takes))
    _note(canvas, 14, top + 20, say("U: one update, with the gradients of all micro-batches"))
    return canvas.svg()


def _note(canvas: Canvas, x: float, y: float, text: str) -> None:
    canvas.text(x, y, [text], align="left", size=9.5, colour="faint")


def _bar(canvas: Canvas, x: float, width: float, y: float, kind: str, name: str) -> None:
    canvas.box(x + 1, y, width - 2, _BAR, kind, f"{kind} line", corner=4)
    canvas.text(x + width / 2, y + _BAR / 2, [name], bold=True, size=9.5)


def draw_workers(say: Callable[[str], str], language: str) -> str:
    """Return the timeline of three workers by a schedule that is drawn, as SVG.

    Args:
      say, language: as for `draw_flow`.
    """
    count = 3
    updates = DrawnSchedule(seed=1, workers=count, staleness=2).between(0, 4)
    title = "asynchronous: three workers by --schedule 1 --staleness 2"
    read = "bar: from a worker’s read to its update; number: the staleness of the update"
    step = (WIDTH - _LEFT - _RIGHT) / (len(updates) + 0.6)
    lane, top, weights = 40.0, 84.0, 46.0
    canvas = Canvas(top + count * lane + 42, say(title), language)
    canvas.text(14, weights + 12, [say("weights")], align="left")
    _note(canvas, _LEFT, 22, say("each update makes the next version of the weights"))
    for version in range(len(updates) + 1):
        width = (step if version < len(updates) else 0.6 * step) - 3
        x = _LEFT + version * step + 1.5
        canvas.box(x, weights, width, 24, "weights", "weights line", corner=4)
        canvas.text(x + width / 2, weights + 12, [f"v{version}"], bold=True, size=9.5)
    for worker in range(count):
        y = top + worker * lane
        canvas.text(14, y + lane / 2, [say(f"worker {worker}")], align="left")
        canvas.box(_LEFT, y + 2, WIDTH - _LEFT - _RIGHT, lane - 4, "lane", "lane", corner=4)
    bars = list(worker_bars(updates, step))
    for start, stop, worker, _ in bars:
        y = top + worker * lane + (lane - _BAR) / 2
        canvas.arrow([(start + 4, weights + 24), (start + 4, y - 1)], "weights")
        canvas.arrow([(stop - 4, y), (stop - 4, weights + 25)], "gradient")
    for start, stop, worker, staleness in bars:
        y = top + worker * lane + (lane - _BAR) / 2
        _bar(canvas, start, stop - start, y, "data", str(staleness))
    _note(canvas, 14, top + count * lane + 16, say(read))
    return canvas.svg()


def worker_bars(
    updates: Sequence[Update], step: float
) -> Iterator[tuple[float, float, int, int]]:
    """Yield where each update's bar starts and stops, its worker and its staleness."""
    for number, (worker, read) in enumerate(updates):
        start = _LEFT + (read + 0.14 + 0.16 * worker) * step
        yield start, _LEFT + (number + 1) * step - 1, worker, number - read


TIMELINES: dict[str, Callable[[Callable[[str], str], str], str]] = {
    "layers-timeline": draw_pipelines,
    "asynchronous-timeline": draw_workers,
}
