"""How a process gets memory from the system, and how it ends: with its parent, by a signal.

By default the C library returns every large array to the kernel, which provides the next one as
pages of 4,096 bytes that are zeroed and mapped one by one: a fifth of the time of a training
step whose logits are 45 MB. What avoids that is specific to glibc, and has no effect elsewhere.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

from parity.base.errors import Interrupted

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, even if the parent is killed.

    Args:
      parent: the parent's process id.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the kernel was asked
        os._exit(1)


def prepare_child(parent: int, signals: set) -> None:
    """Let a process that was just forked end with its parent, and take signals again.

    Args:
      parent: the parent's process id.
      signals: those that were blocked before the fork, during which the exception of a signal's
        handler would be lost.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    die_with_parent(parent)


def stop_in_one_line() -> None:
    """Let a signal that asks to stop end this process with one line while it is loading."""
    for number in stop_signals():
        if signal.getsignal(number) == _UNTOUCHED.get(number, signal.SIG_DFL):
            signal.signal(number, _stopped)


def stop_as_python_does() -> None:
    """Take back `stop_in_one_line`: a command has been loaded."""
    for number in stop_signals():
        if signal.getsignal(number) == _stopped:
            signal.signal(number, _UNTOUCHED.get(number, signal.SIG_DFL))


_UNTOUCHED = {signal.SIGINT: signal.default_int_handler}


def _stopped(number: int, frame: Any) -> None:
    os.write(2, f"error: {_how(number)}\n".encode())
    os._exit(128 + number)


def _how(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else "terminated"


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Let the first signal that asks to stop raise an exception, so that all is cleaned up.

    Further ones are taken as by `request_once`, also after the block.

    Raises:
      KeyboardInterrupt: for SIGINT.
      Interrupted: for another one.
    """

    def stop(number: int) -> None:
        raise (
            KeyboardInterrupt if number == signal.SIGINT else Interrupted(_how(number), number)
        )

    handle, stopped = request_once(stop), False
    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        stopped = True
        raise
    finally:
        for number, handler in () if stopped else before.items():
            signal.signal(number, handler)


# A process group's signal reaches a rank directly, and again from what supervises it.
_SAME_REQUEST_SECONDS = 2.0


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask to stop; SIGHUP only unless it is ignored, as by `nohup`."""
    hangs_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])]


def request_once(act: Callable[[int], None]) -> Callable[[int, Any], None]:
    """Return a signal handler that acts on the first signal only.

    Any within 2 s of it is taken for the same request, and a later one kills the process.
    """
    first = 0.0

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        if not first:
            first = time.monotonic()
            act(number)
        elif time.monotonic() - first > _SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handle


def nothing_left_to_stop() -> None:
    """Let a signal that asks to stop change nothing while a command that is over ends.

    Python and the frameworks end with functions of their own, which would tell of it in a
    traceback, beside the status of a command that has succeeded.
    """
    late = request_once(lambda number: None)
    for number in stop_signals():
        signal.signal(number, late)


@contextmanager
def stop_signals_wait() -> Iterator[None]:
    """Let a signal that asks to stop wait until a library is done, unless it kills at once.

    A library that is being loaded takes an exception for an error of its own. What signals do
    is put back then: it may have put handlers of its own. Threads but the main one get none.
    """
    if current_thread() is not main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    waiting: list[int] = []
    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


def fork() -> int:
    """Fork this process, as `os.fork` does, with signals that ask to stop waiting meanwhile.

    Functions that Python calls after a fork, as those of `logging`, swallow exceptions: Ctrl-C
    would be lost in one.
    """
    with stop_signals_wait():
        return os.fork()


# Parameters of mallopt(3), from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, in one pool for all threads."""
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
