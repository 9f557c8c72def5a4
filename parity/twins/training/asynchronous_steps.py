"""The workers of an asynchronous training: a thread each, which takes the steps by itself.

A worker computes its rows of every global batch, with weights that it has read by itself, and
applies an update of its own. All reads and updates go through one lock: each finds the weights
whole, and each has its place in one order: that of a schedule, or as the workers are ready.
"""

import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.twins.spec.initial import zero_state
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.schedule import Update, WorkerRows, joined_losses, worker_rows
from parity.twins.spec.step_arrays import StepInputs, StepResult, check_finite
from parity.twins.spec.training import learning_rate
from parity.twins.training.strategy import AsynchronousStrategy
from parity.twins.training.train_steps import State, TrainedStep


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


class Batches:
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


class Segment:
    """The steps from one at which all workers wait for each other to the next such step.

    Args:
      strategy: the strategy, with the weights before the first step.
      batches: the batches of the run.
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
        batches: Batches,
        per_epoch: int,
        steps: range,
        state: State | None,
        order: EventOrder,
        applied: Callable[[AppliedUpdate], None],
        record: bool,
        stopping: Callable[[], bool] | None,
    ):
        self._strategy, self._batches, self._per_epoch = strategy, batches, per_epoch
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
        part = self._batches.part(worker.step, number)
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
