"""The rows of a global batch that one worker of an asynchronous training computes by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import StepInputs


@dataclass(frozen=True)
class WorkerRows:
    """One worker's part of one step.

    Attributes:
      worker: the worker.
      step: the step that its rows belong to.
      first: the place of its first row in the global batch.
      of_rows: the number of rows in the global batch.
      inputs: its rows, padded as in the global batch, with their part of the dropout masks.
    """

    worker: int
    step: int
    first: int
    of_rows: int
    inputs: StepInputs


def worker_rows(inputs: StepInputs, step: int, workers: int) -> list[WorkerRows]:
    """Divide a global batch among workers, by `split_rows`.

    Args:
      inputs: the global batch.
      step: its step.
      workers: the number of workers.
    """
    bounds = np.cumsum([0, *split_rows(inputs.rows, workers)]).tolist()
    return [
        WorkerRows(
            worker,
            step,
            first,
            inputs.rows,
            StepInputs(
                {name: array[first:stop] for name, array in inputs.batch.items()},
                inputs.carry,
                {name: mask[first:stop] for name, mask in inputs.masks.items()},
                loss_per=inputs.loss_per,
            ),
        )
        for worker, (first, stop) in enumerate(pairwise(bounds))
    ]


def local_worker_rows(inputs: StepInputs, step: int, worker: int) -> WorkerRows:
    """Return the part of a worker that has read no other rows of the batch.

    Args:
      inputs: its rows of the global batch.
      step: its step.
      worker: the worker.
    """
    own = StepInputs(inputs.batch, inputs.carry, inputs.masks, loss_per=inputs.loss_per)
    return WorkerRows(worker, step, inputs.first_row, inputs.rows, own)


def joined_losses(losses: Sequence[np.ndarray], parts: Sequence[StepInputs]) -> np.ndarray:
    """Return each worker's share of the loss of a global batch, [workers].

    Args:
      losses: the mean loss of each worker's rows, each [1].
      parts: the rows of each worker.
    """
    loss_per = parts[0].loss_per
    lengths = np.concatenate([part.batch["lengths"] for part in parts])
    whole = StepInputs({"lengths": lengths}, loss_per=loss_per)
    return np.concatenate(
        [
            loss * (part.loss_divisor / whole.loss_divisor)
            for loss, part in zip(losses, parts, strict=True)
        ]
    )
