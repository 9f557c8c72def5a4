"""Finds out that a process waits in a step for ever, as an engine does for a lost peer.

Whatever is between two steps (reading, saving, evaluating) may take as long as it needs.
"""

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_SHORTEST, _MEDIANS = 120.0, 20.0  # seconds, and times a step of this run
_FIRST = 10.0  # times as long: an engine builds what it computes
_KEPT = 101  # steps


class StepWatch:
    """How long a process has been in its step, and how long it may be.

    Args:
      seconds: how long a step may take; None for 20 times the median of the last steps, at
        least 120 s. The first one may take ten times as long.
    """

    def __init__(self, seconds: float | None = None):
        self._seconds = seconds
        self._durations: deque[float] = deque(maxlen=_KEPT)
        self._began: float | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Let the body be one step."""
        began = self._began = time.monotonic()
        yield
        self._began = None
        self._durations.append(time.monotonic() - began)

    def add(self, seconds: float) -> None:
        """Do not count some seconds, in which the whole process stood still."""
        if self._began is not None:
            self._began += seconds

    def overdue(self) -> float | None:
        """Return for how many seconds it has been in a step, if that is too long; or None."""
        began, durations = self._began, list(self._durations)
        if began is None:
            return None
        limit = self._seconds or _SHORTEST
        if not durations:
            limit *= _FIRST
        elif self._seconds is None:
            limit = max(limit, _MEDIANS * statistics.median(durations))
        waited = time.monotonic() - began
        return waited if waited > limit else None
