"""Standard output and standard error that may be closed, or lie on a full disk.

Python's own streams raise an OSError from whatever line happens to print, and once more when
the interpreter ends. Either would make an exit status that means something else, such as 1, a
mismatch.
"""

import errno
import io
import os
import select
import sys
from contextlib import suppress
from typing import Any

from parity.base.errors import OutputLost
from parity.base.files import reason

_VERDICTS = (0, 1)


def guard_standard_streams() -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams that survive being closed or full.

    Printing on standard output then raises OutputLost, once; what it does not take is dropped.
    What standard error does not take is dropped in silence: no work is given up for a remark.
    Streams that are not Python's own, such as those of a test, stay as they are.
    """
    # or the next file that is opened would get a standard stream's number, and its prints
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    for name, number, silent in (("stdout", 1, False), ("stderr", 2, True)):
        stream = getattr(sys, name)
        if stream is getattr(
            sys, f"__{name}__"
        ):  # both None where it was closed from the start
            setattr(sys, name, _guarded(stream, number, silent))


def final_status(status: int) -> int:
    """Flush the standard streams, and return the exit status of the command.

    Args:
      status: the status so far. A verdict that could not be printed becomes that of OutputLost,
        and one line on standard error says so; an error's status remains.
    """
    with suppress(OutputLost):  # noted in the stream
        sys.stdout.flush()
    stream = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(stream, _Descriptor) and stream.failure and status in _VERDICTS:
        print(f"error: {OutputLost(stream.failure)}", file=sys.stderr)
        status = OutputLost.exit_status
    sys.stderr.flush()
    return status


class _Descriptor(io.FileIO):
    """A file descriptor that takes everything, and remembers why it could not write.

    Args:
      number: of the descriptor, which stays open.
      silent: whether writing never raises.
      closed: whether it was closed when the process started, and is another file's now.
    """

    def __init__(self, number: int, silent: bool, closed: bool):
        super().__init__(number, "w", closefd=False)
        self.failure: str | None = None
        self._silent, self._closed = silent, closed

    def write(self, content: Any) -> int:
        if self.failure is None:
            try:
                if self._closed:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                # None: it is a pipe that does not block, and full
                while (written := super().write(content)) is None:
                    select.select([], [self], [])
                return written
            except OSError as error:
                self.failure = reason(error)
                if not self._silent:
                    raise OutputLost(self.failure) from None
        return memoryview(content).nbytes


def _guarded(stream: io.TextIOWrapper | None, number: int, silent: bool) -> io.TextIOWrapper:
    raw = _Descriptor(number, silent, closed=stream is None)
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace")
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        stream.encoding,
        stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
