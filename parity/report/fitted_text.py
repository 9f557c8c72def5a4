"""Tables and paragraphs of plain text that fit a terminal."""

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

WIDTH = 120  # characters; a terminal that wraps a table makes it unreadable

_BETWEEN = 4  # characters that tabulate sets between two columns
_MOST_OF_KEY = 44  # characters of a column that every part repeats


def tabulated(
    rows: Sequence[Sequence[str]], headers: Sequence[str], keys: int = 1, part: str = ""
) -> str:
    """Return a table no wider than `WIDTH`.

    One that is wider is shown in parts, one below the other, each with the first columns again.
    A cell that is too long even so goes on in the next line.

    Args:
      keys: the number of columns at the left that name a row.
      part: the header of the column with which the second part should begin.
    """
    if not rows:  # nothing was compared, such as tensors of different types
        return ""
    cells = [[_wrapped_cell(str(cell), _MOST_OF_KEY) for cell in row[:keys]] for row in rows]
    most = WIDTH - sum(_widths(cells, headers[:keys])) - keys * _BETWEEN
    for mine, row in zip(cells, rows, strict=True):
        mine += [_wrapped_cell(str(cell), most) for cell in row[keys:]]
    parts = _parts(_widths(cells, headers), list(headers), keys, part)
    return "\n\n".join(
        tabulate(
            [[row[i] for i in columns] for row in cells],
            [headers[i] for i in columns],
            tablefmt="simple",
            disable_numparse=True,
        )
        for columns in parts
    )


def wrapped(text: str) -> str:
    """Return text with no line above `WIDTH`, but for words that are longer by themselves.

    A line goes on with its own indent, and two characters more.
    """
    return "\n".join(map(_wrapped_line, text.split("\n")))


def _wrapped_line(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if indent else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrapped_cell(cell: str, width: int) -> str:
    if max(map(len, cell.split("\n"))) <= width:
        return cell
    return textwrap.fill(cell, width, break_on_hyphens=False)


def _widths(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> list[int]:
    """Return the width of each column, in characters."""
    return [
        max(
            len(line)
            for cell in (header, *(row[i] for row in rows))
            for line in cell.split("\n")
        )
        for i, header in enumerate(headers)
    ]


def _parts(widths: list[int], headers: list[str], keys: int, part: str) -> list[list[int]]:
    """Return the columns of each part of a table."""
    named = list(range(keys))
    parts = [named]
    too_wide = sum(widths) + _BETWEEN * (len(widths) - 1) > WIDTH
    for i in range(keys, len(widths)):
        columns = [*parts[-1], i]
        wide = sum(widths[j] for j in columns) + _BETWEEN * (len(columns) - 1) > WIDTH
        if len(columns) > keys + 1 and (wide or (too_wide and headers[i] == part)):
            columns = [*named, i]
            parts.append(columns)
        parts[-1] = columns
    return parts
