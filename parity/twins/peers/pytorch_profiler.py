"""Reads PyTorch's profiler: which operations ran in some training steps, and when.

A replica names the phase that it is in; each operation belongs to the phase during which it
started on the same thread.

Source: docs.pytorch.org/docs/stable/profiler.html
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.twins.training.timeline import Event

_MARK = "phase: "
_REDUCES = ("all_reduce", "allreduce")


def phase(name: str) -> AbstractContextManager[Any]:
    """Return a context whose operations belong to a phase of a step.

    Args:
      name: one of `parity.twins.training.timeline.PHASES`.
    """
    marked: AbstractContextManager[Any] = torch.profiler.record_function(_MARK + name)
    return marked


class Profiler:
    """PyTorch's profiler of one process.

    Args:
      name: what the process is called in a trace.
    """

    def __init__(self, name: str):
        self._name = name
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        )
        self._profile.start()

    def stop(self) -> list[Event]:
        """Stop it, and return the operations of all phases, in the order of their starts."""
        self._profile.stop()
        profiler: Any = self._profile.profiler
        origin = profiler.kineto_results.trace_start_ns() / 1e3
        threads = defaultdict(list)
        for each in profiler.function_events:
            threads[each.thread].append(each)
        found: list[Event] = []
        for number, events in enumerate(threads.values()):
            thread = f"{self._name}, thread {number}" if number else self._name
            found += _of_thread(events, thread, origin)
        return sorted(found, key=lambda event: event.start)


def _of_thread(events: Iterable[Any], thread: str, origin: float) -> Iterable[Event]:
    """Yield the operations of one thread that belong to a phase.

    Args:
      events: those of PyTorch's profiler, with their times in microseconds.
      thread: the name of the thread.
      origin: the time 0 of the events, in microseconds since the epoch.
    """
    ordered = sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end))
    current, until = "", 0.0
    for each in ordered:
        start, duration = each.time_range.start, each.time_range.elapsed_us()
        if each.name.startswith(_MARK):
            current, until = each.name.removeprefix(_MARK), each.time_range.end
            continue
        of = "all-reduce" if any(word in each.name for word in _REDUCES) else current
        if start <= until or of == "all-reduce":
            within = duration - each.self_cpu_time_total
            yield Event(each.name, each.name, of, thread, origin + start, duration, within)
