"""How fast a run trains, how long it took to begin, and how much memory it holds."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 5  # steps left out of throughput: allocators and thread pools are still growing
_WINDOW = 0.5  # seconds of training behind one reading of throughput


class Meter:
    """Measures training alone: validation, checkpoints and the first steps are left out."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, float]] = []  # tokens, seconds
        self._flops = 0
        self._waited = self._started = self._last_waited = 0.0
        self._first: float | None = None
        self._resident: int | None = None  # bytes, after the warm-up

    def start(self, waited: float) -> None:
        """Mark the start of a step, its data being there.

        Args:
          waited: seconds the run has waited for data so far.
        """
        self._started = time.perf_counter() - (waited - self._last_waited)

    def stop(self, tokens: int, waited: float, flops: int = 0) -> None:
        """Mark the end of a step of so many real tokens.

        Args:
          flops: of its matrix products; see `product_flops`.
        """
        self._steps.append((tokens, time.perf_counter() - self._started))
        if self._first is None:
            self._first = seconds_alive()
        if len(self._steps) == WARM_UP:
            self._resident = resident_memory()
        if len(self._steps) > WARM_UP:
            self._waited += waited - self._last_waited
            self._flops += flops
        self._last_waited = waited

    @property
    def recent(self) -> float:
        """Return real tokens/s over the last half second or so."""
        tokens, seconds = 0, 0.0
        for step_tokens, step_seconds in reversed(self._steps[-200:]):
            tokens, seconds = tokens + step_tokens, seconds + step_seconds
            if seconds >= _WINDOW:
                break
        return tokens / seconds if seconds else 0.0

    def report(self) -> dict[str, Any]:
        """Return what was measured, as the fields of `Summary` of the same names."""
        found: dict[str, Any] = {"seconds_to_first_step": self._first}
        measured = self._steps[WARM_UP:]
        if not measured:
            return found
        readings = list(_windows(measured))
        seconds = [step_seconds for _, step_seconds in measured]
        return found | {
            "tokens_per_second": {
                "median": float(np.median(readings)),
                "low": min(readings),
                "high": max(readings),
            },
            "seconds_per_step": float(np.median(seconds)),
            "waiting_share": self._waited / sum(seconds),
            "product_flops_per_second": self._flops / sum(seconds),
            "resident_memory": {"warm": self._resident, "last": resident_memory()},
        }


def _windows(steps: list[tuple[int, float]]) -> Iterator[float]:
    """Yield tokens/s of consecutive windows; a short rest at the end joins none."""
    tokens, seconds, found = 0, 0.0, False
    for step_tokens, step_seconds in steps:
        tokens, seconds = tokens + step_tokens, seconds + step_seconds
        if seconds >= _WINDOW:
            yield tokens / seconds
            tokens, seconds, found = 0, 0.0, True
    if not found:
        yield tokens / seconds


def seconds_alive() -> float:
    """Return how long ago this process was started."""
    started = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now - started / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Return the most bytes that this process has held."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:", 1)[1].split()[0]) * 1024


def resident_memory() -> int:
    """Return the bytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
