"""SIGINT and SIGTERM end a training after the current step, on all ranks at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parity.twins.processes.group import ProcessGroup


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


def agreed_signal(group: ProcessGroup, asked: int) -> int:
    """Return the signal that asks the training to stop, or 0 as long as not all know of it.

    Args:
      group: the processes of the training.
      asked: the signal that this process has received, or 0.
    """
    if group.size == 1:
        return asked or group.stop_asked
    group.stop_asked = asked  # the next step tells the others
    return (asked or signal.SIGTERM) if group.stop_agreed else 0
