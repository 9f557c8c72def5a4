"""Where the time of training steps goes, by the frameworks' own profilers.

Each side's `profiler.py` reads its framework's profiler. This module turns the events into a
table by phase and operation, and into a trace for chrome://tracing and ui.perfetto.dev.
"""

import json
import statistics
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.base.machine import replicas_at_once
from parity.twins.training.loop import Run
from parity.twins.training.meter import WARM_UP, Step

# In the order of a step. "data" is waiting for the batch and handing it to the framework;
# "other" is what the framework does for itself, and handing the results back.
PHASES = ("data", "forward", "backward", "all-reduce", "update", "other")

TRACE, TABLE = "trace.json", "profile.json"  # in the folder of a profile

PROFILED = 35  # steps, by default
_FEWEST = WARM_UP + 4
_TRACED = 3  # steps in the trace: more is slow to open
_PYTHON = "Python"  # the thread of work that is done for all replicas at once
_BRIEF = 1.0  # microseconds; the trace leaves out shorter events, such as parts of loops


@dataclass(frozen=True)
class Event:
    """One run of an operation.

    Attributes:
      operation: the type of the operation, as the framework calls it.
      name: its own name if the framework gives it one, else the type.
      phase: one of `PHASES`.
      thread: the thread or device that it ran on.
      start: when it started, in microseconds since the epoch.
      duration: how long it took, in microseconds.
      within: the part of that, in microseconds, spent in operations that it ran itself, which
        are events of their own.
    """

    operation: str
    name: str
    phase: str
    thread: str
    start: float
    duration: float
    within: float = 0.0

    @property
    def end(self) -> float:
        """Return when it ended, in microseconds since the epoch."""
        return self.start + self.duration


def profile_training(run: Run, folder: Path) -> None:
    """Take the steps of a run, the second half under the framework's profiler; write a profile.

    The first half, without the warm-up, shows what the profiler costs. The folder gets
    trace.json, a Chrome trace, and profile.json; see `summarise`. Of several processes it shows
    rank 0's.

    Args:
      run: the training, from its first step.
      folder: the folder to write to.

    Raises:
      UsageError: if there are too few steps, or the folder cannot be written.
      NumericFailure: if a loss or a gradient is not finite.
    """
    strategy, stop, meter = run.strategy, run.last_step, run.meter
    devices = strategy.replicas * (strategy.build.settings.stages or 1)
    if stop < _FEWEST:
        raise UsageError(f"--steps is {stop}; allowed with --profile: >= {_FEWEST}")
    first = stop - (stop - WARM_UP) // 2
    with ExitStack() as stack:
        for step, _ in enumerate(run.steps(), 1):
            if step == first:
                ran = stack.enter_context(strategy.profile())
    if strategy.build.group.rank > 0:
        return
    plain, profiled = meter.steps[WARM_UP:first], meter.steps[first:]
    # workers of an asynchronous training do not wait for each other: its steps overlap
    is_synchronous = strategy.entry.traits.synchronous
    events = [*ran, *(_of_host(profiled, ran) if is_synchronous else ())]
    values = {
        "framework": strategy.framework,
        "replicas": strategy.replicas,
        "threads": strategy.build.threads,
        "spec": strategy.spec.to_json(),
        "steps": len(profiled),
        "unprofiled_milliseconds_per_step": _milliseconds(plain),
        "strategy": strategy.entry.name,
        **summarise(events, profiled, replicas_at_once(devices, strategy.build.device)),
    }
    last = profiled[:_TRACED][-1]
    until = _epoch(last.started + last.seconds)
    shown = [e for e in events if e.duration >= _BRIEF and e.start < until]
    trace = chrome_trace(strategy.framework, shown)
    write_whole(folder / TRACE, json.dumps(trace).encode())
    write_whole(folder / TABLE, json.dumps(values, indent=2).encode() + b"\n")


