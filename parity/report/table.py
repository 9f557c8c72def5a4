"""A table that a terminal and a page show alike: each column with what it holds, said once."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tabulate import tabulate

_WIDTH = 96


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      header: its header; a terminal breaks it where it has a line break.
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
      meanings: header without line breaks -> what the column holds.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    meanings: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the table for a terminal."""
        rows = [["-" if cell is None else cell for cell in row] for row in self.rows]
        return tabulate(rows, self.headers, tablefmt="simple", disable_numparse=True)

    def legend(self) -> list[str]:
        """Return what the columns hold, as lines for a terminal."""
        return [
            textwrap.fill(
                f"{header}: {meaning}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False
            )
            for header, meaning in self.meanings.items()
        ]


def table_of(columns: Sequence[Column], items: Iterable[Any]) -> Table:
    """Return a table with a row for each item."""
    return Table(
        [column.header for column in columns],
        [[column.value(item) for column in columns] for item in items],
        {each.header.replace("\n", " "): each.meaning for each in columns if each.meaning},
    )
