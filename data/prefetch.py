"""Batches computed ahead of time, in a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetch(Generic[Item], Iterator[Item]):
    """Iterate over function(step) for start <= step < stop, computed in a background thread.

    An exception in the function is raised in place of its item. Use it as a context manager, or
    call `close`.

    Args:
      function: computes the item of a step; called only in the background thread.
      start: the first step.
      stop: the step after the last.
      depth: the most items that wait to be used.

    Attributes:
      waited: seconds spent so far waiting for an item that was not ready.
    """

    def __init__(
        self, function: Callable[[int], Item], start: int, stop: int, depth: int = 4
    ) -> None:
        self.waited = 0.0
        self._function, self._steps = function, range(start, stop)
        self._items: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
        self._left = len(self._steps)
        self._closed = threading.Event()
        # a daemon: a consumer that dies without closing must not keep the process alive
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)
        self._thread.start()

    def __next__(self) -> Item:
        if self._left == 0 or self._closed.is_set():
            raise StopIteration
        started = time.perf_counter()
        item, error = self._items.get()
        self.waited += time.perf_counter() - started
        self._left -= 1
        if error is not None:
            self._left = 0
            raise error
        return item  # type: ignore[return-value]  # None only beside an error

    def close(self) -> None:
        """Stop the thread, at the latest when the item it is computing is done."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._items.get_nowait()  # makes room for a thread that waits in `put`
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def __enter__(self) -> Prefetch[Item]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _produce(self) -> None:
        for step in self._steps:
            if self._closed.is_set():
                return
            try:
                item = self._function(step)
            # whatever it is, the consumer must not wait for ever
            except BaseException as error:  # noqa: BLE001
                self._items.put((None, error))
                return
            self._items.put((item, None))
