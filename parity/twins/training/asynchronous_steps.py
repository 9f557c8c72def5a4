"""Trains asynchronously: a thread per worker, each of which takes the steps by itself.

A worker computes its rows of every global batch, with weights that it has read by itself, and
applies an update of its own. All workers wait for each other at the end of every epoch, and
wherever the run writes a checkpoint: only there do the weights belong to one step, so that
validation and resuming are well defined. What lies between is a segment.
"""

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.twins.spec.initial import zero_state
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.schedule import Schedule
from parity.twins.spec.step_arrays import StepInputs, StepResult, check_finite, step_inputs
from parity.twins.spec.training import learning_rate
from parity.twins.spec.worker_rows import WorkerRows, joined_losses, worker_rows
from parity.twins.training.event_order import EventOrder, Stopped
from parity.twins.training.flops import product_flops
from parity.twins.training.meter import Meter
from parity.twins.training.strategy import AsynchronousStrategy
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


@dataclass(frozen=True)
class AsynchronousPlan:
    """How far an asynchronous training goes, in which order, and who is told of its updates.

    Attributes:
      schedule: the order to keep to; None to let the workers run freely.
      settles: whether all workers wait for each other before a given step.
      stopping: whether the run was asked to stop; workers that run freely then wait for each
        other as soon as they can.
      applied: called after each update, before any other worker reads or updates the weights.
      record: whether each update is to return all tensors of a trace.
      updates: the number of the update after the last; None to end with the last step.
    """

    schedule: Schedule | None
    settles: Callable[[int], bool]
    stopping: Callable[[], bool] = lambda: False
    applied: Callable[[AppliedUpdate], None] = lambda applied: None
    record: bool = False
    updates: int | None = None


def asynchronous_steps(
    strategy: AsynchronousStrategy,
    text: TextSource,
    stop: int,
    meter: Meter,
    plan: AsynchronousPlan,
    *,
    start: int = 0,
    state: State | None = None,
) -> Generator[TrainedStep, None, None]:
    """Train from step `start` to step `stop` - 1, and yield each step once all workers took it.

    The loss of a yielded step is the mean over the whole global batch, each worker's part of it
    computed with the weights that this worker had; its gradient norm is the largest of theirs.

    Args:
      strategy: the strategy, with the weights before step `start`.
      text: the text to train on.
      stop: the number of the step after the last, counted over all epochs.
      meter: measures the time between steps.
      plan: the order of the updates, and what is done with them.
      start: the number of the first step.
      state: the recurrent state before the first step; None at the start of a text.

    Raises:
      UsageError: if the schedule does not fit the training.
      NumericFailure: if a loss or a gradient is not finite.
    """
    spec, per_epoch = strategy.spec, text.train.batches_per_epoch
    with (
        TrainingProgress(strategy.framework, start, stop, per_epoch) as progress,
        text.prefetch(
            lambda step: step_inputs(spec, step, text.train.batch(step)), start, stop
        ) as prefetched,
    ):
        batches = _Batches(prefetched, start, strategy.replicas)
        step = start
        while step < stop:
            last = next_settled(step, stop, plan.settles)
            segment = _Segment(strategy, text, batches, plan, step, last, state)
            with closing(segment.steps()) as finished:
                meter.start(prefetched.waited)
                for each in finished:
                    flops = product_flops(spec, each.inputs.batch)
                    meter.stop(each.inputs.num_tokens, prefetched.waited, flops)
                    progress.trained(each.inputs.per_token(each.result.loss), meter.recent)
                    meter.start(prefetched.waited)
                    state = each.result.state
                    yield each
            if segment.stop < last or segment.is_cut:
                return
            step = last


def next_settled(step: int, stop: int, settles: Callable[[int], bool]) -> int:
    """Return the next step before which all workers wait for each other.

    Args:
      step: the step to begin after.
      stop: the step after the last of the run.
      settles: whether they wait before a given step.
    """
    return next(end for end in range(step + 1, stop + 1) if end == stop or settles(end))


class _Batches:
    """The global batches, divided among workers; each is kept until all have computed it."""

    def __init__(self, batches: Any, first: int, workers: int):
        self._batches, self._next, self._workers = batches, first, workers
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[StepInputs, list[WorkerRows]]] = {}

    def part(self, step: int, worker: int) -> WorkerRows:
        """Return a worker's rows of a step."""
        with self._lock:
            while self._next <= step:
                inputs = next(self._batches)
                parts = worker_rows(inputs, self._next, self._workers)
                self._kept[self._next] = inputs, parts
                self._next += 1
            return self._kept[step][1][worker]

    def release(self, step: int) -> StepInputs:
        """Return a global batch that all workers have computed, and keep it no longer."""
        with self._lock:
            return self._kept.pop(step)[0]


@dataclass
class _Worker:
    """What a worker carries from step to step: its next step, and its recurrent state."""

    number: int
    step: int
    state: State | None
    thread: threading.Thread | None = field(default=None, repr=False)


class _Segment:
    """The steps from one at which all workers wait for each other to the next such step.

    Attributes:
      stop: the step after the last; less than what was asked for once the run is to stop.
      is_cut: whether the segment ended within its steps, with the last update of the plan.
    """

    def __init__(
        self,
        strategy: AsynchronousStrategy,
        text: TextSource,
        batches: _Batches,
        plan: AsynchronousPlan,
        start: int,
        stop: int,
        state: State | None,
    ):
        self._strategy, self._batches, self._plan = strategy, batches, plan
        self._per_epoch = text.train.batches_per_epoch
        workers, first = strategy.replicas, start * strategy.replicas
        most = None if plan.updates is None else plan.updates - first
        self.stop = stop
        self.is_cut = most is not None and most <= (stop - start) * workers
        schedule = None
        if plan.schedule is not None:
            schedule = plan.schedule.between(start, stop, most)
        self._is_free = schedule is None
        self._order = EventOrder(first, schedule, plan.updates)
        self._lock = threading.Lock()  # of all below
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._losses: dict[int, dict[int, tuple[WorkerRows, StepResult]]] = {}
        self._workers = [
            _Worker(worker, start, part)
            for worker, part in enumerate(_split_state(state, workers))
        ]

    def steps(self) -> Generator[TrainedStep, None, None]:
        """Let the workers run, and yield each step that all of them have taken."""
        running = len(self._workers)
        for worker in self._workers:
            name = f"worker-{worker.number}"
            worker.thread = threading.Thread(target=self._run, args=(worker,), name=name)
            worker.thread.daemon = True
            worker.thread.start()
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
            for worker in self._workers:
                if worker.thread is not None:
                    worker.thread.join()

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
            if self._is_free and self._plan.stopping():
                # every worker still takes the steps that another one has begun
                begun = max(each.step for each in self._workers) + 1
                self.stop = min(self.stop, begun)
            return worker.step < self.stop

    def _take_step(self, worker: _Worker) -> None:
        strategy, number, plan = self._strategy, worker.number, self._plan
        part = self._batches.part(worker.step, number)
        state = worker.state
        if state is None or not part.inputs.carry:
            state = zero_state(strategy.spec, part.inputs.rows)
        rate = learning_rate(strategy.spec.training, worker.step // self._per_epoch)
        with self._order.reading(number) as read:
            strategy.read(number)
        result = strategy.compute(part, state, plan.record)
        check_finite(result, worker.step, [part.inputs.rows], first=number)
        with self._order.applying(number) as update:
            strategy.update(number, rate)
            plan.applied(AppliedUpdate(update, read, part, rate, result))
        self._finish(worker, part, result)

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
        inputs = self._batches.release(step)
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
