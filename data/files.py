"""Files and folders written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from data.errors import InputError

UNFINISHED = ".unfinished-"  # how the names of temporary files and folders start
_ABANDONED_SECONDS = 24 * 3600.0  # a process killed while writing cannot clean up after itself


def reason(error: OSError) -> str:
    """Return what the operating system says, without number and path."""
    return error.strerror or str(error)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; one that is there is fine.

    Raises:
      InputError: if it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(
            f"{folder}: a folder is needed here, but a file has this name"
        ) from None
    except OSError as error:
        raise InputError(f"{folder}: cannot create this folder: {reason(error)}") from None


def sync_file(path: Path) -> None:
    """Have a file's content on the disk before its name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames within a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
      InputError: if it cannot be written; what was there before is still there.
    """
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot write this file: {reason(error)}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` if the block ends well.

    Two processes may do so at once: the first to finish wins, the other's work is dropped.
    Files must be synced by whoever writes them.

    Raises:
      InputError: if something in the folder cannot be written.
    """
    make_folder(folder.parent)
    remove_abandoned(folder.parent)
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
        temporary.chmod(0o777 & ~_umask())
        yield temporary
        sync_folder(temporary)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # anything but having come second
                raise
        sync_folder(folder.parent)
    except OSError as error:
        raise InputError(f"{folder}: cannot write here: {reason(error)}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove what this module began in a folder a day ago or earlier and never finished."""
    now = time.time()
    for path in parent.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _umask() -> int:
    mask = os.umask(0o022)  # there is no way to read it but to set it
    os.umask(mask)
    return mask
