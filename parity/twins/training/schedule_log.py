"""The order of the updates of an asynchronous run, as a file that --schedule can replay."""

from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.twins.spec.schedule import Update, read_schedule, schedule_text


class ScheduleLog:
    """The table schedule.jsonl of a run; spec/schedule.py says what its lines hold.

    Args:
      path: the file, written whole by `save`.
      workers: the number of workers.
    """

    def __init__(self, path: Path, workers: int):
        self._path, self._workers = path, workers
        self._start = 0
        self._updates: list[Update] = []

    def restore(self, step: int) -> None:
        """Load the updates that an earlier part of the run applied before step `step`.

        If there are none, as after a run with another strategy or another number of replicas,
        the file begins with step `step`.
        """
        try:
            first, updates = read_schedule(self._path, self._workers)
        except UsageError:
            first, updates = 0, []
        before = step * self._workers - first
        if 0 <= before <= len(updates):
            self._start, self._updates = first // self._workers, updates[:before]
        else:
            self._start, self._updates = step, []

    def add(self, worker: int, read: int) -> None:
        """Add the next update."""
        self._updates.append(Update(worker, read))

    def save(self) -> None:
        """Write the file, whole or not at all.

        Raises:
          UsageError: if it cannot be written.
        """
        text = schedule_text(self._updates, self._workers, self._start)
        write_whole(self._path, text.encode())
