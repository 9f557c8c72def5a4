"""One file out of an archive that someone else has made."""

import contextlib
import gzip
import lzma
import posixpath
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

_CHUNK = 1 << 16  # bytes
_DAMAGED = (  # what reading an archive may raise; RuntimeError: it has a password
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,  # such as a name that is no UTF-8
    struct.error,
)
# Of an archive, uncompressed bytes for each compressed one; text has about 4, a bomb 1,000.
_MOST_RATIO, _RATIO_FROM = 100, 1 << 20


class SourceError(Exception):
    """A source did not provide what it should; the message is one line."""


def unpack(archive: Path, member: str, target: Path, source: str, most: int) -> None:
    """Write the content of one member, of `most` bytes at most, to a file.

    No name in the archive is ever used as a path, so nothing can be written elsewhere. An
    archive that tries is refused all the same: it is not the corpus.
    (`extractall` with `filter="data"` is not in Python 3.11.3 and older.)

    Args:
      source: the archive's address, whose ending says what it is.
      most: bytes; one that unpacks to more is refused after the first too many.

    Raises:
      SourceError: if it cannot be unpacked, or is not what it should be.
      OSError: if the archive cannot be read or the file not be written.
    """
    try:
        with contextlib.ExitStack() as stack:
            content: IO[bytes] | None
            if source.endswith(".zip"):
                zipped = stack.enter_context(zipfile.ZipFile(archive))
                _check_names(zipped.namelist(), source)
                content = stack.enter_context(zipped.open(member))
            else:
                tar = stack.enter_context(tarfile.open(archive))
                entries = _entries(tar, archive.stat().st_size, source)
                _check_names(entries, source)
                content = tar.extractfile(entries[member])  # None for a folder or a device
            if content is None:
                raise KeyError(member)
            with target.open("wb") as file:
                for part in _read(content, most, f"{source}: {member}"):
                    file.write(part)
    except KeyError:
        raise SourceError(f"{source}: no file {member} in this archive") from None
    except _DAMAGED as error:
        raise SourceError(f"{source}: not an archive, or a damaged one: {error}") from None


def _read(content: IO[bytes], most: int, what: str) -> Iterator[bytes]:
    """Yield a member's bytes in parts; a small file may unpack to any size."""
    size = 0
    while True:
        try:
            part = content.read(_CHUNK)
        except OSError as error:
            if error.errno is not None:  # the archive cannot be read
                raise
            raise EOFError(str(error)) from None  # bzip2 has no error of its own
        if not part:
            return
        size += len(part)
        if size > most:
            raise SourceError(f"{what}: unpacks to more than the {most:,} bytes allowed")
        yield part


def _entries(tar: tarfile.TarFile, size: int, source: str) -> dict[str, tarfile.TarInfo]:
    """Return normalised name -> entry of a tar archive of `size` bytes, compressed."""
    entries, unpacked, most = {}, 0, _MOST_RATIO * size + _RATIO_FROM
    try:
        for entry in tar:
            entries[posixpath.normpath(entry.name)] = entry
            unpacked += entry.size
            if unpacked > most:
                raise SourceError(f"{source}: unpacks to more than the {most:,} bytes allowed")
    except OSError as error:
        if error.errno is not None:
            raise
        raise EOFError(str(error)) from None
    return entries


def _check_names(names: Iterable[str], source: str) -> None:
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise SourceError(f"{source}: member {name!r} points out of its folder")
