"""What the caches of encoded text have in common: files known by their content."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from data.text import MAX_LINE, open_input
from parity.base.files import write_whole

_RACY_SECONDS = 2.0  # a file changed this recently may change again within its time stamp


def file_stat(path: Path) -> list[int]:
    """Return what changes whenever a file does; the change time cannot be set back."""
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
