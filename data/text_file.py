"""Text files read as UTF-8, one block at a time; errors name the line and the byte.

A line ends at "\\n" or "\\r\\n" and nowhere else; the last line needs no end. Words are what
`str.split()` finds, so a line of spaces, of U+3000 or of nothing holds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from parity.base.errors import UsageError
from parity.base.files import open_regular, reason

MAX_LINE = 1 << 20  # bytes; also the most that is read at once, see `_cut_first_line`
CUT = "\0"  # ends a piece of a line that was cut, if asked for; text never contains it

_HEAD = 4096  # bytes that show what kind of file it is
_MARK = b"\xef\xbb\xbf"  # UTF-8's byte-order mark
_NOT_TEXT = (  # first bytes of files that are often passed as text by mistake
    (b"\x1f\x8b", "gzip", "unpack it first"),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"BZh", "bzip2", "unpack it first"),
    (b"\xfd7zXZ\x00", "xz", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstandard", "unpack it first"),
    (b"\xff\xfe\x00\x00", "UTF-32", "save it as UTF-8"),
    (b"\x00\x00\xfe\xff", "UTF-32", "save it as UTF-8"),
    (b"\xff\xfe", "UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16", "save it as UTF-8"),
)


def read_blocks(
    path: Path,
    notes: list[str],
    progress: Callable[[int], None] = lambda count: None,
    mark_cuts: bool = False,
) -> Iterator[str]:
    """Yield a text file as strings of whole lines, each line ending in "\\n".

    No more than about 4 * MAX_LINE bytes are held at once. A line of more than MAX_LINE bytes
    is cut into several, at a space where there is one.

    Args:
      path: the file.
      notes: one-line remarks for the user are appended here, each starting with the path.
      progress: called with the number of bytes after each read.
      mark_cuts: whether all pieces of a line that was cut, except for the last, end in `CUT`,
        for a reader that skips such lines.

    Raises:
      UsageError: if the file is missing, empty, not a file, not readable, or not UTF-8 text.
    """
    with open_input(path) as file:
        head = file.read(_HEAD)
        _check_head(path, head)
        offset = 0
        if head.startswith(_MARK):
            notes.append(f"{path}: the UTF-8 byte-order mark was left out")
            head, offset = head[len(_MARK) :], len(_MARK)
            progress(offset)
        block, first_line, noted = b"", 1, 0  # `block` is at `first_line` and `offset`
        for chunk in chain([head], iter(partial(file.read, MAX_LINE), b""), [b""]):
            progress(len(chunk))
            ended = not chunk
            block += chunk
            while cut := _cut_first_line(block):
                if noted != first_line:
                    notes.append(
                        f"{path}:{first_line}: this line is longer than {MAX_LINE:,} bytes and"
                        f" was {'left out' if mark_cuts else 'cut into several'}"
                    )
                    noted = first_line
                piece = _decode(path, block[:cut], first_line, offset)
                yield piece + (CUT if mark_cuts else "") + "\n"
                block, offset = block[cut:], offset + cut
            end = len(block) if ended else block.rfind(b"\n") + 1
            if end:
                whole = _decode(path, block[:end], first_line, offset)
                yield whole if whole.endswith("\n") else whole + "\n"
                first_line += whole.count("\n")
                block, offset = block[end:], offset + end


def read_lines(path: Path, notes: list[str]) -> Iterator[str]:
    """Yield the lines of a text file without their line ends.

    Raises:
      UsageError: as `read_blocks`.
    """
    for block in read_blocks(path, notes):
        for line in block[:-1].split("\n"):
            yield line.removesuffix("\r")


def open_input(path: Path) -> BinaryIO:
    """Open a file for reading bytes.

    Raises:
      UsageError: if it is missing, a folder, not a regular file, or not readable.
    """
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: this is a folder, a text file is needed") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot read this file: {reason(error)}") from None


def _check_head(path: Path, head: bytes) -> None:
    if head in (b"", _MARK):
        raise UsageError(f"{path}: the file is empty, at least one line of words is needed")
    for magic, name, advice in _NOT_TEXT:
        if head.startswith(magic):
            raise UsageError(f"{path}: this is {name}, not UTF-8 text: {advice}")
    # UTF-16 without a mark: every other byte of Latin text is zero
    few, many = sorted((head[0::2].count(0), head[1::2].count(0)))
    if many > len(head) / 4 and few < len(head) / 16:
        raise UsageError(f"{path}: this looks like UTF-16, not UTF-8: save it as UTF-8")


def _cut_first_line(block: bytes) -> int:
    """Return where to cut a first line that is too long, else 0.

    Only the first line can be: less than MAX_LINE bytes were left over and as many are read at
    once, so any later line lies within what was read.
    """
    if len(block) <= MAX_LINE or 0 <= block.find(b"\n") <= MAX_LINE:
        return 0
    space = block.rfind(b" ", 0, MAX_LINE) + 1
    if space:
        return space
    cut = MAX_LINE
    while cut > MAX_LINE - 4 and block[cut] & 0xC0 == 0x80:  # not inside a character
        cut -= 1
    return cut


def _decode(path: Path, block: bytes, first_line: int, offset: int) -> str:
    zero = block.find(0)
    if zero >= 0:
        line = first_line + block.count(b"\n", 0, zero)
        raise UsageError(
            f"{path}:{line}: this is a binary file, not UTF-8 text: a zero byte at offset"
            f" {offset + zero} of the file"
        )
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        column = error.start - (block.rfind(b"\n", 0, error.start) + 1)
        raise UsageError(
            f"{path}:{line}: byte 0x{block[error.start]:02x} at offset {offset + error.start}"
            f" of the file (byte {column + 1} of the line) is not UTF-8; a text in GBK is"
            " converted by iconv -f gb18030 -t utf-8"
        ) from None
