"""Files and folders that are written whole or not at all."""

import contextlib
import io
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from parity.base.errors import UsageError

# In the folder of a run, or of a trace; how one begins that a run has written: any other is a
# user's own, and never replaced.
CONFIG = "config.yaml"
HEADER = "# The whole configuration of a run. --config reads it, and flags win over it.\n"

MOST_BYTES = 256 * 2**20  # of a file that is read whole
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

UNFINISHED = ".unfinished-"  # prefix of the names of temporary files and folders
_NAME_LENGTH = 40  # characters of a file's name in that of its temporary file
_ABANDONED_SECONDS = 24 * 3600.0  # a process killed while writing cannot clean up after itself


def reason(error: OSError) -> str:
    """Return the operating system's message without its number and path."""
    return error.strerror or str(error)


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file; nothing of a pipe or a device is waited for.

    Args:
      path: the file.
      most: the greatest number of bytes.

    Raises:
      OSError: if it cannot be read.
      UsageError: if it is no regular file, or larger.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"{path}: is larger than {most:,} bytes; allowed: up to that size")
    return content


class _Input(io.FileIO):
    """A file to read that waits for nothing, and whose errors of any moment name it."""

    read = io.RawIOBase.read  # type: ignore[assignment]  # all ways to read, by readinto
    readall = io.RawIOBase.readall

    def __init__(self, path: Path):
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        super().__init__(path, opener=lambda name, _: os.open(name, flags))

    def readinto(self, buffer: Any) -> int:
        try:
            count = super().readinto(buffer)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.name)) from None
        if count is None:  # some files of /proc wait for what happens next
            raise UsageError(
                f"{self.name}: has no end, and nothing to read now; allowed: a file"
            )
        return count


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it, whose kind is checked before anything could wait for it.

    Raises:
      OSError: with the file's name, if it cannot be opened; also at any moment of reading it.
      UsageError: if it is no regular file; when read, if it is one that is waited for.
    """
    file = _Input(path)
    status = os.fstat(file.fileno())
    mode = status.st_mode
    empty = os.path.samestat(status, Path(os.devnull).stat())  # as good as an empty file
    if not stat.S_ISREG(mode) and not empty:
        file.close()
        kind = _kind(mode) or "no regular file"
        raise UsageError(f"{path}: is {kind}; allowed: a file")
    return io.BufferedReader(file)


def make_folder(folder: Path, *, read_only: bool = False) -> None:
    """Create a folder and its parents, and check that files can be written in it.

    What a killed process left unfinished in it a day ago or earlier is removed.

    Args:
      folder: the folder; it may exist already.
      read_only: accept an existing folder in which nothing can be written, such as a cache
        that already holds what is needed.

    Raises:
      UsageError: if the folder cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not read_only:
            remove_abandoned(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
    except FileExistsError:
        raise UsageError(
            f"{folder}: cannot be written: a file has this name; allowed: a folder"
        ) from None
    except OSError as error:
        raise _unwritable(folder, error) from None


def write_whole(
    path: Path, content: bytes | Iterable[bytes | memoryview], *, durable: bool = True
) -> None:
    """Write a file so that its name holds either the old content or all of the new.

    Args:
      path: the file.
      content: all of it, or its parts.
      durable: flush file and folder to the disk, so that a power cut does no harm either;
        without it only the death of the process is harmless.

    Raises:
      UsageError: if it cannot be written, or is no file; the old content and no temporary
        file remain.
    """
    check_is_file(path)
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=_unfinished(path.name), dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def check_is_file(path: Path) -> None:
    """Check that a file to be written is not, say, /dev/null: root would replace that itself.

    Raises:
      UsageError: if it is a device, a pipe or a socket, or a name in /dev, where stdout is a
        link.
    """
    in_dev = path.parent == Path(os.devnull).parent
    kind = "a device" if in_dev else None
    with contextlib.suppress(OSError):  # it is not there, or cannot be
        kind = kind or _kind(path.stat().st_mode)
    if kind is not None:
        raise UsageError(f"{path}: is {kind}; allowed: a file")


def check_output(path: Path) -> None:
    """Check, before minutes of work, that a file can be written; make its folder.

    Raises:
      UsageError: if it cannot.
    """
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; allowed: a file's name")
    check_is_file(path)
    make_folder(path.parent)


def _kind(mode: int) -> str | None:
    return next((word for is_it, word in _KINDS if is_it(mode)), None)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` if the block succeeds.

    Two processes may do so at once: the first to finish wins, and the other's work is dropped.
    The block must sync the files that it writes.

    Raises:
      UsageError: if something in the folder cannot be written.
    """
    make_folder(folder.parent)
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
        temporary.chmod(0o777 & ~_umask())
        yield temporary
        sync_folder(temporary)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # a failure other than another process being first
                raise
        sync_folder(folder.parent)
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Flush a file's content to the disk; do this before the file gets its final name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames within a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove what this module started in a folder a day ago or earlier and never finished."""
    now = time.time()
    for path in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_file(path: Path) -> None:
    """Remove a file.

    Raises:
      UsageError: if it cannot be removed.
    """
    try:
        path.unlink()
    except OSError as error:
        raise UsageError(f"{path}: cannot be removed: {reason(error)}") from None


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove what killed processes left of a file that `write_whole` never finished.

    Only for the one process that may write the file: a write in progress would fail.

    Args:
      folder: the file's folder.
      name: the file's name, which may have the wildcards of `Path.glob`.
    """
    for path in folder.glob(f"{_unfinished(name)}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _unfinished(name: str) -> str:
    """Return how the name of a temporary file begins, cut where a long name would not fit."""
    return f"{UNFINISHED}{name[:_NAME_LENGTH]}."


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be written: {reason(error)}")


def _umask() -> int:
    mask = os.umask(0o022)  # it cannot be read without being set
    os.umask(mask)
    return mask


def written_by_run(path: Path) -> bool:
    """Return whether a run has written a file of this name.

    Raises:
      OSError: if it cannot be read.
      UsageError: if it is no regular file.
    """
    with open_regular(path) as file:
        return file.read(len(HEADER)) == HEADER.encode()
