"""Files that one process at a time has locked.

The locks are POSIX's, of `fcntl.lockf`: no child process shares one and keeps it when its
holder is dead, as it would one of flock(2), and over NFS they hold between hosts. When a holder
ends, however it does, the kernel frees its lock.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from parity.base.errors import UsageError
from parity.base.files import make_folder, read_file, reason
from parity.base.progress import say

# Process -> the folders that it writes to: a lock keeps out no other holder in its process.
_written: set[tuple[int, Path]] = set()
LOCK = ".lock"  # in a folder that one process at a time may write to
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)  # some disks have none
_NAMED_SECONDS = 1.0  # a holder writes its name right after it has the lock


def lock_file(path: Path, when_held: Callable[[], None]) -> BinaryIO:
    """Return a file that no other process has locked, and that has this name still.

    To release it, remove the file, then close it.

    Args:
      path: the file, made if it is missing.
      when_held: called once if another process has it locked; unless it raises an exception,
        this function then waits for that process.

    Raises:
      OSError: if the file cannot be opened, or there are no locks where it is.
    """
    waits = False
    while True:
        file = path.open("a+b")
        try:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                if not waits:
                    when_held()
                waits = True
                fcntl.lockf(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                # whoever had it locked before may have removed it
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


@contextlib.contextmanager
def only_writer(folder: Path, flag: str = "--out") -> Iterator[None]:
    """Be the only process that writes to a folder; it is made if it is missing.

    Args:
      folder: the folder.
      flag: the option that names it, for messages.

    Raises:
      UsageError: naming the process that does already and its host, or if the folder cannot be
        written.
    """
    made, path = not folder.exists(), folder / LOCK

    def refuse() -> None:
        raise UsageError(
            f"{folder}: {_holder(path)} is writing to it; allowed: another {flag}, or to wait "
            "until that process ends"
        )

    mine = os.getpid(), folder.resolve()
    if mine in _written:
        raise UsageError(
            f"{folder}: this process is writing to it; allowed: another {flag}, or to end that "
            "first"
        )
    with contextlib.ExitStack() as stack:
        file = _lock_in(folder, refuse)
        _written.add(mine)
        stack.callback(_written.discard, mine)
        if file is not None:
            stack.enter_context(file)
            stack.callback(_remove, path, os.getpid(), made)
            # a full disk is the run's to report, once it has something to write
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), f"{os.getpid()} {socket.gethostname()}\n".encode())
        yield


def _lock_in(folder: Path, refuse: Callable[[], None]) -> BinaryIO | None:
    """Make a folder if it is missing and return its lock; None where there are no locks."""
    while True:
        make_folder(folder)
        try:
            return lock_file(folder / LOCK, refuse)
        except FileNotFoundError:  # removed by a run that has made it, and was refused
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise UsageError(f"{folder}: cannot be written: {reason(error)}") from None
            say(f"{folder}: cannot be locked: {reason(error)}; no other run may write to it")
            return None


def _holder(path: Path) -> str:
    """Return in words which process holds a lock, from what it has written there."""
    last = time.monotonic() + _NAMED_SECONDS
    while time.monotonic() < last:
        with contextlib.suppress(OSError, UsageError, ValueError):
            process, host = read_file(path).decode(errors="replace").split()
            return f"process {int(process)} on {host}"
        time.sleep(0.01)
    return "another process"


def _remove(lock: Path, owner: int, made: bool) -> None:
    """Remove a lock, and the folder made for it in which a refused run has written nothing."""
    if os.getpid() != owner:  # a child process that leaves its parent's contexts
        return
    with contextlib.suppress(OSError):  # a file that nobody has locked keeps nobody out
        lock.unlink()
        if made:
            lock.parent.rmdir()
