"""Text for people and from outside: counts and durations in words, safe to print, JSON."""

import hashlib
import json
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LONGEST_WORD, _LONGEST_LINE = 600, 2000  # characters of a message
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


# Characters that turn the direction of what follows, or end a line without being a control.
_OTHERS = frozenset(
    "\u2028\u2029\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escaped(text: str, keep: str = "") -> str:
    r"""Return text with its control characters as escapes, such as \x1b.

    So a file's name or a line of text can neither colour nor clear a terminal, nor pass for
    another line. Bytes of a name that are not UTF-8 (lone surrogates) become \udc80 and the
    like.

    Args:
      keep: characters to leave as they are, such as a line break.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in keep or not _is_control(each) else _escape(each) for each in text
    )


def one_line(message: str) -> str:
    """Return an error's message as one line that is safe to print; a huge value is cut."""
    line = escaped(" ".join(message.splitlines()))
    line = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda found: _cut(found[0], 200), line)
    return _cut(line, 900) if len(line) > _LONGEST_LINE else line


def _cut(text: str, kept: int) -> str:
    return f"{text[:kept]}...{text[-kept:]}"


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _OTHERS


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def parse_json(text: str | bytes) -> Any:
    """Return what a text says in JSON.

    Raises:
      ValueError: for anything else, with the reason; also for what is nested too deeply, at
        which the standard library raises a `RecursionError`.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def with_checksum(values: Mapping[str, Any]) -> str:
    """Return values as JSON with a checksum of them, for `verified`."""
    return json.dumps({**values, "sha256": _checksum(values)})


def verified(text: str | bytes) -> dict[str, Any]:
    """Return what `with_checksum` was given.

    Raises:
      ValueError: for any other text: cut off, changed, or written by an earlier version.
    """
    values = parse_json(text)
    if not isinstance(values, dict) or values.pop("sha256", None) != _checksum(values):
        raise ValueError("its checksum is another one")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def some_of(names: list[str], most: int = 5) -> str:
    """Return the first of some names, quoted, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def in_series(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: "a, b and c"."""
    names = list(names)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
