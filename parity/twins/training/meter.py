"""How fast a run trains, how long it took to start, and how much memory it uses."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

WARM_UP = 5  # steps left out of throughput: allocators and thread pools are still growing
_WINDOW = 0.5  # seconds of training that make one reading of throughput


@dataclass(frozen=True, slots=True)
class Step:
    """The measurements of one training step.

    Attributes:
      tokens: the number of real tokens.
      started: when it began to wait for its batch, on the clock of `time.perf_counter`.
      waited: how many seconds it waited.
      seconds: how many seconds it took, waiting included.
    """

    tokens: int
    started: float
    waited: float
    seconds: float


class Meter:
    """Measures training alone, without validation, checkpoints and the first steps.

    Attributes:
      first_step: the number of the first step.
      steps: the steps so far.
    """

    def __init__(self) -> None:
        self.first_step = 0
        self.steps: list[Step] = []
        self._flops = 0
        self._started = self._last_waited = 0.0
        self._first: float | None = None
        self._resident: int | None = None  # bytes, after the warm-up

    def start(self, waited: float) -> None:
        """Mark the start of a step, once its batch is there.

        Args:
          waited: seconds the run has waited for data so far.
        """
        self._started = time.perf_counter() - (waited - self._last_waited)

    def stop(self, tokens: int, waited: float, flops: int = 0) -> None:
        """Mark the end of a step.

        Args:
          tokens: its number of real tokens.
          waited: seconds the run has waited for data so far.
          flops: the operations of its matrix products; see `product_flops`.
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
        """Return real tokens per second over the last half second or so."""
        tokens, seconds = 0, 0.0
        for step in reversed(self.steps[-200:]):
            tokens, seconds = tokens + step.tokens, seconds + step.seconds
            if seconds >= _WINDOW:
                break
        return tokens / seconds if seconds else 0.0

    def report(self) -> dict[str, Any]:
        """Return the measurements, under the names of the fields of `Summary`."""
        found: dict[str, Any] = {"seconds_to_first_step": self._first}
        measured = self.steps[WARM_UP:]
        if not measured:
            return found
        windows = _windows(measured)
        timed = [step for window in windows for step in window]
        readings = [
            sum(step.tokens for step in window) / sum(step.seconds for step in window)
            for window in windows
        ]
        seconds = [step.seconds for step in measured]
        return found | {
            "tokens_per_second": {
                "median": float(np.median(readings)),
                "low": min(readings),
                "high": max(readings),
            },
            "measured": {
                "first_step": self.first_step + WARM_UP,
                "of_steps": len(measured),
                "steps": len(timed),
                "tokens": sum(step.tokens for step in timed),
                "seconds": sum(step.seconds for step in timed),
            },
            "seconds_per_step": float(np.median(seconds)),
            "waiting_share": sum(step.waited for step in measured) / sum(seconds),
            "product_flops_per_second": self._flops / sum(seconds),
            "resident_memory": {"warm": self._resident, "last": resident_memory()},
        }


def _windows(steps: list[Step]) -> list[list[Step]]:
    """Return consecutive steps that make one reading of throughput each.

    A short rest at the end is left out, unless it is all.
    """
    found, window, seconds = list[list[Step]](), list[Step](), 0.0
    for step in steps:
        window.append(step)
        seconds += step.seconds
        if seconds >= _WINDOW:
            found.append(window)
            window, seconds = [], 0.0
    return found or [window]


def seconds_alive() -> float:
    """Return how long ago this process was started.

    psutil's `create_time` is off by up to a second: it counts from the time at which the
    machine was booted, which Linux gives in whole seconds.
    """
    started = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now - started / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Return the most bytes that this process has held.

    psutil does not have it on Linux, and `getrusage` may return that of the process which
    started this one.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:", 1)[1].split()[0]) * 1024


def resident_memory() -> int:
    """Return the bytes that this process holds."""
    return int(psutil.Process().memory_info().rss)
