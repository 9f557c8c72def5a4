"""Caches of encoded text: folders named after the content that they were made of.

The name of a folder contains a hash of the text's content and of the settings, so a changed
file is another folder, and two processes that encode the same text write the same bytes. A
folder is there whole or not at all, and one in which any file does not hold what was written is
made again, with a line that says why.

The processes of a training start at once and need the same text: one of them encodes it, while
the others wait.

Hashes are XXH3's of 128 bits: they catch any disk corruption, and are so fast that a cache is
checked in full at every start. They are no protection against malice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import xxhash

from data.text_file import MAX_LINE, open_input
from parity.base.errors import UsageError
from parity.base.files import UNFINISHED, new_folder, open_regular, read_file, write_whole
from parity.base.locks import lock_file
from parity.base.progress import say

Stats = Mapping[Path, tuple[int, ...]]  # file -> what changes whenever it does

_HASHES = "hashes"  # the file of a folder that lists what the others hold


def file_stats(paths: Iterable[Path]) -> Stats:
    """Return numbers that change whenever a file does; its change time cannot be set back."""
    found = {}
    for path in paths:
        with open_input(path) as file:
            stat = os.fstat(file.fileno())
        found[path] = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    return found


def file_hash(path: Path) -> str:
    """Return a file's sha256, in hexadecimal."""
    digest = hashlib.sha256()
    with open_input(path) as file:
        while chunk := file.read(MAX_LINE):
            digest.update(chunk)
    return digest.hexdigest()


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return the sha256 of settings, in hexadecimal."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def cached_folder(
    folder: Path, facts_name: str, make: Callable[[Path], None], sources: Stats
) -> dict[str, Any]:
    """Return the facts about a folder of the cache, made if it is missing or damaged.

    Args:
      folder, make, sources: as for `make_whole`.
      facts_name: the file of the folder that holds the facts, in JSON.

    Raises:
      UsageError: as `make_whole`.
    """
    make_whole(folder, make, sources)
    facts: dict[str, Any] = json.loads((folder / facts_name).read_bytes())
    return facts


def make_whole(
    folder: Path, make: Callable[[Path], None], sources: Stats = MappingProxyType({})
) -> None:
    """Make a folder of the cache if it is missing or any of its files is damaged.

    Args:
      folder: the folder, in the cache.
      make: writes its files to a temporary folder.
      sources: the files that it reads, as `file_stats` saw them before they were hashed.

    Raises:
      UsageError: if the folder cannot be written, or a source was changed in between.
    """
    if corruption(folder) is None:
        return
    with only_process(folder):
        found = corruption(folder)  # another process may have made it
        if found is None:
            return
        if folder.is_symlink() or folder.exists():
            say(f"{folder}: made anew: {found}")
            _remove(folder)
        with new_folder(folder) as temporary:
            make(temporary)
            for path in sources:
                if file_stats([path])[path] != sources[path]:
                    raise UsageError(f"{path}: this file was changed while it was read")
            write_whole(temporary / _HASHES, _hashes(temporary, folder.name))
        found = corruption(folder)
        if found is not None:
            raise UsageError(f"{folder}: just written, and damaged already: {found}")


def corruption(folder: Path) -> str | None:
    """Return in words how a folder of the cache differs from what was written, or None."""
    try:
        written = read_file(folder / _HASHES)
        found = _hashes(folder, folder.name)
    except OSError as error:
        return f"{Path(error.filename).name} cannot be read"
    except UsageError as error:
        return str(error).removeprefix(f"{folder}/")
    if found == written:
        return None
    changed = set(found.splitlines()) - set(written.splitlines())
    if not changed:
        return f"a file is missing, or {_HASHES} is damaged"
    name = os.fsdecode(min(line.partition(b"  ")[2] for line in changed))
    return f"{name} does not hold what was written"


def _hashes(folder: Path, name: str) -> bytes:
    """Return a line per file: its hash, and its name. They are those of a folder of `name`."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name != _HASHES:
            digest = xxhash.xxh3_128(os.fsencode(f"{name}\0{path.name}\0"))
            with open_regular(path) as file:
                while chunk := file.read(MAX_LINE):
                    digest.update(chunk)
            lines.append(f"{digest.hexdigest()}  {path.name}\n")
    return os.fsencode("".join(lines))


def _remove(path: Path) -> None:
    """Remove what stands in the place of a folder of the cache, which can be made again."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        _unlink(path)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Let one process at a time make something in the cache; the others wait here.

    When a process ends, however it does, the kernel lets the next one in.

    Args:
      path: what is made.
    """
    lock = path.with_name(f"{UNFINISHED}{path.name}.lock")

    def wait() -> None:
        say(f"{path}: another process is making this; waiting for it")

    with contextlib.ExitStack() as stack:
        # A read-only cache, and some disks, have no locks: then several processes may do the
        # same work, and what the first one writes is kept.
        with contextlib.suppress(OSError):
            stack.enter_context(lock_file(lock, wait))
            stack.callback(_unlink, lock)
        yield


def write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    """Write the facts about a folder of the cache."""
    write_whole(path, json.dumps(facts, indent=1).encode())


def sync(*files: BinaryIO) -> None:
    """Flush open files to the disk."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())
