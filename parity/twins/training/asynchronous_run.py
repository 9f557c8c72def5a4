"""A run with an asynchronous strategy: its schedule, and where all workers wait for each other.

They do so at the end of every epoch, and wherever the run writes a checkpoint: only there do
the weights belong to one step, so that validation and resuming are well defined. What lies
between is a segment; see asynchronous_steps.py.
"""

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import cast

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.twins.spec.schedule import (
    FREE,
    ListedSchedule,
    Update,
    read_schedule,
    schedule_of,
    schedule_text,
)
from parity.twins.spec.step_arrays import step_inputs
from parity.twins.training.asynchronous_steps import (
    AppliedUpdate,
    Batches,
    EventOrder,
    Segment,
)
from parity.twins.training.flops import product_flops
from parity.twins.training.meter import Meter
from parity.twins.training.recording import TraceRecording
from parity.twins.training.signals import StopRequest, agreed_signal
from parity.twins.training.strategy import AsynchronousStrategy, Strategy
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import State, TrainedStep, TrainingProgress


class AsynchronousRun:
    """Takes the steps of a run whose strategy is asynchronous.

    Args:
      strategy: the strategy.
      text: the text to train on.
      checkpoint_every: the number of steps between checkpoints; None for one after each epoch.
      records: whether the run records a trace, in which every update is a step.

    Attributes:
      settles_on_request: whether the workers can wait for each other at once: not within a
        schedule.

    Raises:
      UsageError: if --schedule names a file that lists no schedule of so many workers.
    """

    def __init__(
        self,
        strategy: Strategy,
        text: TextSource,
        checkpoint_every: int | None = None,
        records: bool = False,
    ):
        self._strategy, self._text = cast(AsynchronousStrategy, strategy), text
        self._workers, self._per_epoch = strategy.replicas, text.train.batches_per_epoch
        self._checkpoint_every, self._records = checkpoint_every, records
        settings = strategy.build.settings
        chosen = settings.schedule or FREE
        self._schedule = schedule_of(chosen, settings.staleness, self._workers)
        self.settles_on_request = self._schedule is None

    def check_schedule(self, start: int, stop: int) -> None:
        """Check that a schedule from a file has all updates of a run, before it begins.

        Args:
          start, stop: as for `steps`.

        Raises:
          UsageError: naming the file, if it has not.
        """
        if not isinstance(self._schedule, ListedSchedule):
            return
        stop, updates = self._end(stop)
        while start < stop:
            last, most = self._next_settled(start, stop), self._updates_left(updates, start)
            if most is not None and most <= 0:
                return
            self._schedule.between(start, last, most)
            start = last

    def steps(
        self,
        stop: int,
        meter: Meter,
        start: int = 0,
        state: State | None = None,
        request: StopRequest | None = None,
        log: "ScheduleLog | None" = None,
        recording: TraceRecording | None = None,
    ) -> Generator[TrainedStep, None, None]:
        """Train from step `start` to step `stop` - 1; yield each step once all workers took it.

        The loss of a yielded step is the mean over the whole global batch, each worker's part
        of it computed with the weights that this worker had; its gradient norm is the largest
        of theirs.

        Args:
          stop: the step after the last; of a recorded run, the update after the last.
          meter: measures the time between steps.
          start: the first step.
          state: the recurrent state before it; None at the start of a text.
          request: says whether the run was asked to stop; None if nobody can.
          log: gets the order of the updates.
          recording: records every update; None to record nothing.

        Raises:
          UsageError: if the schedule does not fit the training.
          NumericFailure: if a loss or a gradient is not finite.
        """
        strategy, text, request = self._strategy, self._text, request or StopRequest()
        spec, group = strategy.spec, strategy.build.group
        stop, updates = self._end(stop)

        def applied(update: AppliedUpdate) -> None:
            if log is not None:
                log.add(update.part.worker, update.read)
            if recording is not None:
                recording.update(update)

        def stopping() -> bool:
            return bool(agreed_signal(group, request.signal))

        with (
            TrainingProgress(strategy.framework, start, stop, self._per_epoch) as progress,
            text.prefetch(
                lambda step: step_inputs(spec, step, text.train.batch(step)), start, stop
            ) as prefetched,
        ):
            batches = Batches(prefetched, start, self._workers)
            step = start
            while step < stop:
                last, most = self._next_settled(step, stop), self._updates_left(updates, step)
                schedule = None
                if self._schedule is not None:
                    schedule = self._schedule.between(step, last, most)
                segment = Segment(
                    strategy,
                    batches,
                    self._per_epoch,
                    range(step, last),
                    state,
                    EventOrder(step * self._workers, schedule, updates),
                    applied,
                    recording is not None,
                    stopping if schedule is None else None,
                )
                with closing(segment.steps()) as finished:
                    meter.start(prefetched.waited)
                    for each in finished:
                        flops = product_flops(spec, each.inputs.batch)
                        meter.stop(each.inputs.num_tokens, prefetched.waited, flops)
                        loss = each.inputs.per_token(each.result.loss)
                        progress.trained(loss, meter.recent)
                        meter.start(prefetched.waited)
                        state = each.result.state
                        yield each
                ends = most is not None and most <= (last - step) * self._workers
                if segment.stop < last or ends:
                    return
                step = last

    def _end(self, stop: int) -> tuple[int, int | None]:
        """Return the step after the last, and the update after the last if it is recorded."""
        if not self._records:
            return stop, None
        of_epoch = self._per_epoch * self._workers
        # one worker may take all steps of an epoch before another one begins with it
        return -(-stop // of_epoch) * self._per_epoch, stop

    def _updates_left(self, updates: int | None, step: int) -> int | None:
        """Return how many updates are left before a step, if the run ends with an update."""
        return None if updates is None else updates - step * self._workers

    def _next_settled(self, step: int, stop: int) -> int:
        """Return the step after `step`, or `stop`, before which all workers wait."""
        every = (self._per_epoch, self._checkpoint_every or stop)
        return min(stop, *(step - step % each + each for each in every))


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
