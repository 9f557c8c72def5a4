"""Reports as files, whole or not at all."""

import json
from pathlib import Path
from typing import Any

from parity.base.files import make_folder, write_whole


def save_report(
    text: str, page: str, values: dict[str, Any], out: Path, extra: Path | None
) -> None:
    """Write report.txt, .html and .json into `out`, and the last to `extra` too."""
    write_whole(out / "report.txt", text.encode() + b"\n")
    write_whole(out / "report.html", page.encode())
    save_values(values, out / "report.json")
    if extra is not None:
        save_values(values, extra)


def save_values(values: dict[str, Any], path: Path) -> None:
    """Write a report's values as JSON."""
    make_folder(path.parent)
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")
