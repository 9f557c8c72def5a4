"""The folder of a trace: the names of its files, and what identifies a tensor in them."""

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from isal import isal_zlib

from parity.base.errors import UsageError
from parity.base.files import CONFIG, UNFINISHED, check_output, written_by_run
from parity.base.locks import LOCK

FORMAT = 7  # 7: CRC-32, four times as fast as the SHA-256 of 6, and enough against accidents
WITH_REDUCED = 8  # the same, with tensors that are not there whole
FORMATS = (6, FORMAT, WITH_REDUCED)  # that can be read

DTYPES = ("float64", "float32")
LAST_STEP = 999_999  # six digits in the name of its file


def step_file(step: int) -> str:
    """Return the name of a step's file."""
    return f"step-{step:06d}.safetensors"


# Six digits: a checkpoint has eight, so it is never taken for a step and removed.
_STEP_FILE = re.compile(r"step-\d{6}\.safetensors")
# There while a trace is written; a writer that was killed or that failed leaves it.
RECORDING = ".recording"
# Every file of a trace, with what a killed writer leaves.
_UNFINISHED = re.escape(UNFINISHED) + r"(trace|step-\d{6}|config)\..*"
_OTHERS = rf"steps\.jsonl|trace\.json|{re.escape(RECORDING)}|{re.escape(CONFIG)}"
_PART = re.compile(rf"{_OTHERS}|{_STEP_FILE.pattern}|{_UNFINISHED}")


def crc32(array: np.ndarray) -> str:
    """Return the checksum of an array's type, shape and bytes."""
    kind = isal_zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
    return f"{isal_zlib.crc32(content(array), kind):08x}"


def sha256(array: np.ndarray) -> str:
    """Return the hash of the same, which traces of format 6 hold."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(content(array))
    return digest.hexdigest()


# key of a line of the index -> what is computed of each tensor
DIGESTS: dict[str, Callable[[np.ndarray], str]] = {"crc32": crc32, "sha256": sha256}


def content(array: np.ndarray) -> memoryview:
    """Return an array's bytes in C order, copied only if they lie in another."""
    return np.asarray(array, order="C").reshape(-1).view(np.uint8).data


def trace_files(folder: Path) -> list[Path]:
    """Return the files of a folder that holds a trace and nothing else, without its lock.

    Raises:
      UsageError: if it holds anything that is not part of a trace.
    """
    paths = [path for path in folder.iterdir() if path.name != LOCK]
    for path in paths:
        if not _PART.fullmatch(path.name) or (path.name == CONFIG and not written_by_run(path)):
            raise UsageError(f"{folder}: holds {path.name!r}, which is no part of a trace")
    return paths


def check_no_part(path: Path) -> None:
    """Check, before minutes of work, that a file can be written and is no part of a trace.

    Raises:
      UsageError: if it cannot, or is.
    """
    check_output(path)
    if _PART.fullmatch(path.name) and (path.parent / "trace.json").exists():
        raise UsageError(f"{path}: is part of a trace; allowed: another name")


def step_files(folder: Path) -> list[Path]:
    """Return the files of the steps that a folder holds."""
    return [path for path in folder.iterdir() if _STEP_FILE.fullmatch(path.name)]


def clear_trace(folder: Path) -> None:
    """Remove a trace and nothing else.

    Raises:
      UsageError: if the folder exists and holds anything that is not part of a trace.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder; allowed: a trace's folder, or a new name")
    trace_files(folder)
    shutil.rmtree(folder)
