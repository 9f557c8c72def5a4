"""The folder of a trace: the names of its files, and what identifies a tensor in them."""

import hashlib
import re
import shutil
from pathlib import Path

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import CONFIG, UNFINISHED, written_by_run
from parity.base.locks import LOCK

FORMAT = 6  # 6: settings by name; the weights that a worker read

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


def sha256(array: np.ndarray) -> str:
    """Return the hash of an array's type, shape and bytes."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


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
