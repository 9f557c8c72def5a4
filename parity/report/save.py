"""Reports as files, whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.base.files import make_folder, write_whole


def save_report(
    name: str,
    text: str,
    values: Mapping[str, Any],
    out: Path,
    extra: Path | None = None,
    page: str = "",
) -> None:
    """Write NAME.txt, NAME.json and any NAME.html into `out`, and the JSON to `extra` too."""
    make_folder(out)
    write_whole(out / f"{name}.txt", utf_8(text) + b"\n")
    if page:
        write_whole(out / f"{name}.html", utf_8(page))
    for path in {out / f"{name}.json", extra or out / f"{name}.json"}:
        save_values(values, path)


def save_values(values: Mapping[str, Any], path: Path) -> None:
    """Write a report's values as JSON."""
    make_folder(path.parent)
    write_whole(path, utf_8(json.dumps(values, indent=2, ensure_ascii=False)) + b"\n")


def utf_8(text: str) -> bytes:
    r"""Return text as UTF-8; what cannot be encoded becomes \udc80, which JSON reads again.

    A file's name may hold bytes that are no text in the user's locale; Python reads them so.
    """
    return text.encode(errors="backslashreplace")
