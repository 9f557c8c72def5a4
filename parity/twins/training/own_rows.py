"""The part of a batch that one process of a training reads: the rows of its own replicas."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.twins.processes.group import ProcessGroup
from parity.twins.processes.joining import gather_rows, own_rows
from parity.twins.spec.step_arrays import StepInputs


def own_batch(batches: Any, step: int, group: ProcessGroup | None, replicas: int) -> Any:
    """Return the batch of a step, or of several processes this one's rows of it.

    Args:
      batches: a split of a TrainingText.
      step: the step.
      group: the processes that share the batch; None to return all rows.
      replicas: the number of all replicas.
    """
    if group is None or group.size == 1:
        return batches.batch(step)
    return batches.batch(step, own_rows(group, batches.size(step), replicas))


def whole_batch(group: ProcessGroup, inputs: StepInputs) -> Mapping[str, np.ndarray] | None:
    """Return the arrays of a whole batch, as the processes have read them.

    What is recorded is thus what was read: a rank that reads wrong rows is found by them.

    Args:
      group: the processes that share the batch.
      inputs: the rows of this process, or all of them.

    Returns:
      Name -> array; None on ranks other than 0 that have read their own rows alone.
    """
    return gather_rows(group, inputs.batch) if inputs.all_lengths else inputs.batch
