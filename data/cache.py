"""Caches of encoded text: files known by their content, and folders named after what made them.

The name of a folder contains a hash of the text's content and of the settings, so a changed
file is another folder, and two processes that encode the same text write the same bytes. A
folder is there whole or not at all, and one that was damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from data.text_file import MAX_LINE, open_input
from parity.base.errors import UsageError
from parity.base.files import new_folder, write_whole

_RACY_SECONDS = 2.0  # a file changed this recently may change again within its time stamp


def file_stat(path: Path) -> list[int]:
    """Return numbers that change whenever a file does; its change time cannot be set back."""
    with open_input(path) as file:
        stat = os.fstat(file.fileno())
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def file_hash(path: Path, cache: Path) -> str:
    """Return a file's sha256, without reading it if it has not changed since the last time."""
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    remembered = cache / f"text-{name}.json"
    before, now = file_stat(path), time.time()
    try:
        seen = json.loads(remembered.read_bytes())
        if seen["stat"] == before:
            return str(seen["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not remembered: read the file
    digest = hashlib.sha256()
    with open_input(path) as file:
        while chunk := file.read(MAX_LINE):
            digest.update(chunk)
    # a change within the same tick of the clock would leave the time stamp as it is
    if file_stat(path) == before and max(before[-2:]) / 1e9 < now - _RACY_SECONDS:
        record = {"path": str(path), "stat": before, "sha256": digest.hexdigest()}
        write_whole(remembered, json.dumps(record).encode())
    return digest.hexdigest()


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return the sha256 of settings, in hexadecimal."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def cached_folder(
    folder: Path,
    facts_name: str,
    sizes: Callable[[dict[str, Any]], dict[str, int]],
    make: Callable[[Path], None],
) -> dict[str, Any]:
    """Return the facts about a folder of the cache, made if it is missing or damaged.

    Args:
      folder: the folder, in the cache.
      facts_name: the file of the folder that holds the facts, in JSON.
      sizes: returns, given the facts, the size in bytes of each file that must be there.
      make: writes the files and the facts to a temporary folder.

    Raises:
      UsageError: if the folder cannot be written.
    """
    facts = _read_facts(folder, facts_name, sizes)
    if facts is None:
        if folder.exists():  # damaged; what is left is ours alone and can be made again
            shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as temporary:
            make(temporary)
        facts = _read_facts(folder, facts_name, sizes)
        if facts is None:
            raise UsageError(f"{folder}: what was just written here is gone or damaged")
    return facts


def write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    """Write the facts about a folder of the cache."""
    write_whole(path, json.dumps(facts, indent=1).encode())


def sync(*files: BinaryIO) -> None:
    """Flush open files to the disk."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())


def _read_facts(
    folder: Path, facts_name: str, sizes: Callable[[dict[str, Any]], dict[str, int]]
) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads((folder / facts_name).read_bytes())
        for name, size in sizes(facts).items():
            if (folder / name).stat().st_size != size:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts
