"""What a user sees while long work goes on: a bar on a terminal, else a line now and then."""

import math
import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0


def say(message: str) -> None:
    """Print a line on stderr without breaking a progress bar."""
    tqdm.write(message, file=sys.stderr)
    sys.stderr.flush()


class Progress:
    """Shows steps, loss, perplexity, tokens/s and the time left.

    Args:
      label: what is being trained.
      start, stop: the first step and the one after the last.
    """

    def __init__(self, label: str, start: int, stop: int):
        self._label, self._step, self._stop = label, start, stop
        self._began, self._first, self._spoke = time.monotonic(), start, time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(desc=label, initial=start, total=stop, unit="step", leave=False)

    def update(self, loss: float, tokens_per_second: float) -> None:
        """Count one step.

        Args:
          loss: global loss in nats per token.
          tokens_per_second: recent throughput.
        """
        self._step += 1
        text = (
            f"loss {loss:.4f}, perplexity {math.exp(min(loss, 700)):.2f}, "
            f"{tokens_per_second:,.0f} tokens/s"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        elif time.monotonic() - self._spoke >= _SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            done = self._step - self._first
            left = (self._spoke - self._began) / done * (self._stop - self._step)
            say(f"{self._label}: step {self._step} of {self._stop}, {text}, {left:,.0f} s left")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
