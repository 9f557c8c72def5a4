"""The loss of every step as a table."""

import csv
import io
import math
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import read_file, write_whole

_COLUMNS = ("step", "loss", "tokens")

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
        content = io.StringIO()
        writer = csv.writer(content, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows((step, repr(loss), tokens) for step, loss, tokens in self._rows)
        write_whole(self._path, content.getvalue().encode())


def read_losses(path: Path) -> list[Row]:
    """Return the rows of a losses.csv: step, loss, tokens.

    Raises:
      UsageError: naming the line, if the file is not such a table, is cut off, or its steps do
        not ascend.
    """
    try:
        content = read_file(path).decode().replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a table of losses: this is not text") from None
    lines = content.split("\n")
    header = ",".join(_COLUMNS)
    if lines[0] != header:
        raise UsageError(f"{path}:1: {lines[0][:80]!r}; allowed: {header}")
    if lines.pop():
        raise UsageError(f"{path}:{len(lines) + 1}: the line is cut off: it has no end")
    rows: list[Row] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            step, loss, tokens = line.split(",")
            row = int(step), float(loss), int(tokens)
        except ValueError:
            raise UsageError(
                f"{path}:{number}: {line[:80]!r}; allowed: step, loss and tokens"
            ) from None
        if rows and row[0] <= rows[-1][0]:
            raise UsageError(
                f"{path}:{number}: step {row[0]} after step {rows[-1][0]}; allowed: ascending"
            )
        rows.append(row)
    return rows
