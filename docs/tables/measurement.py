"""What tables are made of: measurements, the Markdown of a table, and its words."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from parity.base.machine import processor
from parity.report.table import Table


@dataclass(frozen=True)
class Measurement:
    """One file that a command wrote.

    Attributes:
      path: the file.
      values: its content.
    """

    path: Path
    values: Mapping[str, Any]

    def provenance(self, command: str) -> str:
        """Return when, where and by what it was measured.

        Args:
          command: named if the file does not name its own.
        """
        written = datetime.fromtimestamp(self.path.stat().st_mtime, timezone.utc)
        date = self.values.get("date", f"{written:%Y-%m-%d}")
        name = self.values.get("processor") or processor()
        cores = self.values.get("cores") or os.cpu_count()
        command = self.values.get("command") or command
        return f"*Measured {date[:10]} on {name}, {cores} cores: `{command}`*"


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a bar inside a cell is escaped."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def table_in_markdown(table: Table) -> str:
    """Return a table as a command shows it, None as a dash."""
    rows = [["–" if cell is None else cell for cell in row] for row in table.rows]
    return markdown_table(table.headers, rows)


def joined(*parts: str) -> str:
    """Return the parts of a table's block, apart by empty lines."""
    return "\n\n".join(parts)


def ratio(value: float | None) -> str:
    """Return a ratio as tables show it, a dash for None."""
    return "–" if value is None else f"{value:.2f}"


def count(number: int, noun: str) -> str:
    """Return a number and its noun, such as "2 runs" or "no run"."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def share(value: float | None) -> str:
    """Return a share in percent, a dash for None."""
    return "–" if value is None else f"{value:.0%}"


def sizes(values: Mapping[str, Any]) -> str:
    """Return in words what a benchmark trained."""
    model, text, training = (values["spec"][part] for part in ("model", "text", "training"))
    words = [values["network"]]
    if values.get("preset"):
        words[0] += f" `{values['preset']}`"
    words += [f"hidden {model['hidden_size']}", f"batch {training['batch_size']}"]
    if "time" in text:
        words.append(f"time {text['time']}")
    return ", ".join([*words, training["dtype"]])
