"""Evaluates a network: its perplexity on a split of the text."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from parity.spec.initial import zero_state
from parity.spec.step_arrays import step_inputs
from parity.training.strategy import Strategy
from parity.training.training_text import TrainingText


def evaluate(
    strategy: Strategy, text: TrainingText, split: str, check: Callable[[], None]
) -> float:
    """Return the perplexity on a split, which is exp(mean loss per real token).

    Args:
      strategy: a strategy that was built with `evaluates`.
      text: the text with the split.
      split: "train", "valid" or "test".
      check: a function called after each batch; it raises an exception to give up.
    """
    batches, spec = getattr(text, split), strategy.spec
    total, tokens = 0.0, 0
    state: Mapping[str, np.ndarray] | None = None
    for step in range(batches.batches_per_epoch):
        inputs = step_inputs(spec, step, batches.batch(step), train=False)
        if inputs.num_tokens == 0:
            continue
        if state is None or not inputs.carry:
            state = zero_state(spec, inputs.rows)
        result = strategy.evaluate(inputs, state)
        state = result.state
        total += result.loss * inputs.num_tokens
        tokens += inputs.num_tokens
        check()
    return perplexity(total / tokens)


def perplexity(loss: float) -> float:
    """Return exp(loss) for a loss in nats per token; infinity if that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
