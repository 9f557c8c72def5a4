"""Files that are written whole or not at all."""

import os
import tempfile
from pathlib import Path

from parity.base.errors import UsageError


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and see that it can be written.

    Raises:
      UsageError: if that fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that its name holds either the old content or all of the new.

    Args:
      durable: also flush file and folder to the disk, so that this holds through a power cut;
        without it, it holds through the death of the process.

    Raises:
      UsageError: if it cannot be written; the old content and no temporary file remain.
    """
    handle = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        handle = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        handle.chmod(0o666 & ~_umask())
        handle.replace(path)
        if durable:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if handle is not None:
            handle.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