def summarise(events: Iterable[Event], steps: Sequence[Step], at_once: int) -> dict[str, Any]:
    """Return where the time of a step went, in milliseconds.

    Replicas run side by side, so an operation counts with its share of a step's time: the time
    that all replicas spend in it, divided by how many run at once. While Python runs, all of
    them wait. The rest of a step is `idle`: waiting for another replica, and choosing what to
    run next.

    Args:
      events: those of the steps.
      steps: the steps that were profiled.
      at_once: how many replicas run at a time.

    Returns:
      Plain values: `milliseconds_per_step`, `phases` (phase -> milliseconds), `idle`, and
      `operations`, the slowest first, each with its operation, phase, `calls` per step (of all
      replicas) and `milliseconds`.
    """
    spent: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for event in events:
        key = event.phase, event.operation
        own = (event.duration - event.within) / 1e3 / len(steps)
        spent[key] += own if event.thread == _PYTHON else own / at_once
        calls[key] += 1
    phases = {phase: sum(spent[key] for key in spent if key[0] == phase) for phase in PHASES}
    whole = _milliseconds(steps)
    return {
        "milliseconds_per_step": whole,
        "phases": phases,
        "idle": whole - sum(phases.values()),
        "operations": [
            {
                "phase": phase,
                "operation": operation,
                "calls": calls[phase, operation] / len(steps),
                "milliseconds": milliseconds,
            }
            for (phase, operation), milliseconds in sorted(
                spent.items(), key=lambda item: -item[1]
            )
        ],
    }


def chrome_trace(side: str, events: Iterable[Event]) -> dict[str, Any]:
    """Return events in the format that chrome://tracing and ui.perfetto.dev read.

    Time starts at zero. Events that run at the same time on one device get lanes of their own.

    Args:
      side: the name of the side, which is a process in the trace.
      events: those of the side.

    Source: "Trace Event Format", Google, 2016.
    """
    ordered = sorted(events, key=lambda event: (event.start, -event.duration))
    lanes: dict[tuple[str, int], int] = {}
    busy: dict[str, list[list[float]]] = defaultdict(
        list
    )  # per thread and lane: when the running events end
    found: list[dict[str, Any]] = [_named("process_name", 0, side)]
    for event in ordered:
        lane = _free_lane(busy[event.thread], event)
        key = event.thread, lane
        if key not in lanes:
            lanes[key] = len(lanes)
            found.append(_named("thread_name", lanes[key], event.thread))
        found.append(
            {
                "name": event.operation,
                "cat": event.phase,
                "ph": "X",
                "ts": round(event.start - ordered[0].start, 3),
                "dur": round(event.duration, 3),
                "pid": 0,
                "tid": lanes[key],
                "args": {"name": event.name},
            }
        )
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def joined_traces(traces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge several traces into one, in which each is a process."""
    events = [
        event | {"pid": process}
        for process, trace in enumerate(traces)
        for event in trace["traceEvents"]
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(kind: str, number: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}


def _free_lane(busy: list[list[float]], event: Event) -> int:
    """Return the first lane in which an event starts after what runs, or is part of it."""
    for lane, ends in enumerate(busy):
        while ends and ends[-1] <= event.start:
            ends.pop()
        if not ends or event.end <= ends[-1]:
            ends.append(event.end)
            return lane
    busy.append([event.end])
    return len(busy) - 1


def _of_host(steps: Sequence[Step], events: Sequence[Event]) -> list[Event]:
    """Return events for the time of each step before and after the framework's operations."""
    starts = sorted(event.start for event in events)
    ends = sorted(event.end for event in events)
    found = []

    def add(operation: str, phase: str, start: float, end: float) -> None:
        if end > start:
            found.append(Event(operation, operation, phase, _PYTHON, start, end - start))

    for step in steps:
        began = _epoch(step.started)
        ready, over = began + step.waited * 1e6, began + step.seconds * 1e6
        first = starts[min(bisect_left(starts, ready), len(starts) - 1)]
        last = ends[max(bisect_right(ends, over) - 1, 0)]
        add("wait for the batch", "data", began, ready)
        add("hand the batch over", "data", ready, first)
        add("fetch the results", "other", last, over)
    return found


def _epoch(seconds: float) -> float:
    """Return a time of `time.perf_counter` in microseconds since the epoch."""
    return time.time_ns() / 1e3 - (time.perf_counter() - seconds) * 1e6


def _milliseconds(steps: Sequence[Step]) -> float:
    return 1e3 * statistics.fmean(step.seconds for step in steps)
