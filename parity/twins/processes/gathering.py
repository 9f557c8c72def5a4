"""The rows that a process reads, and what all have computed, joined outside of the engine."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import StepInputs


def local_rows(group: ProcessGroup, rows: int, replicas: int, rank: int | None = None) -> slice:
    """Return which rows of a batch are those of one process's replicas.

    Args:
      group: the processes of the training.
      rows: the number of rows in the global batch.
      replicas: the number of all replicas.
      rank: the rank of the process; None for this one.
    """
    sizes, each = split_rows(rows, replicas), replicas // group.size
    first = (group.rank if rank is None else rank) * each
    return slice(sum(sizes[:first]), sum(sizes[: first + each]))


def local_batch(batches: Any, step: int, group: ProcessGroup | None, replicas: int) -> Any:
    """Return this process's rows of the batch of a step; all rows if it runs alone.

    Args:
      batches: a split of a TextSource.
      step: the step.
      group: the processes that share the batch; None to return all rows.
      replicas: the number of all replicas.
    """
    if group is None or group.size == 1:
        return batches.batch(step)
    return batches.batch(step, local_rows(group, batches.size(step), replicas))


def whole_batch(group: ProcessGroup, inputs: StepInputs) -> Mapping[str, np.ndarray] | None:
    """Return the arrays of a whole batch, as the processes have read them.

    What is recorded is thus what was read: a rank that reads wrong rows is found by them.

    Args:
      group: the processes that share the batch.
      inputs: the rows of this process, or all of them.

    Returns:
      Name -> array; None on ranks other than 0 that have read their local rows alone.
    """
    if not inputs.all_lengths:
        return inputs.batch
    gathered = group.gather(inputs.batch)
    if gathered is None:
        return None
    return {name: np.concatenate([each[name] for each in gathered]) for name in inputs.batch}


def gather_parts(
    group: ProcessGroup, parts: Mapping[str, Sequence[np.ndarray]]
) -> dict[str, list[np.ndarray]] | None:
    """Return on rank 0 what all replicas have computed, in their order; None on other ranks.

    Args:
      group: the processes of the training.
      parts: name -> one array for each replica of this process.
    """
    own = {f"{i}/{name}": part for name, each in parts.items() for i, part in enumerate(each)}
    gathered = group.gather(own)
    if gathered is None:
        return None
    return {
        name: [of_rank[f"{i}/{name}"] for of_rank in gathered for i in range(len(each))]
        for name, each in parts.items()
    }


def state_of_local_rows(
    group: ProcessGroup, parts: Mapping[str, Sequence[np.ndarray]], rows: int, replicas: int
) -> dict[str, np.ndarray]:
    """Return a batch's recurrent state with zeros for the rows of other processes.

    Args:
      group: the processes of the training.
      parts: name -> one array [rows, layers, hidden] for each replica of this process.
      rows: the number of rows in the global batch.
      replicas: the number of all replicas.

    Returns:
      Name -> array [batch, layers, hidden].
    """
    own, states = local_rows(group, rows, replicas), {}
    for name, each in parts.items():
        array = np.concatenate(each)
        states[name] = np.zeros((rows, *array.shape[1:]), array.dtype)
        states[name][own] = array
    return states


def gather_state(
    group: ProcessGroup, state: Mapping[str, np.ndarray], replicas: int
) -> Mapping[str, np.ndarray] | None:
    """Return on rank 0 the state of all rows, and None on other ranks.

    Args:
      group: the processes of the training.
      state: what `state_of_local_rows` returned.
      replicas: the number of all replicas.
    """
    gathered = group.gather(state)
    if gathered is None:
        return None
    whole = {name: array.copy() for name, array in state.items()}
    for name, array in whole.items():
        for rank, of_rank in enumerate(gathered):
            rows = local_rows(group, len(array), replicas, rank)
            array[rows] = of_rank[name][rows]
    return whole


def distances_of_replicas(
    group: ProcessGroup, copies: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return each replica's greatest absolute distance from replica 0, name -> [replicas].

    Arrays travel only if their hashes differ.

    Args:
      group: the processes of the training.
      copies: the weights and the optimiser state of each replica of this process.
    """
    if group.size == 1:
        return {
            name: np.array([_distance(copy[name], first) for copy in copies], first.dtype)
            for name, first in copies[0].items()
        }
    count = len(copies)
    hashes = group.all_gather({name: _hashes(copies, name) for name in copies[0]})
    found = {}
    for name in copies[0]:
        by_replica = np.concatenate([each[name] for each in hashes])
        distances = np.zeros(count * group.size, copies[0][name].dtype)
        if (by_replica != by_replica[0]).any():  # on every rank alike
            arrays = {str(i): copy[name] for i, copy in enumerate(copies)}
            all_arrays = group.all_gather(arrays)
            every = [each[str(i)] for each in all_arrays for i in range(count)]
            distances = np.array([np.abs(array - every[0]).max() for array in every])
        found[name] = distances
    return found


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    same = np.array_equal(a, b) or a.tobytes() == b.tobytes()  # NaN equals itself
    return 0.0 if same else float(np.abs(a - b).max())


def _hashes(copies: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    """Return a hash of each copy of an array, uint8 [copies, 32]."""
    digests = [hashlib.sha256(copy[name].tobytes()).digest() for copy in copies]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(copies), 32)
