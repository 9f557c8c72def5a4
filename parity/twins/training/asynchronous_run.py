"""A run with an asynchronous strategy: its workers, a thread each, and where they wait.

A worker computes its rows of every global batch, with weights that it has read by itself, and
applies an update of its own. All reads and updates go through one lock: each finds the weights
whole, and each has its place in one order: that of a schedule, or as the workers are ready.

All workers wait for each other at the end of every epoch, and wherever the run writes a
checkpoint: only there do the weights belong to one step, so that validation and resuming are
well defined. What lies between is a segment.
"""

import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.twins.spec.asynchronous_schedule import (
    FREE,
    ListedSchedule,
    Update,
    WorkerRows,
    joined_losses,
    read_schedule,
    schedule_of,
    schedule_text,
    worker_rows,
)
from parity.twins.spec.initial import zero_state
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import StepInputs, StepResult, check_finite, step_inputs
from parity.twins.spec.training import learning_rate
from parity.twins.training.flops import product_flops
from parity.twins.training.meter import Meter
from parity.twins.training.rank_agreement import StopRequest, agreed_signal
from parity.twins.training.strategy import AsynchronousStrategy, Strategy
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import State, TrainedStep, TrainingProgress


@dataclass(frozen=True)
class AppliedUpdate:
    """An update that a worker has just applied; no other worker moves until it is dealt with.

    Attributes:
      number: its number among the updates of all workers, from 0.
      read: the version of the weights that its gradient was computed with.
      part: the worker's rows, and the step that they belong to.
      learning_rate: the learning rate of that step.
      result: what the worker computed: the mean loss of its rows, and their state.
    """

    number: int
    read: int
    part: WorkerRows
    learning_rate: float
    result: StepResult


class Stopped(Exception):  # noqa: N818 - not an error: the worker has nothing left to do
    """Raised in a worker that takes no further part: the run ends, or another worker failed."""


class EventOrder:
    """Lets workers read and update the weights one at a time.

    Args:
      first: the number of the first update.
      schedule: the updates to apply, in their order, the first of them with the number `first`;
        None to let workers come as they are ready.
      stop: the number of the update after the last; None for no limit.

    Attributes:
      count: the number of the next update, which is the version of the weights as well.
    """

    def __init__(self, first: int, schedule: Sequence[Update] | None, stop: int | None = None):
        self.count = first
        self._stop, self._stopped = stop, False
        self._changed = threading.Condition()
        self._given = schedule is not None
        self._due: dict[int, deque[tuple[int, int]]] = defaultdict(deque)
        self._reads_left: Counter[int] = Counter()
        for number, (worker, read) in enumerate(schedule or (), first):
            self._due[worker].append((number, read))
            self._reads_left[read] += 1

    @contextmanager
    def reading(self, worker: int) -> Iterator[int]:
        """Wait for a worker's turn to read the weights; yield their version.

        No other worker reads or updates them until the context is left.

        Raises:
          Stopped: if the worker has no update left to do.
        """
        with self._changed:
            if self._given:
                if not self._due[worker]:
                    raise Stopped
                version = self._due[worker][0][1]
                self._wait(lambda: self.count == version)
            self._check()
            yield self.count
            if self._given:
                self._reads_left[self.count] -= 1
                self._changed.notify_all()

    @contextmanager
    def applying(self, worker: int) -> Iterator[int]:
        """Wait for a worker's turn to update the weights; yield the number of the update.

        No other worker reads or updates them until the context is left.

        Raises:
          Stopped: if the run has ended.
        """
        with self._changed:
            if self._given:
                number = self._due[worker].popleft()[0]
                self._wait(lambda: self.count == number and not self._reads_left[number])
            self._check()
            yield self.count
            self.count += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no worker read or update the weights any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _wait(self, is_due: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._stopped or is_due())

    def _check(self) -> None:
        if self._stopped or (self._stop is not None and self.count >= self._stop):
            raise Stopped


