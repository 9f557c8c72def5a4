"""The folder of a trace: the names of its files, and what identifies a tensor in them."""

import hashlib
import re
import shutil
import zlib
from pathlib import Path

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import CONFIG, UNFINISHED, check_output, written_by_run
from parity.base.locks import LOCK

FORMAT = 9  # 9: `folded`, twice as fast as the CRC-32 of 7, four times the SHA-256 of 6
FORMATS = (6, 7, FORMAT)  # that can be read; 8 held statistics with a CRC-32

DTYPES = ("float64", "float32")
_ROW = 1 << 16  # bytes: two of them stay in the cache of a core
_TURN = 3  # bytes that a row is turned by
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: 2 ** 64 by the golden ratio
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


def folded(array: np.ndarray) -> str:
    """Return the checksum of an array's type, shape and bytes: a CRC-32, of folded rows.

    Integers fold them, alike everywhere, in half the time that the CRC-32 of all would take.
    A product spreads what changes at the bottom of a word to its top, and a turn of the row
    brings the top to the bottom of the next word: equal changes in two rows, such as of signs,
    do not cancel. Some unequal ones do: bit 39 of a word, and bit 63 of it a row below.
    """
    data, found = content(array), zlib.crc32(_kind(array))
    if whole := len(data) // _ROW * _ROW:
        state, turned = np.zeros(_ROW, np.uint8), np.zeros(_ROW + _TURN, np.uint8)
        words, product = turned[:_ROW].view("<u8"), state.view("<u8")
        for row in np.asarray(data[:whole]).reshape(-1, _ROW):
            np.bitwise_xor(state, row, out=turned[_TURN:])
            turned[:_TURN] = turned[_ROW:]
            np.multiply(words, _FACTOR, out=product)
        found = zlib.crc32(state.data, found)
    return f"{zlib.crc32(data[whole:], found):08x}"


def crc32(array: np.ndarray) -> str:
    """Return the checksum of the same that traces of format 7 hold."""
    return f"{zlib.crc32(content(array), zlib.crc32(_kind(array))):08x}"


def sha256(array: np.ndarray) -> str:
    """Return the hash of the same that traces of format 6 hold."""
    return hashlib.sha256(_kind(array) + content(array)).hexdigest()


# key of a line of the index -> what is computed of each tensor
DIGESTS = {each.__name__: each for each in (folded, crc32, sha256)}


def content(array: np.ndarray) -> memoryview:
    """Return an array's bytes in C order, copied only if they lie in another."""
    return np.asarray(array, order="C").reshape(-1).view(np.uint8).data


def _kind(array: np.ndarray) -> bytes:
    return f"{array.dtype.str}{array.shape}".encode()


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
