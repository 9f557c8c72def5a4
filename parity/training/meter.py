"""How fast a run trains, how long it took to begin, and how much memory it holds."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 5  # steps left out of throughput: allocators and thread pools are still growing
_WINDOW = 0.5  # seconds of training behind one reading of throughput


@dataclass(frozen=True, slots=True)
class Step:
    """What is known of one training step.

    Attributes:
      tokens: real ones.
      started: when it began to wait for its batch, on the clock of `time.perf_counter`.
      waited: seconds it waited.
      seconds: it took in all.
    """

    tokens: int
    started: float
    waited: float
    seconds: float


class Meter:
    """Measures training alone: validation, checkpoints and the first steps are left out.

    Attributes:
      steps: each Step so far.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._flops = 0
        self._started = self._last_waited = 0.0
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
        seconds = time.perf_counter() - self._started
        step_waited, self._last_waited = waited - self._last_waited, waited
        self.steps.append(Step(tokens, self._started, step_waited, seconds))
        if self._first is None:
            self._first = seconds_alive()
        if len(self.steps) == WARM_UP:
            self._resident = resident_memory()
        if len(self.steps) > WARM_UP:
            self._flops += flops

    @property
    def recent(self) -> float:
        """Return real tokens/s over the last half second or so."""
        tokens, seconds = 0, 0.0
        for step in reversed(self.steps[-200:]):
            tokens, seconds = tokens + step.tokens, seconds + step.seconds
            if seconds >= _WINDOW:
                break
        return tokens / seconds if seconds else 0.0

    def report(self) -> dict[str, Any]:
        """Return what was measured, as the fields of `Summary` of the same names."""
        found: dict[str, Any] = {"seconds_to_first_step": self._first}
        measured = self.steps[WARM_UP:]
        if not measured:
            return found
        readings = list(_windows(measured))
        seconds = [step.seconds for step in measured]
        return found | {
            "tokens_per_second": {
                "median": float(np.median(readings)),
                "low": min(readings),
                "high": max(readings),
            },
            "seconds_per_step": float(np.median(seconds)),
            "waiting_share": sum(step.waited for step in measured) / sum(seconds),
            "product_flops_per_second": self._flops / sum(seconds),
            "resident_memory": {"warm": self._resident, "last": resident_memory()},
        }


def _windows(steps: list[Step]) -> Iterator[float]:
    """Yield tokens/s of consecutive windows; a short rest at the end joins none."""
    tokens, seconds, found = 0, 0.0, False
    for step in steps:
        tokens, seconds = tokens + step.tokens, seconds + step.seconds
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