class AsynchronousRun:
    """Takes the steps of a run whose strategy is asynchronous.

    Args:
      strategy: the strategy.
      text: the text to train on.
      log: gets the order of the updates.
      checkpoint_every: the number of steps between checkpoints; None for one after each epoch.
      records: whether the run records a trace, in which every update is a step.

    Attributes:
      log: as given.
      settles_on_request: whether the workers can wait for each other at once: not within a
        schedule.

    Raises:
      UsageError: if --schedule names a file that lists no schedule of so many workers.
    """

    def __init__(
        self,
        strategy: Strategy,
        text: TextSource,
        log: "ScheduleLog",
        checkpoint_every: int | None,
        records: bool,
    ):
        self._strategy, self._text = cast(AsynchronousStrategy, strategy), text
        self._workers, self._per_epoch = strategy.replicas, text.train.batches_per_epoch
        self.log, self._checkpoint_every, self._records = log, checkpoint_every, records
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
        if isinstance(self._schedule, ListedSchedule):
            for _ in self._segments(start, *self._end(stop)):
                pass

    def steps(
        self,
        stop: int,
        meter: Meter,
        start: int,
        state: State | None,
        request: StopRequest,
        record: Callable[[AppliedUpdate], None] | None,
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
          request: says whether the run was asked to stop.
          record: records every update; None to record nothing.

        Raises:
          UsageError: if the schedule does not fit the training.
          NumericFailure: if a loss or a gradient is not finite.
        """
        strategy, text = self._strategy, self._text
        spec, group = strategy.spec, strategy.build.group
        stop, updates = self._end(stop)

        def applied(update: AppliedUpdate) -> None:
            self.log.add(update.part.worker, update.read)
            if record is not None:
                record(update)

        def stopping() -> bool:
            return bool(agreed_signal(group, request.signal))

        with (
            TrainingProgress(strategy.framework, start, stop, self._per_epoch) as progress,
            text.prefetch(
                lambda step: step_inputs(spec, step, text.train.batch(step)), start, stop
            ) as prefetched,
        ):
            for steps, schedule in self._segments(start, stop, updates):
                segment = Segment(
                    strategy,
                    prefetched,
                    self._per_epoch,
                    steps,
                    state,
                    EventOrder(steps.start * self._workers, schedule, updates),
                    applied,
                    record is not None,
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
                if segment.stop < steps.stop:
                    return

    def _end(self, stop: int) -> tuple[int, int | None]:
        """Return the step after the last, and the update after the last if it is recorded."""
        if not self._records:
            return stop, None
        of_epoch = self._per_epoch * self._workers
        # one worker may take all steps of an epoch before another one begins with it
        return -(-stop // of_epoch) * self._per_epoch, stop

    def _segments(
        self, start: int, stop: int, updates: int | None
    ) -> Iterator[tuple[range, Sequence[Update] | None]]:
        """Yield the steps of each segment, and the updates that its schedule has, if any."""
        while start < stop:
            left = None if updates is None else updates - start * self._workers
            if left is not None and left <= 0:
                return
            every = (self._per_epoch, self._checkpoint_every or stop)
            last = min(stop, *(start - start % each + each for each in every))
            steps, schedule = range(start, last), self._schedule
            yield steps, None if schedule is None else schedule.between(start, last, left)
            start = last


@dataclass
class _Worker:
    """What a worker carries from step to step: its next step, and its recurrent state."""

    number: int
    step: int
    state: State | None


class Segment:
    """The steps from one at which all workers wait for each other to the next such step.

    Args:
      strategy: the strategy, with the weights before the first step.
      batches: an iterator over the global batches, of which the next is the first step's.
      per_epoch: the number of steps in an epoch.
      steps: the numbers of the steps.
      state: the recurrent state before the first step; None at the start of a text.
      order: lets workers read and update one at a time.
      applied: called after each update, before any other worker reads or updates the weights.
      record: whether each update is to return all tensors of a trace.
      stopping: whether the run was asked to stop; workers then wait for each other as soon as
        they can. None within a schedule, which must be kept to.

    Attributes:
      stop: the step after the last; less than what was asked for once the run is to stop.
    """

    def __init__(
        self,
        strategy: AsynchronousStrategy,
        batches: Iterator[StepInputs],
        per_epoch: int,
        steps: range,
        state: State | None,
        order: EventOrder,
        applied: Callable[[AppliedUpdate], None],
        record: bool,
        stopping: Callable[[], bool] | None,
    ):
        self._strategy, self._per_epoch = strategy, per_epoch
        self._batches, self._next, self._reading = batches, steps.start, threading.Lock()
        # the batches that not all workers have computed yet, each divided among them
        self._parts: dict[int, tuple[StepInputs, list[WorkerRows]]] = {}
        self._order, self._applied, self._record = order, applied, record
        self._stopping, self.stop = stopping, steps.stop
        self._lock = threading.Lock()  # of all below
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._losses: dict[int, dict[int, tuple[WorkerRows, StepResult]]] = {}
        self._workers = [
            _Worker(worker, steps.start, part)
            for worker, part in enumerate(_split_state(state, strategy.replicas))
        ]

    def steps(self) -> Generator[TrainedStep, None, None]:
        """Let the workers run, and yield each step that all of them have taken."""
        running = len(self._workers)
        threads = [
            threading.Thread(
                target=self._run, args=(worker,), name=f"worker-{worker.number}", daemon=True
            )
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        try:
            while running:
                event = self._events.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    running -= 1
                else:
                    yield self._trained(*event)
        finally:
            self._order.stop()
            for thread in threads:
                thread.join()

    def _run(self, worker: _Worker) -> None:
        try:
            while self._has_step(worker):
                self._take_step(worker)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again by the main thread
            self._order.stop()
            self._events.put(error)
        self._events.put(None)

    def _has_step(self, worker: _Worker) -> bool:
        """Return whether a worker has a step to take; once the run is to stop, end early."""
        with self._lock:
            if self._stopping is not None and self._stopping():
                # every worker still takes the steps that another one has begun
                begun = max(each.step for each in self._workers) + 1
                self.stop = min(self.stop, begun)
            return worker.step < self.stop

    def _take_step(self, worker: _Worker) -> None:
        strategy, number = self._strategy, worker.number
        part = self._part(worker.step, number)
        state = worker.state
        if state is None or not part.inputs.carry:
            state = zero_state(strategy.spec, part.inputs.rows)
        rate = learning_rate(strategy.spec.training, worker.step // self._per_epoch)
        with self._order.reading(number) as read:
            strategy.read(number)
        result = strategy.compute(part, state, self._record)
        check_finite(result, worker.step, [part.inputs.rows], first=number)
        with self._order.applying(number) as update:
            strategy.update(number, rate)
            self._applied(AppliedUpdate(update, read, part, rate, result))
        self._finish(worker, part, result)

    def _part(self, step: int, worker: int) -> WorkerRows:
        """Return a worker's rows of a step."""
        with self._reading:
            while self._next <= step:
                inputs = next(self._batches)
                parts = worker_rows(inputs, self._next, len(self._workers))
                self._parts[self._next] = inputs, parts
                self._next += 1
            return self._parts[step][1][worker]

    def _finish(self, worker: _Worker, part: WorkerRows, result: StepResult) -> None:
        with self._lock:
            worker.state = result.state
            worker.step += 1
            found = self._losses.setdefault(part.step, {})
            found[worker.number] = part, result
            if len(found) == len(self._workers):
                # in the order of the steps: no worker takes one before it took those below
                del self._losses[part.step]
                self._events.put((part.step, [found[each] for each in sorted(found)]))

    def _trained(self, step: int, found: list[tuple[WorkerRows, StepResult]]) -> TrainedStep:
        with self._reading:
            inputs = self._parts.pop(step)[0]
        result = StepResult(
            joined_losses(
                [each.losses for _, each in found], [part.inputs for part, _ in found]
            ),
            {
                name: np.concatenate([each.state[name] for _, each in found])
                for name in found[0][1].state
            },
            max(each.gradient_norm for _, each in found),
            {},
        )
        rate = learning_rate(self._strategy.spec.training, step // self._per_epoch)
        return TrainedStep(step, inputs, rate, result, settled=step + 1 == self.stop)


def _split_state(state: State | None, workers: int) -> list[State | None]:
    """Divide the recurrent state among workers as the rows of a batch are divided."""
    if not state:
        return [state] * workers
    rows = len(next(iter(state.values())))
    bounds = np.cumsum([0, *split_rows(rows, workers)])
    return [
        {name: array[bounds[worker] : bounds[worker + 1]] for name, array in state.items()}
        for worker in range(workers)
    ]


class ScheduleLog:
    """The table schedule.jsonl of a run, as spec/asynchronous_schedule.py describes its lines.

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
