"""SIGINT and SIGTERM end a run after the step that is under way."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped:
    """Which signal asked the run to stop, if any."""

    signal: int = 0


@contextmanager
def catch_signals() -> Iterator[Stopped]:
    """Let SIGINT and SIGTERM stop the run after the step; a second one stops it at once."""
    stopped = Stopped()

    def handle(number: int, frame: Any) -> None:
        if stopped.signal:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stopped.signal = number

    before = {
        number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
