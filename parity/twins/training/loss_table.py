"""The loss of every step, and the result of every validation, as tables."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from parity.base.errors import UsageError
from parity.base.files import read_file, write_whole

_LOSSES = ("step", "loss", "tokens")
_VALIDATIONS = ("step", "perplexity", "bleu")

Row = tuple[int, float, int]


class Losses:
    """The table losses.csv of a run: step, global loss in nats per token, real tokens.

    Args:
      path: the file, written whole by `save`.
    """

    def __init__(self, path: Path):
        self._path = path
        self._rows: list[Row] = []

    def restore(self, step: int) -> None:
        """Load the rows that an earlier part of the run wrote for the steps before `step`.

        Raises:
          UsageError: as `read_losses`.
        """
        if self._path.exists():
            self._rows = [row for row in read_losses(self._path) if row[0] < step]

    def add(self, step: int, loss: float, tokens: int) -> None:
        """Add a step."""
        self._rows.append((step, loss, tokens))

    @property
    def last(self) -> float:
        """Return the loss of the last step, in nats per token; NaN if there is no step."""
        return self._rows[-1][1] if self._rows else math.nan

    def save(self) -> None:
        """Write the file, whole or not at all.

        Raises:
          UsageError: if it cannot be written.
        """
        rows = ((step, repr(loss), tokens) for step, loss, tokens in self._rows)
        _write(self._path, _LOSSES, rows)


def read_losses(path: Path) -> list[Row]:
    """Return the rows of a losses.csv: step, loss, tokens.

    Raises:
      UsageError: naming the line, if the file is not such a table, is cut off, or its steps do
        not ascend.
    """
    return _read(path, _LOSSES, lambda a, b, c: (int(a), float(b), int(c)))


class ValidationRow(NamedTuple):
    """A row of validations.csv.

    Attributes:
      step: the number of steps trained.
      perplexity: that of the validation text after them.
      bleu: that of answers to its questions; None for a network that does not decode.
    """

    step: int
    perplexity: float
    bleu: float | None


def write_validations(path: Path, rows: Sequence[ValidationRow]) -> None:
    """Write a validations.csv, whole or not at all.

    Raises:
      UsageError: if it cannot be written.
    """
    _write(path, _VALIDATIONS, rows)


def read_validations(path: Path) -> list[ValidationRow]:
    """Return the rows of a validations.csv.

    Raises:
      UsageError: as `read_losses`.
    """
    return _read(
        path,
        _VALIDATIONS,
        lambda a, b, c: ValidationRow(int(a), float(b), float(c) if c else None),
    )


_R = TypeVar("_R", Row, ValidationRow)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_whole(path, content.getvalue().encode())


def _read(
    path: Path, columns: Sequence[str], row_of: Callable[[str, str, str], _R]
) -> list[_R]:
    try:
        content = read_file(path).decode().replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a table: this is not text") from None
    lines = content.split("\n")
    header = ",".join(columns)
    if lines[0] != header:
        raise UsageError(f"{path}:1: {lines[0][:80]!r}; allowed: {header}")
    if lines.pop():
        raise UsageError(f"{path}:{len(lines) + 1}: the line is cut off: it has no end")
    rows: list[_R] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            first, second, third = line.split(",")
            row = row_of(first, second, third)
        except ValueError:
            allowed = "{}, {} and {}".format(*columns)
            raise UsageError(f"{path}:{number}: {line[:80]!r}; allowed: {allowed}") from None
        if rows and row[0] <= rows[-1][0]:
            raise UsageError(
                f"{path}:{number}: step {row[0]} after step {rows[-1][0]}; allowed: ascending"
            )
        rows.append(row)
    return rows
