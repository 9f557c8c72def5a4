"""A table that a terminal and a page show alike: each column with what it holds, said once."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WIDTH = 80  # characters of a terminal; one that wraps a table makes it unreadable

_BETWEEN = "  "
_MOST_OF_KEYS, _LEAST_OF_KEY = 48, 18  # characters of the columns that every part repeats


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      header: its header, which is broken into lines where the column is narrower.
      meaning: what it holds, in a sentence; empty if that needs no words.
      value: returns what the column shows of a row; None is shown as a dash.
    """

    header: str
    meaning: str
    value: Callable[[Any], Any]


@dataclass(frozen=True)
class Table:
    """A table of a page or a terminal.

    Attributes:
      headers: the headers of the columns.
      rows: a value for each column; None is shown as a dash.
      meanings: headers of the columns that hold the same -> what that is.
      keys: the number of columns at the left that name a row.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    meanings: Mapping[str, str] = field(default_factory=dict)
    keys: int = 1

    def text(self) -> str:
        """Return the table for a terminal, no wider than `WIDTH`; nothing without rows.

        One that is wider is shown in parts, one below the other, each with the keys again. A
        cell that is too long even so goes on in the next line.
        """
        if not self.rows:
            return ""
        columns = list(zip(*self.rows, strict=True))
        named, most = range(self.keys), max(_MOST_OF_KEYS // self.keys, _LEAST_OF_KEY)
        cells = [_cells(self.headers[i], columns[i], most) for i in named]
        most = WIDTH - _width(cells) - len(_BETWEEN)
        others = range(self.keys, len(columns))
        cells += [_cells(self.headers[i], columns[i], most) for i in others]
        parts = [[*cells[: self.keys]]]
        for column in cells[self.keys :]:
            if len(parts[-1]) > self.keys and _width([*parts[-1], column]) > WIDTH:
                parts.append(cells[: self.keys])
            parts[-1] = [*parts[-1], column]
        return "\n\n".join(map(_drawn, parts))

    def legend(self) -> list[str]:
        """Return what the columns hold, as lines for a terminal."""
        return [wrapped(f"{header}: {said}", "  ") for header, said in self.meanings.items()]


def table_of(
    columns: Sequence[Column], items: Iterable[Any], keys: int = 1, *, whole: bool = True
) -> Table:
    """Return a table with a row for each item.

    Args:
      keys: the number of columns at the left that name a row.
      whole: whether to keep the columns that have no value in any row.
    """
    rows = [[column.value(item) for column in columns] for item in items]
    kept = [i for i in range(len(columns)) if whole or any(row[i] is not None for row in rows)]
    meanings: dict[str, list[str]] = {}
    for each in (columns[i] for i in kept):
        if each.meaning:
            meanings.setdefault(each.meaning, []).append(each.header)
    return Table(
        [columns[i].header for i in kept],
        [[row[i] for i in kept] for row in rows],
        {", ".join(headers): meaning for meaning, headers in meanings.items()},
        keys,
    )


def wrapped(text: str, further: str = "") -> str:
    """Return text with no line above `WIDTH`, but for words that are longer by themselves.

    Args:
      further: the indent with which a line goes on, beside its own.
    """
    return "\n".join(_wrapped_line(line, further) for line in text.split("\n"))


def _wrapped_line(line: str, further: str) -> str:
    if len(line) <= WIDTH:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + (further or "  " * bool(indent)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _cells(header: str, values: Iterable[Any], most: int) -> list[list[str]]:
    """Return the lines of a column's header and of each of its cells."""
    cells = [
        textwrap.wrap("-" if value is None else str(value), most, break_on_hyphens=False)
        for value in values
    ]
    words = header.replace("-", "- ").split()
    widest = max(len(line) for line in [*words, *(line for cell in cells for line in cell)])
    return [textwrap.wrap(header, widest), *cells]


def _width(columns: Sequence[list[list[str]]]) -> int:
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _drawn(columns: Sequence[list[list[str]]]) -> str:
    """Return the lines of columns side by side, with a rule below their headers."""
    widths = [_width([column]) for column in columns]
    lines = []
    for i, row in enumerate(zip(*columns, strict=True)):
        height = max(map(len, row))
        above = height if i == 0 else 0  # a short header stands just above the rule
        padded = [[""] * (above - len(cell)) * (i == 0) + cell for cell in row]
        lines += [[cell[k] if k < len(cell) else "" for cell in padded] for k in range(height)]
        if i == 0:
            lines.append(["-" * width for width in widths])
    return "\n".join(_BETWEEN.join(map(str.ljust, line, widths)).rstrip() for line in lines)
