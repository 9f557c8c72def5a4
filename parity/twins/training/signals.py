"""SIGINT, SIGTERM and SIGHUP end a training after the current step, on all ranks at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from parity.base.process import request_once, stop_signals
from parity.twins.processes.group import ProcessGroup


class StopRequest:
    """A request to stop the run.

    Attributes:
      signal: the number of the signal that asked the run to stop; 0 if none has.
    """

    signal: int = 0


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Let a signal only request a stop; see `request_once` for further ones.

    Once a stop is requested the process is about to end: the signals keep this meaning then.
    """
    request = StopRequest()

    def ask(number: int) -> None:
        request.signal = number

    handle = request_once(ask)
    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield request
    finally:
        if not request.signal:
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
