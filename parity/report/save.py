"""Reports as files, whole or not at all."""

import json
from pathlib import Path
from typing import Any

from parity.base.files import make_folder, write_whole


def save_report(
    text: str, page: str, values: dict[str, Any], out: Path, extra: Path | None
) -> None:
    """Write report.txt, .html and .json into `out`, and the last to `extra` too."""
    write_whole(out / "report.txt", utf_8(text) + b"\n")
    write_whole(out / "report.html", utf_8(page))
    save_values(values, out / "report.json")
    if extra is not None:
        save_values(values, extra)


def save_values(values: dict[str, Any], path: Path) -> None:
    """Write a report's values as JSON."""
    make_folder(path.parent)
    write_whole(path, utf_8(json.dumps(values, indent=2, ensure_ascii=False)) + b"\n")


def utf_8(text: str) -> bytes:
    r"""Return text as UTF-8; what cannot be encoded becomes \udc80, which JSON reads again.

    A file's name may hold bytes that are no text in the user's locale; Python reads them so.
    """
    return text.encode(errors="backslashreplace")
