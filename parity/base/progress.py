"""What a user sees while long work goes on: a bar on a terminal, else a line now and then."""

import math
import sys
import time
from typing import TypeVar

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0

_Self = TypeVar("_Self", bound="Counter")


def say(message: str) -> None:
    """Print a line on stderr without breaking a progress bar."""
    tqdm.write(message, file=sys.stderr)
    sys.stderr.flush()


class Counter:
    """Shows how much of some work is done, and the time left; a context.

    Args:
      label: what is being done.
      total: how much there is of it.
      unit: what is counted.
      done: how much was there before; it tells nothing of the time left.
    """

    def __init__(self, label: str, total: int, unit: str, done: int = 0):
        self._label, self._total, self._unit = label, total, unit
        self._done = self._first = done
        self._began = self._spoke = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(desc=label, initial=done, total=total, unit=unit, leave=False)

    def update(self, text: str = "") -> None:
        """Count one, and say how it stands.

        Args:
          text: what else to say.
        """
        self._done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        elif (
            self._done < self._total
            and time.monotonic() - self._spoke >= _SECONDS_BETWEEN_LINES
        ):
            self._spoke = time.monotonic()
            done = self._done - self._first
            left = (self._spoke - self._began) / done * (self._total - self._done)
            words = [f"{self._label}: {self._unit} {self._done} of {self._total}"]
            say(", ".join([*words, *filter(None, [text]), f"{left:,.0f} s left"]))

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


class Progress(Counter):
    """Shows steps, loss, perplexity, tokens/s and the time left.

    Args:
      label: what is being trained.
      start, stop: the first step and the one after the last.
    """

    def __init__(self, label: str, start: int, stop: int):
        super().__init__(label, stop, "step", done=start)

    def trained(self, loss: float, tokens_per_second: float) -> None:
        """Count one step.

        Args:
          loss: global loss in nats per token.
          tokens_per_second: recent throughput.
        """
        self.update(
            f"loss {loss:.4f}, perplexity {math.exp(min(loss, 700)):.2f}, "
            f"{tokens_per_second:,.0f} tokens/s"
        )
