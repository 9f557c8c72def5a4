"""Write the tables of figures in the documentation from what the commands measured.

    python -m docs.tables.write            write every table whose measurements are there
    python -m docs.tables.write --check    only name stale tables; status 1 if there are any

A table stands between two comments, of which the first names its kind and its measurements:

    <!-- table: bench out/bench/bench.json -->
    <!-- /table -->

Each table says when, on which processor and by which command its figures were measured. A
table whose measurements are not there stays as it is.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.tables.growth import growth_table
from docs.tables.measurement import Measurement, markdown_table
from docs.tables.speed import (
    bench_table,
    kernels_table,
    sizes_table,
    strategies_table,
)
from docs.tables.trainings import converge_table, trainings_table
from docs.tables.verdicts import faults_table, sweep_table

ROOT = Path(__file__).resolve().parent.parent.parent

_BLOCK = re.compile(
    r"(?P<start><!-- table: (?P<kind>[\w-]+)(?P<files>(?: \S+)*) -->\n)"
    r"(?P<body>.*?)(?P<end><!-- /table -->)",
    re.DOTALL,
)


def differs_table(measured: Sequence[Measurement] = (), root: Path = ROOT) -> str:
    """Return every line of the two sides that has to differ, with its reason."""
    rows = []
    for folder in ("paddle_impl", "tf_impl"):
        for path in sorted((root / folder).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines):
                before, tag, reason = line.partition("# differs: ")
                if not tag:
                    continue
                if not before.strip():  # a comment of its own may go on below
                    for more in lines[number + 1 :]:
                        if not more.strip().startswith("# "):
                            break
                        reason += " " + more.strip()[2:]
                rows.append([f"`{path.relative_to(root).as_posix()}`", reason])
    return markdown_table(["file", "why"], rows)


KINDS: dict[str, Callable[[Sequence[Measurement]], str]] = {
    "bench": bench_table,
    "strategies": strategies_table,
    "sizes": sizes_table,
    "kernels": kernels_table,
    "faults": faults_table,
    "sweep": sweep_table,
    "converge": converge_table,
    "trainings": trainings_table,
    "growth": growth_table,
    "differs": differs_table,
}


def filled(text: str, root: Path = ROOT) -> tuple[str, list[str]]:
    """Return a page with its tables written, and what could not be, as messages.

    Args:
      text: of the page.
      root: what the measurements' names are relative to.

    Raises:
      ValueError: for a kind of table that there is not.
    """
    missing: list[str] = []

    def write(block: re.Match[str]) -> str:
        kind, names = block["kind"], block["files"].split()
        if kind not in KINDS:
            raise ValueError(f"table of kind {kind!r}; allowed: {', '.join(KINDS)}")
        absent = [name for name in names if not (root / name).is_file()]
        if absent:
            missing.append(f"table {kind}: kept, no {', '.join(absent)}")
            return block[0]
        measured = [Measurement(root / n, json.loads((root / n).read_text())) for n in names]
        return f"{block['start']}{KINDS[kind](measured)}\n{block['end']}"

    return _BLOCK.sub(write, text), missing


def pages(root: Path = ROOT) -> list[Path]:
    """Return all pages of the documentation, the READMEs included."""
    return [*sorted(root.glob("README*.md")), *sorted((root / "docs").rglob("*.md"))]


def main() -> int:
    """Write or check all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing, report stale tables"
    )
    check = parser.parse_args().check
    stale = False
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after, missing = filled(before)
        name = page.relative_to(ROOT)
        for message in missing:
            print(f"{name}: {message}")
        if after != before:
            stale = True
            print(f"{name}: {'out of date' if check else 'written'}")
            if not check:
                page.write_text(after, encoding="utf-8")
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
