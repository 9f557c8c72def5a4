"""A training that is only timed: no validation, no checkpoints, no traces."""

from collections.abc import Iterator
from typing import Any

from parity.spec.batch_io import StepInputs, StepResult, check_finite, step_inputs
from parity.spec.initial import zero_state
from parity.spec.replicas import split_rows
from parity.spec.spec import Spec, learning_rate
from parity.training.flops import product_flops
from parity.training.meter import Meter
from parity.training.progress import TrainingProgress


def timed_steps(
    trainer: Any, text: Any, spec: Spec, stop: int, meter: Meter
) -> Iterator[tuple[StepInputs, StepResult]]:
    """Train from the initial weights, and yield each step's inputs and result.

    Args:
      trainer: has framework, replicas and step.
      text: what is read; see `parity.training.loop.TrainingText`.
      spec: with the size of the real vocabulary.
      stop: how many steps, counted over epochs.
      meter: is told of each step.

    Raises:
      NumericFailure: if a loss or a gradient is not finite.
    """
    per_epoch = text.train.batches_per_epoch
    state = None
    with (
        TrainingProgress(trainer.framework, 0, stop) as progress,
        text.prefetch(
            lambda step: step_inputs(spec, step, text.train.batch(step)), 0, stop
        ) as steps,
    ):
        for step, inputs in enumerate(steps):
            if state is None or not inputs.carry:
                state = zero_state(spec, inputs.rows)
            rate = learning_rate(spec.training, step // per_epoch)
            meter.start(steps.waited)
            result = trainer.step(inputs, state, rate)
            meter.stop(inputs.num_tokens, steps.waited, product_flops(spec, inputs.batch))
            check_finite(result, step, split_rows(inputs.rows, trainer.replicas))
            state = result.state
            progress.trained(result.loss, meter.recent)
            yield inputs, result
