"""A picture of the losses of several runs, overlaid."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.base.errors import UsageError
from parity.base.files import make_folder
from parity.twins.training.image_files import (
    check_picture,
    font_families,
    new_figure,
    save_figure,
)
from parity.twins.training.loss_table import Row, read_losses


def plot_losses(runs: Sequence[Path], out: Path) -> list[str]:
    """Draw the losses of runs, overlaid, and the difference between the first two.

    Args:
      runs: the folders of the runs, each with its losses.csv.
      out: the file to write; its ending decides the format.

    Returns:
      Remarks on what is drawn, a line each.

    Raises:
      UsageError: if a table cannot be read, or the picture cannot be written.
    """
    check_picture(out)
    tables = [read_losses(run / "losses.csv") for run in runs]
    for run, rows in zip(runs, tables, strict=True):
        if not rows:
            raise UsageError(f"{run / 'losses.csv'}: holds no step")
    names = short_names(runs)
    figure = losses_figure(names, tables)
    make_folder(out.parent)
    save_figure(figure, out)
    remarks = [
        f"{name} begins at step {rows[0][0]}: its earlier steps are in another folder"
        for name, rows in zip(names, tables, strict=True)
        if rows[0][0]
    ]
    if len(tables) > 1 and not _common(tables):
        remarks.append(
            f"{names[0]} and {names[1]} have no step in common: no difference is drawn"
        )
    return remarks


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the folders' paths that tell them apart.

    A folder that is named twice has one name.
    """
    paths = [folder.absolute().parts for folder in folders]

    def end(path: tuple[str, ...]) -> str:
        for count in range(1, len(path)):
            if all(other[-count:] != path[-count:] or other == path for other in paths):
                return "/".join(path[-count:])
        return str(Path(*path))

    return [end(path) for path in paths]


def _common(tables: Sequence[Sequence[Row]]) -> list[int]:
    """Return the steps that the first two tables have in common, in ascending order."""
    first, second = ({row[0] for row in rows} for rows in tables[:2])
    return sorted(first & second)


def _drawable(row: Row) -> Row:
    """Return a row, or a gap for a loss near the largest float64: its axis would overflow."""
    return row if abs(row[1]) < 1e300 else (row[0], math.nan, *row[2:])


def losses_figure(names: Sequence[str], tables: Sequence[Sequence[Row]]) -> Any:
    """Return the figure that `plot_losses` writes.

    Where the first two runs have no step in common there is no difference to draw.

    Args:
      names: the name of each run, for the legend.
      tables: the rows of each run, as `read_losses` returns them.
    """
    several = len(tables) > 1 and bool(_common(tables))
    figure = new_figure(9, 6 if several else 4)
    grid = figure.add_gridspec(2 if several else 1, 1, height_ratios=[3, 1][: 1 + several])
    axes = figure.add_subplot(grid[0])
    tables = [[_drawable(row) for row in rows] for rows in tables]
    lines = []
    for number, rows in enumerate(tables):
        steps, losses = [row[0] for row in rows], [row[1] for row in rows]
        # the first is thicker: it shows beneath the others where they agree
        width, marker = (2.4 if number == 0 else 0.8), ("o" if len(rows) == 1 else None)
        lines += axes.plot(steps, losses, linewidth=width, marker=marker)
    axes.set_ylabel("loss, nats per token")
    # given here, for matplotlib hides a line whose own label begins with an underscore
    legend = axes.legend(lines, names, prop={"family": font_families()})
    for text in legend.get_texts():
        text.set_parse_math(False)
    if several:
        first, second = ({row[0]: row[1] for row in rows} for rows in tables[:2])
        common = _common(tables)
        below = figure.add_subplot(grid[1], sharex=axes)
        below.plot(common, [abs(first[step] - second[step]) for step in common], linewidth=0.8)
        below.set_yscale("symlog", linthresh=1e-9)
        below.set_ylabel("|difference|")
        axes = below
    axes.set_xlabel("step")
    return figure
