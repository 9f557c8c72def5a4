"""Handles SIGINT and SIGTERM: they end a run after the current step."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopRequest:
    """A request to stop the run.

    Attributes:
      signal: the number of the signal that asked the run to stop; 0 if none has.
    """

    signal: int = 0


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Let SIGINT and SIGTERM only request a stop; a second signal kills the process at once."""
    request = StopRequest()

    def handle(number: int, frame: Any) -> None:
        if request.signal:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        request.signal = number

    before = {
        number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
