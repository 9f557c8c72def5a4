"""Trains step by step: the inner loop that traced, profiled and ordinary runs share."""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from parity.base.progress import ProgressBar
from parity.base.text import decimal
from parity.twins.processes.gathering import local_batch
from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.initial import zero_state
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import StepInputs, StepResult, check_finite, step_inputs
from parity.twins.spec.training import learning_rate
from parity.twins.training.flops import product_flops
from parity.twins.training.meter import Meter
from parity.twins.training.strategy import Strategy
from parity.twins.training.text_source import TextSource

State = Mapping[str, np.ndarray]


class TrainedStep(NamedTuple):
    """A step that has been trained.

    Attributes:
      number: the step's number, counted from 0 over all epochs.
      inputs: the global batch; with several processes, only the local rows.
      learning_rate: the learning rate of the step.
      result: the result that the strategy returned.
      settled: whether the weights are those after this step: no replica has begun the next one.
    """

    number: int
    inputs: StepInputs
    learning_rate: float
    result: StepResult
    settled: bool = True


def perplexity(loss: float) -> float:
    """Return exp(loss) for a loss in nats per token; infinity if that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class TrainingProgress(ProgressBar):
    """Show steps, loss, perplexity, tokens/s and the time left; off a terminal as lines.

    There is a line now and then, one at the end of each epoch, and one after the last step.

    Args:
      label: what is being trained.
      start: the first step.
      stop: the step after the last.
      per_epoch: the number of steps in an epoch.
    """

    def __init__(self, label: str, start: int, stop: int, per_epoch: int):
        super().__init__(label, stop, "step", done=start)
        self._step, self._stop, self._per_epoch = start, stop, per_epoch

    def trained(self, loss: float, tokens_per_second: float) -> None:
        """Count one step.

        Args:
          loss: global loss in nats per token.
          tokens_per_second: recent throughput.
        """
        self._step += 1
        self.update(
            f"loss {decimal(loss, 4)}, perplexity {decimal(perplexity(loss), 2)}, "
            f"{tokens_per_second:,.0f} tokens/s",
            now=self._step % self._per_epoch == 0 or self._step == self._stop,
        )


def train_steps(
    strategy: Strategy,
    text: TextSource,
    stop: int,
    meter: Meter,
    *,
    start: int = 0,
    state: State | None = None,
    run_step: Callable[[StepInputs, State, float], StepResult] | None = None,
    group: ProcessGroup | None = None,
) -> Generator[TrainedStep, None, None]:
    """Train from step `start` to step `stop` - 1, and yield each step after it is trained.

    Args:
      strategy: the strategy, with the weights before step `start`.
      text: the text to train on.
      stop: the number of the step after the last, counted over all epochs.
      meter: measures the time of each step.
      start: the number of the first step.
      state: the recurrent state before the first step; None at the start of a text.
      run_step: a function to call instead of `strategy.step`, with its arguments and result.
      group: the processes that share each batch, of which each reads its local rows only;
        None to read all rows.

    Raises:
      NumericFailure: if a loss or a gradient is not finite.
    """
    spec, per_epoch = strategy.spec, text.train.batches_per_epoch
    run_step, replicas = run_step or strategy.step, strategy.replicas

    def inputs_of(step: int) -> StepInputs:
        return step_inputs(spec, step, local_batch(text.train, step, group, replicas))

    with (
        TrainingProgress(strategy.framework, start, stop, per_epoch) as progress,
        text.prefetch(inputs_of, start, stop) as batches,
    ):
        for step, inputs in enumerate(batches, start):
            if state is None or not inputs.carry:
                state = zero_state(spec, inputs.rows)
            rate = learning_rate(spec.training, step // per_epoch)
            meter.start(batches.waited)
            with group.steps.step() if group is not None else nullcontext():
                result = run_step(inputs, state, rate)
            meter.stop(inputs.num_tokens, batches.waited, product_flops(spec, inputs.lengths))
            check_finite(result, step, split_rows(inputs.rows, replicas))
            state = result.state
            progress.trained(inputs.per_token(result.loss), meter.recent)
            yield TrainedStep(step, inputs, rate, result)
