"""The loss of every step as a table, and two runs' losses drawn over each other."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.files import make_folder, write_whole
from parity.pictures import check_picture, font_families, new_figure, save_figure

_COLUMNS = ("step", "loss", "tokens")

Row = tuple[int, float, int]


class Losses:
    """The table losses.csv of a run: step, global loss in nats per token, real tokens.

    Args:
      path: of the file, written whole by `save`.
    """

    def __init__(self, path: Path):
        self._path = path
        self._rows: list[Row] = []

    def restore(self, step: int) -> None:
        """Take in what an earlier part of the run has written of the steps before `step`.

        Raises:
          UsageError: as `read_losses`.
        """
        if self._path.exists():
            self._rows = [row for row in read_losses(self._path) if row[0] < step]

    def add(self, step: int, loss: float, tokens: int) -> None:
        """Add a step."""
        self._rows.append((step, loss, tokens))

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
      UsageError: naming the line, if it is no such table, is cut off, or a step is not after
        the one before it.
    """
    try:
        content = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a table of losses: this is no text") from None
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


def plot_losses(runs: Sequence[Path], out: Path) -> None:
    """Draw the losses of runs over each other, and how far apart the first two are.

    Args:
      runs: folders that hold losses.csv.
      out: the picture; see `check_picture`.

    Raises:
      UsageError: if a table cannot be read, or the picture not be written.
    """
    check_picture(out)
    tables = [read_losses(run / "losses.csv") for run in runs]
    for run, rows in zip(runs, tables, strict=True):
        if not rows:
            raise UsageError(f"{run / 'losses.csv'}: holds no step")
    figure = losses_figure([str(run) for run in runs], tables)
    make_folder(out.parent)
    save_figure(figure, out)


def losses_figure(names: Sequence[str], tables: Sequence[Sequence[Row]]) -> Any:
    """Return a figure of runs' losses, as `plot_losses` says.

    Args:
      names: of the runs.
      tables: of `read_losses`, a run each.
    """
    several = len(tables) > 1
    figure = new_figure(9, 6 if several else 4)
    grid = figure.add_gridspec(2 if several else 1, 1, height_ratios=[3, 1][: 1 + several])
    axes = figure.add_subplot(grid[0])
    lines = []
    for number, rows in enumerate(tables):
        steps, losses = [row[0] for row in rows], [row[1] for row in rows]
        # the first thicker, so that it shows beneath the others where they agree
        width, marker = (2.4 if number == 0 else 0.8), ("o" if len(rows) == 1 else None)
        lines += axes.plot(steps, losses, linewidth=width, marker=marker)
    axes.set_ylabel("loss, nats per token")
    # names given here may begin with an underscore, which hides a label given to a line
    legend = axes.legend(lines, names, prop={"family": font_families("".join(names))})
    for text in legend.get_texts():
        text.set_parse_math(False)
    if several:
        first, second = ({row[0]: row[1] for row in rows} for rows in tables[:2])
        common = sorted(first.keys() & second.keys())
        below = figure.add_subplot(grid[1], sharex=axes)
        below.plot(common, [abs(first[step] - second[step]) for step in common], linewidth=0.8)
        below.set_yscale("symlog", linthresh=1e-9)
        below.set_ylabel("|difference|")
        axes = below
    axes.set_xlabel("step")
    return figure
