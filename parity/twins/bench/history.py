"""What earlier benchmarks measured here: was anything faster before the last change?

A line of the history is one benchmark, as JSON. Two are compared if they timed the same network
and steps on the same processor. Where either had a single round, nothing is said: one reading
has no spread.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.base.errors import UsageError
from parity.base.files import make_folder, read_file, reason
from parity.base.progress import say
from parity.base.text import parse_json
from parity.twins.launch.processes import ROOT

# What two benchmarks must share for their figures to be comparable, beside the settings of each
# configuration.
_SAME = ("processor", "cores", "network", "spec", "steps", "text")


def compare_with_history(
    values: Mapping[str, Any], path: Path, text: str, checkout: Path = ROOT
) -> dict[str, Any]:
    """Compare a benchmark with the newest like it of another commit, and add it to the history.

    A figure fell if its highest reading lies below the lowest one of then. That the machine
    itself was slower shows in `machine`.

    Args:
      values: what `bench` measured, without `history`.
      path: the history, a file of JSON lines; made if it is not there.
      text: the path of the text that was trained on, or "generated".
      checkout: the checkout whose code was timed.

    Returns:
      `commit`: this commit, with "+" after it if files of the checkout were changed since, or
      None outside git. `since`: the commit compared with, or None if there was none, and then
      nothing else. `date`: when that was measured. `compared`: the number of configurations
      found in both. `fell`: label -> `then` and `now`, each a median in real tokens/s and its
      spread. `machine`: speed of large products of matrices now, divided by that of then.
      A history that cannot be read or written is told, and not used.
    """
    entry = _entry(values, text, checkout)
    try:
        before = newest_alike(path, entry)
        _append(path, entry)
    except UsageError as error:  # minutes of measurements are worth more
        say(f"{error}; this benchmark is not added to the history")
        before = None
    found: dict[str, Any] = {"commit": entry["commit"], "since": None}
    if before is None:
        return found
    both = [label for label in entry["cases"] if _same_case(before, entry, label)]
    return found | {
        "since": before["commit"],
        "date": before["date"],
        "compared": len(both),
        "fell": {
            label: {"then": before["cases"][label]["speed"], "now": speed}
            for label in both
            if (speed := entry["cases"][label]["speed"])["spread"][1]
            < before["cases"][label]["speed"]["spread"][0]
        },
        "machine": entry["product_limit"] / before["product_limit"],
    }


def newest_alike(path: Path, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the newest entry of a history that another one may be compared with.

    Lines that are not whole, or from elsewhere, are passed over.

    Args:
      path: the history; it need not be there.
      entry: the other one, of another commit.

    Raises:
      UsageError: if it cannot be read.
    """
    try:
        lines = read_file(path).splitlines() if path.exists() else []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from error
    return next((each for each in map(_parsed, reversed(lines)) if _alike(each, entry)), None)


def history_lines(history: Mapping[str, Any]) -> list[str]:
    """Return what `compare_with_history` found, as lines of text; none if nothing was alike."""
    if not history.get("since"):
        return []
    then = f"{history['since'][:12]} ({history['date'][:10]})"
    lines = [
        f"{label} fell by {1 - each['now']['median'] / each['then']['median']:.0%} since "
        f"{then}: {_range(each['then'])} tokens/s, now {_range(each['now'])}"
        for label, each in history["fell"].items()
    ]
    if not lines:
        return [f"none of {history['compared']} figures fell since {then}"]
    return [
        *lines,
        f"the machine multiplies large matrices {history['machine']:.2f} times as fast as then",
    ]


def _entry(values: Mapping[str, Any], text: str, checkout: Path) -> dict[str, Any]:
    """Return a benchmark as the history keeps it."""
    return {
        "date": values["date"],
        "commit": _commit(checkout),
        **{name: values[name] for name in _SAME if name != "text"},
        "text": text,
        # of NumPy, whichever frameworks are timed: the machine's own speed
        "product_limit": values["product_rates"]["numpy"],
        "versions": values["versions"],
        "cases": {
            label: {
                "settings": values["cases"][label]["settings"],
                "rounds": values["rounds"],
                "speed": speed,
            }
            for label, speed in values["throughput"].items()
        },
    }


def _parsed(line: bytes) -> dict[str, Any]:
    """Return a line of the history; nothing for one that was cut off or is from elsewhere."""
    try:
        entry = parse_json(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _alike(before: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Return whether an earlier benchmark is of another commit and timed the same."""
    return (
        bool(before.get("commit"))
        and before["commit"] != entry["commit"]
        and all(before.get(name) == entry[name] for name in _SAME)
        and isinstance(before.get("cases"), dict)
    )


def _same_case(before: Mapping[str, Any], entry: Mapping[str, Any], label: str) -> bool:
    then, now = before["cases"].get(label), entry["cases"][label]
    return (
        then is not None
        and then["settings"] == now["settings"]
        and min(then["rounds"], now["rounds"]) > 1
    )


def _append(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line by one write: of two benchmarks at once, neither cuts the other's in two."""
    line = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    make_folder(path.parent)
    try:
        torn = path.exists() and path.stat().st_size and read_file(path)[-1:] != b"\n"
        with path.open("ab", buffering=0) as file:
            file.write(b"\n" + line if torn else line)
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason(error)}") from error


def _commit(checkout: Path) -> str | None:
    """Return the checkout's commit, with "+" if its files differ from it; None without git."""
    told = ("--always", "--exclude=*", "--abbrev=40", "--dirty=+")
    command = ["git", "-C", str(checkout), "describe", *told]
    try:
        return subprocess.run(
            command, capture_output=True, check=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _range(speed: Mapping[str, Any]) -> str:
    low, high = speed["spread"]
    return f"{speed['median']:,.0f} ({low:,.0f} to {high:,.0f})"
