"""Formats counts, durations, numbers and commands."""

import shlex
from collections.abc import Sequence
from pathlib import Path

_MOST_WHOLE_DIGITS = 9  # a larger number is written with an exponent


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: "1 step", "2 steps"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time for people: "42 s", "1 min 42 s", "2 h 05 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def decimal(number: float, places: int) -> str:
    """Return a number with so many decimal places: "5.123"; a huge one as "1.2e+300"."""
    form = "f" if abs(number) < 10**_MOST_WHOLE_DIGITS else "g"
    return f"{number:.{places}{form}}"


def command_text(words: Sequence[str]) -> str:
    """Return what a user typed to start `parity`, from `sys.argv`."""
    started = ["parity"] if Path(words[0]).name == "parity" else ["python", "-m", "parity"]
    return shlex.join([*started, *words[1:]])
