"""TensorBoard event files, written without either framework."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from parity.spec.step_arrays import StepResult

# A fast network would spend its time on writing events: after the first steps, not each one.
_ALWAYS, _SECONDS_BETWEEN = 100, 0.1


class EventWriter:
    """Writes the run's curves: loss/global, loss/replica_N, tokens_per_second, learning_rate.

    Args:
      folder: the folder of the event files, or None to write nothing.
      step: the first step; when resuming, what was recorded from here on is replaced.
    """

    def __init__(self, folder: Path | None, step: int):
        self._writer: Any = None
        self._folder, self._first, self._written = folder, step, 0.0
        if folder is not None:
            # It sets a variable of the environment when it is imported. Once threads of an
            # engine compute, one of them may be reading the environment, and crash.
            import tensorboardX  # noqa: F401

    def step(
        self,
        step: int,
        result: StepResult,
        tokens: np.ndarray,
        tokens_per_second: float,
        learning_rate: float,
    ) -> None:
        """Write one step's scalars; after a run's first 100 steps at most ten times a second.

        Args:
          step: the step.
          result: what it returned, with its losses per token.
          tokens: the number of real tokens of each replica, [replicas], by which the loss of a
            replica is divided.
          tokens_per_second: recent throughput.
          learning_rate: the learning rate of the step.
        """
        recent = time.monotonic() - self._written < _SECONDS_BETWEEN
        if self._folder is None or (recent and step >= self._first + _ALWAYS):
            return
        self._written = time.monotonic()
        self.scalar("loss/global", step, result.loss)
        for replica, loss in enumerate(result.losses * tokens.sum() / np.maximum(tokens, 1)):
            self.scalar(f"loss/replica_{replica}", step, loss)
        self.scalar("tokens_per_second", step, tokens_per_second)
        self.scalar("learning_rate", step, learning_rate)

    def perplexity(self, split: str, step: int, value: float) -> None:
        """Write a split's perplexity."""
        self.scalar(f"perplexity/{split}", step, value)

    def scalar(self, name: str, step: int, value: float) -> None:
        """Write one number."""
        if self._folder is None:
            return
        if self._writer is None:  # not before the first step, which it would delay
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._first)
        self._writer.add_scalar(name, value, step)

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
