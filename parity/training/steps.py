"""The steps of a training, one after another: what every run has in common."""

from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

import numpy as np

from parity.spec.batch_io import StepInputs, StepResult, check_finite, step_inputs
from parity.spec.initial import zero_state
from parity.spec.replicas import split_rows
from parity.spec.training import learning_rate
from parity.training.flops import product_flops
from parity.training.meter import Meter
from parity.training.progress import TrainingProgress
from parity.training.strategy import Strategy
from parity.training.text import TrainingText

State = Mapping[str, np.ndarray]


class TrainedStep(NamedTuple):
    """One step that was trained.

    Attributes:
      number: the step's number, from 0, counted over epochs.
      inputs: the global batch.
      learning_rate: the learning rate of the step.
      result: what the strategy returned.
    """

    number: int
    inputs: StepInputs
    learning_rate: float
    result: StepResult


def train_steps(
    strategy: Strategy,
    text: TrainingText,
    stop: int,
    meter: Meter,
    *,
    start: int = 0,
    state: State | None = None,
    take: Callable[[StepInputs, State, float], StepResult] | None = None,
) -> Generator[TrainedStep, None, None]:
    """Train from step `start` to step `stop` - 1, and yield each step once it is done.

    Args:
      strategy: built, with the weights of step `start`.
      text: what is read.
      stop: the step after the last, counted over epochs.
      meter: measures each step.
      start: the first step.
      state: the recurrent state before it; None at the start of a text.
      take: takes a step in place of `strategy.step`, with the same arguments and result.

    Raises:
      NumericFailure: if a loss or a gradient is not finite.
    """
    spec, per_epoch = strategy.spec, text.train.batches_per_epoch
    take = take or strategy.step
    with (
        TrainingProgress(strategy.framework, start, stop) as progress,
        text.prefetch(
            lambda step: step_inputs(spec, step, text.train.batch(step)), start, stop
        ) as batches,
    ):
        for step, inputs in enumerate(batches, start):
            if state is None or not inputs.carry:
                state = zero_state(spec, inputs.rows)
            rate = learning_rate(spec.training, step // per_epoch)
            meter.start(batches.waited)
            result = take(inputs, state, rate)
            meter.stop(inputs.num_tokens, batches.waited, product_flops(spec, inputs.batch))
            check_finite(result, step, split_rows(inputs.rows, strategy.replicas))
            state = result.state
            progress.trained(result.loss, meter.recent)
            yield TrainedStep(step, inputs, rate, result)
