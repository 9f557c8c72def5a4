"""The order in which asynchronous workers read the shared weights and update them.

All reads and updates go through one lock: each finds the weights whole, and each has its place
in one order. The workers keep to the order of a schedule, or else come as they are ready.
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from parity.twins.spec.schedule import Update


class Stopped(Exception):  # noqa: N818 - not an error: the worker has nothing left to do
    """Raised in a worker that takes no further part: the run ends, or another worker failed."""


class EventOrder:
    """Lets workers read and update the weights one at a time.

    Args:
      first: the number of the first update.
      schedule: the updates to apply, in their order, the first of them with the number `first`;
        None to let workers come as they are ready.
      stop: the number of the update after the last; None for no limit.

    Attributes:
      count: the number of the next update, which is the version of the weights as well.
    """

    def __init__(self, first: int, schedule: Sequence[Update] | None, stop: int | None = None):
        self.count = first
        self._stop, self._stopped = stop, False
        self._changed = threading.Condition()
        self._given = schedule is not None
        self._due: dict[int, deque[tuple[int, int]]] = defaultdict(deque)
        self._reads_left: Counter[int] = Counter()
        for number, (worker, read) in enumerate(schedule or (), first):
            self._due[worker].append((number, read))
            self._reads_left[read] += 1

    @contextmanager
    def reading(self, worker: int) -> Iterator[int]:
        """Wait for a worker's turn to read the weights; yield their version.

        No other worker reads or updates them until the context is left.

        Raises:
          Stopped: if the worker has no update left to do.
        """
        with self._changed:
            if self._given:
                if not self._due[worker]:
                    raise Stopped
                version = self._due[worker][0][1]
                self._wait(lambda: self.count == version)
            self._check()
            yield self.count
            if self._given:
                self._reads_left[self.count] -= 1
                self._changed.notify_all()

    @contextmanager
    def applying(self, worker: int) -> Iterator[int]:
        """Wait for a worker's turn to update the weights; yield the number of the update.

        No other worker reads or updates them until the context is left.

        Raises:
          Stopped: if the run has ended.
        """
        with self._changed:
            if self._given:
                number = self._due[worker].popleft()[0]
                self._wait(lambda: self.count == number and not self._reads_left[number])
            self._check()
            yield self.count
            self.count += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no worker read or update the weights any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _wait(self, is_due: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._stopped or is_due())

    def _check(self) -> None:
        if self._stopped or (self._stop is not None and self.count >= self._stop):
            raise Stopped
