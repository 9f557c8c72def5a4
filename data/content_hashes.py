"""Hashes that tell whether a file of the cache still holds what was written.

They are XXH3's of 128 bits: no mistake of a disk gets past them, and they are so fast that a
cache is checked in full at every start. They are no protection against malice.
"""

from __future__ import annotations

import re
from pathlib import Path

import xxhash

from parity.base.files import write_whole

HASHES = "hashes"  # the file of a folder that lists the others: a hash, two spaces, a name
_CHUNK = 1 << 20
_DIGITS = 32  # of a hash, in hexadecimal
_LINE = re.compile(rf"([0-9a-f]{{{_DIGITS}}})  ([^/\0]+)")


def sealed(content: bytes, name: str) -> bytes:
    """Return content after a line with the hash of it and of its name.

    Args:
      content: any bytes.
      name: what the content is of, so that it cannot pass for that of something else.
    """
    return f"{_hash(content, name)}\n".encode() + content


def unsealed(content: bytes, name: str) -> bytes | None:
    """Return the content that `sealed` was given, or None if it is another one by now."""
    seal, rest = content[: _DIGITS + 1], content[_DIGITS + 1 :]
    return rest if seal == f"{_hash(rest, name)}\n".encode() else None


def write_hashes(folder: Path, name: str) -> None:
    """Write the hashes of all files of a folder, which holds no folders.

    Args:
      folder: the folder.
      name: the name that it will have.

    Raises:
      OSError: if a file cannot be read.
      UsageError: if the hashes cannot be written.
    """
    lines = [f"{_file_hash(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    write_whole(folder / HASHES, sealed("".join(lines).encode(), name))


def damage(folder: Path) -> str | None:
    """Return in words how a folder differs from what `write_hashes` saw; None if in nothing."""
    try:
        listed = unsealed((folder / HASHES).read_bytes(), folder.name)
    except OSError:
        return f"{HASHES} cannot be read"
    if listed is None:
        return f"{HASHES} is damaged, or another folder's"
    for line in listed.decode(errors="replace").removesuffix("\n").split("\n"):
        matched = _LINE.fullmatch(line)
        if matched is None:
            return f"{HASHES} does not list files"
        expected, name = matched.groups()
        try:
            if _file_hash(folder / name) != expected:
                return f"{name} does not hold what was written"
        except OSError:
            return f"{name} cannot be read"
    return None


def _hash(content: bytes, name: str) -> str:
    return xxhash.xxh3_128_hexdigest(name.encode() + b"\0" + content)


def _file_hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
