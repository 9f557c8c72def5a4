"""What a user sees during long work: a bar on a terminal, elsewhere a line now and then."""

import sys
import time
from typing import Any, TypeVar

from tqdm import tqdm

from parity.base.printable import escaped

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_BYTES = 1.0  # reading a small file takes less, and then no bar flashes up

_Self = TypeVar("_Self", bound="Counter")

_quiet = False


def be_quiet() -> None:
    """Show nothing from now on, as one of several processes that do the same work."""
    global _quiet
    _quiet = True


def say(message: str) -> None:
    """Print a line on stderr, control characters escaped, without breaking a progress bar."""
    if not _quiet:
        tqdm.write(escaped(message, keep="\n"), file=sys.stderr)
        sys.stderr.flush()


class Counter:
    """Show how much of some work is done, and the time left; a context manager.

    Args:
      label: what is being done.
      total: how much there is of it.
      unit: what is counted.
      done: how much was done before, which says nothing about the speed.
    """

    def __init__(self, label: str, total: int, unit: str, done: int = 0):
        self._label, self._total, self._unit = label, total, unit
        self._done = self._first = done
        self._began = self._spoke = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and not _quiet:
            self._bar = tqdm(
                desc=label, initial=done, total=total, leave=False, **self._bar_style()
            )

    def update(self, text: str = "", count: int = 1, *, now: bool = False) -> None:
        """Count work that is done, and show the state of affairs.

        Args:
          text: what else to show.
          count: how many units were done.
          now: off a terminal, print a line however short ago the last one was.
        """
        self._done += count
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(count)
        elif now or (
            self._done < self._total
            and time.monotonic() - self._spoke >= _SECONDS_BETWEEN_LINES
        ):
            self._spoke = time.monotonic()
            words = [f"{self._label}: {self._state()}", text]
            if self._done < self._total:
                seconds = (self._spoke - self._began) / (self._done - self._first)
                words.append(f"{seconds * (self._total - self._done):,.0f} s left")
            say(", ".join(filter(None, words)))

    def _bar_style(self) -> dict[str, Any]:
        return {"unit": self._unit}

    def _state(self) -> str:
        return f"{self._unit} {self._done} of {self._total}"

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


class ByteCounter(Counter):
    """Show how many bytes are done; nothing for work that takes only a moment.

    Args:
      label: what is being done.
      total: bytes.
    """

    def __init__(self, label: str, total: int):
        super().__init__(label, total, "bytes")

    def add(self, count: int) -> None:
        """Count bytes that are done."""
        self.update(count=count)

    def _bar_style(self) -> dict[str, Any]:
        return {
            "unit": "B",
            "unit_scale": True,
            "unit_divisor": 1024,
            "delay": _SECONDS_BEFORE_BYTES,
        }

    def _state(self) -> str:
        return f"{self._done / max(self._total, 1):.0%} of {self._total:,} bytes"
