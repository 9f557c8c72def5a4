"""The loss of every step as a table, and two runs' losses drawn over each other."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from parity.errors import UsageError
from parity.files import make_folder, write_whole

_COLUMNS = ("step", "loss", "tokens")


class Losses:
    """The table losses.csv of a run: step, global loss in nats per token, real tokens.

    Args:
      path: of the file, written whole by `save`.
    """

    def __init__(self, path: Path):
        self._path = path
        self._rows: list[tuple[int, float, int]] = []

    def restore(self, step: int) -> None:
        """Take in what an earlier part of the run has written of the steps before `step`."""
        if self._path.exists():
            self._rows = [row for row in read_losses(self._path) if row[0] < step]

    def add(self, step: int, loss: float, tokens: int) -> None:
        """Add a step."""
        self._rows.append((step, loss, tokens))

    def save(self) -> None:
        """Write the file, whole or not at all."""
        content = io.StringIO()
        writer = csv.writer(content, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows((step, repr(loss), tokens) for step, loss, tokens in self._rows)
        write_whole(self._path, content.getvalue().encode())


def read_losses(path: Path) -> list[tuple[int, float, int]]:
    """Return the rows of a losses.csv: step, loss, tokens.

    Raises:
      UsageError: naming the line, if it is no such table.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not lines or lines[0] != ",".join(_COLUMNS):
        raise UsageError(f"{path}:1: not a table of losses; allowed: {','.join(_COLUMNS)}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            step, loss, tokens = line.split(",")
            rows.append((int(step), float(loss), int(tokens)))
        except ValueError:
            raise UsageError(f"{path}:{number}: {line!r} is no step, loss and tokens") from None
    return rows


def plot_losses(runs: Sequence[Path], out: Path) -> None:
    """Draw the losses of runs over each other, and how far apart the first two are.

    Args:
      runs: folders that hold losses.csv.
      out: the picture, its kind given by the name's ending, such as .png or .svg.

    Raises:
      UsageError: if a table cannot be read, or the picture not be written.
    """
    tables = {str(run): read_losses(run / "losses.csv") for run in runs}
    empty = [run for run, rows in tables.items() if not rows]
    if empty:
        raise UsageError(f"{empty[0]}/losses.csv: holds no step")
    from parity.pictures import new_figure, save_figure

    figure = new_figure(9, 6 if len(runs) > 1 else 4)
    grid = figure.add_gridspec(2 if len(runs) > 1 else 1, 1, height_ratios=[3, 1][: len(runs)])
    axes = figure.add_subplot(grid[0])
    for number, (run, rows) in enumerate(tables.items()):
        steps, losses = [row[0] for row in rows], [row[1] for row in rows]
        # the second thinner, so that the first shows where they agree
        axes.plot(steps, losses, label=run, linewidth=2.4 if number == 0 else 0.8)
    axes.set_ylabel("loss, nats per token")
    axes.legend()
    if len(runs) > 1:
        first, second = ({row[0]: row[1] for row in rows} for rows in list(tables.values())[:2])
        common = sorted(first.keys() & second.keys())
        below = figure.add_subplot(grid[1], sharex=axes)
        below.plot(common, [abs(first[step] - second[step]) for step in common], linewidth=0.8)
        below.set_yscale("symlog", linthresh=1e-9)
        below.set_ylabel("|difference|")
        axes = below
    axes.set_xlabel("step")
    make_folder(out.parent)
    save_figure(figure, out)
