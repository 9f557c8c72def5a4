"""What a user sees during long work: a bar on a terminal, elsewhere a line now and then."""

import shutil
import sys
import textwrap
import threading
import time
from typing import Any, TypeVar

from tqdm import tqdm

from parity.base.text import escaped

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_BYTES = 1.0  # reading a small file takes less, and then no bar flashes up

_Self = TypeVar("_Self", bound="ProgressBar")

# the bar last, so that a narrow terminal cuts off nothing but the bar
_BAR_FORM = "{desc}: {n_fmt}/{total_fmt} <{remaining}{postfix} |{bar}|"

_quiet = False
_phases: "Phases | None" = None  # the display of this process, if it has one


def be_quiet() -> None:
    """Show nothing from now on, as one of several processes that do the same work."""
    global _quiet
    _quiet = True


def say(message: str) -> None:
    """Print a line on stderr, control characters escaped, without breaking a progress bar.

    On a terminal it is wrapped at words; a log keeps it in one line.
    """
    if not _quiet:
        text = escaped(message)
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            text = textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


class Phases:
    """Show work of several phases as one bar, off a terminal as lines; a context manager.

    It shows the time, so that it moves where nothing is counted, too; off a terminal there is a
    line for each phase, and one every half minute. Within it, a `ProgressBar` shows in it
    instead of by itself.

    Args:
      count: how many phases there are, if none is left out.
    """

    def __init__(self, count: int):
        self._count, self._number = count, 0
        self._label = self._state = ""
        self._began = self._spoke = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._bar = None
        if sys.stderr.isatty() and not _quiet:
            form = "{desc}: {percentage:3.0f}% {elapsed}{postfix} |{bar}|"
            self._bar = tqdm(total=count, leave=False, bar_format=form)

    def begin(self, label: str) -> None:
        """Begin the next phase, and show its name."""
        self._number = min(self._number + 1, self._count)
        self._label, self._state = label, ""
        if self._bar is None:
            self._speak()
        self.show("", 0.0)

    def show(self, state: str, done: float) -> None:
        """Show how far the phase is, in words, and as a share from 0 to 1."""
        self._state = state
        if self._bar is not None:
            self._bar.n = self._number - 1 + done
            self._bar.set_description_str(
                f"{self._number} of {self._count}, {self._label}", False
            )
            self._bar.set_postfix_str(state)  # draws it

    def _speak(self) -> None:
        self._spoke = time.monotonic()
        words = f"{self._number} of {self._count}, {self._label}"
        if self._state:
            words += f": {self._state}"
        say(f"{words}; {self._spoke - self._began:,.0f} s so far")

    def _tick(self) -> None:
        while not self._ended.wait(1.0):
            if self._bar is not None:
                self._bar.refresh()
            elif time.monotonic() - self._spoke >= _SECONDS_BETWEEN_LINES:
                self._speak()

    def __enter__(self) -> "Phases":
        global _phases
        _phases = self
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        global _phases
        _phases = None
        self._ended.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.close()


def begin_phase(label: str) -> None:
    """Begin the next phase of the work that `Phases` shows; nothing if none is shown."""
    if _phases is not None:
        _phases.begin(label)


class ProgressBar:
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
        self._bar, self._display = None, _phases
        if self._display is not None:
            self._display.show(self._state(), done / max(total, 1))
        elif sys.stderr.isatty() and not _quiet:
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
        if self._display is not None:
            state = ", ".join(filter(None, [self._state(), text]))
            self._display.show(state, self._done / max(self._total, 1))
        elif self._bar is not None:
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
        return {"unit": self._unit, "bar_format": _BAR_FORM}

    def _state(self) -> str:
        return f"{self._unit} {self._done} of {self._total}"

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


class ByteProgressBar(ProgressBar):
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
        return super()._bar_style() | {
            "unit": "B",
            "unit_scale": True,
            "unit_divisor": 1024,
            "delay": _SECONDS_BEFORE_BYTES,
        }

    def _state(self) -> str:
        named = f"{self._label}, " if self._display is not None else ""
        return f"{named}{self._done / max(self._total, 1):.0%} of {self._total:,} bytes"
