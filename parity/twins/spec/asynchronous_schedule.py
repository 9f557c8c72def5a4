"""Asynchronous training: in which order workers read and update the weights, and their rows.

Each worker, again and again, reads the weights, computes a gradient with them, and applies an
update of its own. The updates of all workers are numbered from 0 in the order in which they are
applied. Version v of the weights is the result of the updates before number v: version 0 is the
initial weights. For each update, a schedule names the worker that applies it and the version
that this worker had read. The staleness of an update is its number minus that version: the
number of other workers' updates that came between.

A worker takes the steps 0, 1, 2 ... by itself, so the step that an update belongs to follows
from the schedule. All workers wait for each other at the end of every epoch, and wherever a
checkpoint is due. So a schedule is a sequence of segments, and no update of a segment reads a
version from before the segment.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import read_file
from parity.base.text import parse_json
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import StepInputs

FREE = "free"  # the value of --schedule that lets the workers run as they like
STALENESS = 1  # the greatest staleness of a drawn schedule, unless --staleness says otherwise

_KEYS = ("update", "worker", "batch", "read")


class Update(NamedTuple):
    """One update of a schedule; its number is its place in the order of application.

    Attributes:
      worker: the worker that applies it.
      read: the version of the weights that the gradient was computed with.
    """

    worker: int
    read: int


class DrawnSchedule:
    """A random schedule; each segment is drawn by itself, so that a resumed run has the same.

    Args:
      seed: the seed.
      workers: the number of workers.
      staleness: the greatest staleness.
    """

    def __init__(self, seed: int, workers: int, staleness: int):
        self._seed, self._workers, self._staleness = seed, workers, staleness

    def between(self, start: int, stop: int, most: int | None = None) -> Sequence[Update]:
        """Return the updates of the steps from `start` to `stop` - 1 of all workers.

        The first of them has the number `start` * workers.

        Args:
          start: the first step of a segment.
          stop: the step after its last.
          most: the largest number of updates to return; None for all.
        """
        first = start * self._workers
        seed = f"{self._seed} {start}"
        found = drawn(seed, self._workers, stop - start, self._staleness)
        return [Update(worker, first + read) for worker, read in found[:most]]


class ListedSchedule:
    """A schedule that a file lists; see `read_schedule`.

    Args:
      path: the file.
      workers: the number of workers.

    Raises:
      UsageError: if the file cannot be read, or lists no schedule of so many workers.
    """

    def __init__(self, path: Path, workers: int):
        self._path, self._workers = path, workers
        self._first, self._updates = read_schedule(path, workers)

    def between(self, start: int, stop: int, most: int | None = None) -> Sequence[Update]:
        """Return the updates of a segment; see `DrawnSchedule`.

        Raises:
          UsageError: if the file has no such segment.
        """
        first, last = start * self._workers, stop * self._workers
        if most is not None:
            last = min(last, first + most)
        have = self._first + len(self._updates)
        if first < self._first or last > have:
            raise UsageError(
                f"{self._path}: has the updates {self._first} to {have - 1}; the run needs "
                f"{first} to {last - 1}"
            )
        found = self._updates[first - self._first : last - self._first]
        taken = steps_of(found, start)
        for number, (step, (worker, read)) in enumerate(zip(taken, found, strict=True), first):
            if read < first or step >= stop:
                line = number - self._first + 1
                problem = f"reads version {read}" if read < first else "is past the segment"
                raise UsageError(
                    f"{self._path}:{line}: update {number} of worker {worker} {problem}; "
                    f"allowed: all workers wait for each other before step {start} and before "
                    f"step {stop}, where an epoch ends or a checkpoint is due"
                )
        return found


def drawn(seed: int | str, workers: int, steps: int, staleness: int) -> list[Update]:
    """Draw a random schedule.

    Whenever a worker reads the weights, it is drawn how stale its update shall be, from 0 to
    the greatest staleness, each as likely; the update then comes that late if the other workers
    have enough steps left, and never later.

    Args:
      seed: the seed.
      workers: the number of workers.
      steps: the number of steps of each worker.
      staleness: the greatest staleness; with 0, every worker reads only after the update of
        the worker before it.
    """
    draw = random.Random(str(seed))  # of its methods, `random` is the same in every version

    def below(stop: int) -> int:
        return int(draw.random() * stop)

    left = [steps] * workers
    pending: dict[int, tuple[int, int]] = {}  # worker -> the version it read, its chosen delay
    updates: list[Update] = []
    while any(left):
        now = len(updates)
        readers = [each for each in range(workers) if left[each] and each not in pending]
        if len(pending) > staleness:  # one of them would be too late
            readers = []
        in_time = [each for each in pending if _others_in_time(pending, each, now, staleness)]
        ripe = [each for each in in_time if now - pending[each][0] >= pending[each][1]]
        choices = readers + ripe or in_time
        worker = choices[below(len(choices))]
        if worker in pending:
            updates.append(Update(worker, pending.pop(worker)[0]))
            left[worker] -= 1
        else:
            pending[worker] = now, below(staleness + 1)
    return updates


def _others_in_time(
    pending: dict[int, tuple[int, int]], worker: int, now: int, staleness: int
) -> bool:
    """Return whether, after an update of a worker, no other pending one need come too late."""
    reads = sorted(read for each, (read, _) in pending.items() if each != worker)
    return all(now + place <= read + staleness for place, read in enumerate(reads, 1))


def steps_of(updates: Iterable[Update], start: int = 0) -> list[int]:
    """Return the step of each update; every worker begins with step `start`."""
    taken: dict[int, int] = {}
    steps = []
    for worker, _ in updates:
        steps.append(start + taken.get(worker, 0))
        taken[worker] = taken.get(worker, 0) + 1
    return steps


def schedule_text(updates: Sequence[Update], workers: int, start: int = 0) -> str:
    """Return a schedule as the text of a file: a line of JSON for each update.

    Args:
      updates: the updates of all workers, from step `start` on.
      workers: the number of workers.
      start: the first step.
    """
    lines = []
    steps = steps_of(updates, start)
    for place, (step, (worker, read)) in enumerate(zip(steps, updates, strict=True)):
        values = start * workers + place, worker, step, read
        lines.append(json.dumps(dict(zip(_KEYS, values, strict=True))) + "\n")
    return "".join(lines)


def read_schedule(path: Path, workers: int) -> tuple[int, list[Update]]:
    """Read a file that `schedule_text` describes.

    Args:
      path: the file.
      workers: the number of workers.

    Returns:
      The number of the first update, and the updates.

    Raises:
      UsageError: naming the line, if the file lists no schedule of so many workers.
    """
    try:
        lines = read_file(path).decode().splitlines()
    except OSError as error:
        raise UsageError(
            f"--schedule is {str(path)!r}: {error.strerror}; allowed: free, a seed from 0 on, "
            "or a file with a schedule"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a schedule: this is not text") from None
    if not lines:
        raise UsageError(f"{path}: not a schedule: the file is empty")
    updates: list[Update] = []
    first = 0
    last: dict[int, int] = {}  # worker -> the number of its last update
    taken = [0] * workers
    for line, text in enumerate(lines, start=1):
        values = _values(path, line, text)
        if line == 1:
            first = values["update"]
            if first % workers:
                raise UsageError(
                    f"{path}:1: update is {first}; allowed: a multiple of {workers}, the "
                    "number of workers"
                )
        number, worker = first + line - 1, values["worker"]
        if not 0 <= worker < workers:
            raise UsageError(f"{path}:{line}: worker is {worker}; allowed: 0 to {workers - 1}")
        oldest = last.get(worker, first - 1) + 1
        allowed = {
            "update": (number, number),
            "batch": (first // workers + taken[worker],) * 2,
            "read": (oldest, number),
        }
        for name, (least, most) in allowed.items():
            if not least <= values[name] <= most:
                listed = f"{least}" if least == most else f"{least} to {most}"
                raise UsageError(f"{path}:{line}: {name} is {values[name]}; allowed: {listed}")
        updates.append(Update(worker, values["read"]))
        last[worker] = number
        taken[worker] += 1
    return first, updates


def _values(path: Path, line: int, text: str) -> dict[str, int]:
    try:
        values = parse_json(text)
    except ValueError:
        values = None
    is_update = isinstance(values, dict) and all(
        type(values.get(name)) is int for name in _KEYS
    )
    if not is_update:
        raise UsageError(
            f"{path}:{line}: {text[:80]!r}; allowed: a JSON object with the integers "
            f"{', '.join(_KEYS)}"
        )
    return {name: values[name] for name in _KEYS}


def is_seed(schedule: str) -> bool:
    """Return whether a value of --schedule is the seed of a schedule to draw."""
    return schedule.isascii() and schedule.isdigit()


def greatest_staleness(schedule: str | None, staleness: int | None) -> int | None:
    """Return the greatest staleness that settings allow; None where they set no limit.

    Args:
      schedule, staleness: as for `schedule_of`; no schedule is a free one.
    """
    if schedule is None or not is_seed(schedule):
        return None
    return STALENESS if staleness is None else staleness


def schedule_of(
    schedule: str, staleness: int | None, workers: int
) -> DrawnSchedule | ListedSchedule | None:
    """Return the schedule that --schedule names; None if the workers are to run freely.

    Args:
      schedule: "free", a seed, or the path of a file.
      staleness: the greatest staleness of a drawn schedule; None for the default.
      workers: the number of workers.

    Raises:
      UsageError: if it names a file that lists no schedule of so many workers.
    """
    if schedule == FREE:
        return None
    greatest = greatest_staleness(schedule, staleness)
    if greatest is not None:
        return DrawnSchedule(int(schedule), workers, greatest)
    return ListedSchedule(Path(schedule), workers)


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
