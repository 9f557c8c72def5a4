"""The part of a batch that one process of a training reads: the rows of its own replicas."""

from typing import Any

from parity.processes.group import ProcessGroup
from parity.processes.joining import own_rows


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
