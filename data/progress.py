"""Progress of long work: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BEFORE_BAR = 1.0


class Progress:
    """Count bytes towards a total on stderr; silent for what takes a moment.

    Args:
      label: what is being done.
      total: bytes.
    """

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                desc=label,
                total=total,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                leave=False,
                delay=_SECONDS_BEFORE_BAR,
            )

    def update(self, count: int) -> None:
        """Add bytes done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
            share = self._done / max(self._total, 1)
            print(
                f"{self._label}: {share:.0%} of {self._total:,} bytes",
                file=sys.stderr,
                flush=True,
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
