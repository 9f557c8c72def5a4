"""The steps of a run with an asynchronous strategy: their schedule, and where workers wait."""

from collections.abc import Generator
from typing import cast

from parity.base.errors import UsageError
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.schedule import FREE, ListedSchedule, schedule_of
from parity.twins.training.asynchronous_steps import (
    AppliedUpdate,
    AsynchronousPlan,
    asynchronous_steps,
    next_settled,
)
from parity.twins.training.meter import Meter
from parity.twins.training.rank_agreement import StopRequest, agreed_signal
from parity.twins.training.recording import TraceRecording
from parity.twins.training.schedule_log import ScheduleLog
from parity.twins.training.strategy import AsynchronousStrategy, Strategy
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import State, TrainedStep


def check_asynchronous(strategy: Strategy, options: TrainOptions) -> None:
    """Check that the options are possible with an asynchronous strategy, if it is one.

    Raises:
      UsageError: for an option that is not.
    """
    if strategy.entry.traits.synchronous:
        return
    if options.isolate:
        raise UsageError(
            f"--isolate is given with --strategy {strategy.entry.name}; allowed: a synchronous "
            "strategy"
        )


def asynchronous_run(
    strategy: Strategy, text: TextSource, options: TrainOptions
) -> "AsynchronousRun | None":
    """Return what takes the steps of a run whose strategy is asynchronous; None for another.

    Raises:
      UsageError: if --schedule names a file that lists no schedule of so many workers.
    """
    if strategy.entry.traits.synchronous:
        return None
    return AsynchronousRun(cast(AsynchronousStrategy, strategy), text, options)


class AsynchronousRun:
    """Takes the steps of a run whose strategy is asynchronous.

    Args:
      strategy: the strategy.
      text: the text to train on.
      options: the options of the run.

    Attributes:
      log: the order of the updates so far, which the run writes with every checkpoint.

    Raises:
      UsageError: if --schedule names a file that lists no schedule of so many workers.
    """

    def __init__(self, strategy: AsynchronousStrategy, text: TextSource, options: TrainOptions):
        self._strategy, self._text = strategy, text
        self._per_epoch = text.train.batches_per_epoch
        self._checkpoint_every = options.checkpoint_every
        self._records = options.trace is not None
        settings, workers = strategy.build.settings, strategy.replicas
        self._schedule = schedule_of(settings.schedule or FREE, settings.staleness, workers)
        self.log = ScheduleLog(options.out / "schedule.jsonl", workers)

    @property
    def settles_on_request(self) -> bool:
        """Return whether the workers can wait for each other at once: not within a schedule."""
        return self._schedule is None

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
            last = next_settled(start, stop, self._settles)
            most = None if updates is None else updates - start * self._strategy.replicas
            if most is not None and most <= 0:
                return
            self._schedule.between(start, last, most)
            start = last

    def _end(self, stop: int) -> tuple[int, int | None]:
        """Return the step after the last, and the update after the last if it is recorded."""
        if not self._records:
            return stop, None
        of_epoch = self._per_epoch * self._strategy.replicas
        # one worker may take all steps of an epoch before another one begins with it
        return -(-stop // of_epoch) * self._per_epoch, stop

    def steps(
        self,
        stop: int,
        meter: Meter,
        start: int,
        state: State | None,
        request: StopRequest,
        recording: TraceRecording | None = None,
    ) -> Generator[TrainedStep, None, None]:
        """Train, and yield each step once all workers took it; see `asynchronous_steps`.

        Args:
          stop: the step after the last; of a recorded run, the update after the last.
          meter: measures the time between steps.
          start: the first step.
          state: the recurrent state before it; None at the start of a text.
          request: says whether the run was asked to stop.
          recording: records every update; None to record nothing.
        """

        def applied(update: AppliedUpdate) -> None:
            self.log.add(update.part.worker, update.read)
            if recording is not None:
                recording.update(update)

        stop, updates = self._end(stop)
        plan = AsynchronousPlan(
            self._schedule,
            self._settles,
            lambda: bool(agreed_signal(self._strategy.build.group, request.signal)),
            applied,
            recording is not None,
            updates,
        )
        return asynchronous_steps(
            self._strategy, self._text, stop, meter, plan, start=start, state=state
        )

    def _settles(self, step: int) -> bool:
        every = self._checkpoint_every
        return step % self._per_epoch == 0 or (every is not None and step % every == 0)
