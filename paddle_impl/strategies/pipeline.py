"""Runs the stages of a network at the same time, each on another micro-batch.

Every stage of every replica is a device, which computes one micro-batch at a time. A thread for
each micro-batch of each stage runs the stage's program: it waits for what the stage reads and
for the device, and between its two passes it gives the device to other micro-batches. A pass
backward that can run goes before a pass forward: activations are not kept longer than needed.

Import this only after `load_engine`.

Sources: Huang et al. 2019, arXiv:1811.06965 (GPipe); Narayanan et al. 2021, arXiv:2104.04473,
section 2.2, for the order of the passes.
"""

import weakref
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Condition, Thread

import numpy as np
import paddle

from paddle_impl.executor import ParallelExecutor
from paddle_impl.strategies.stage_programs import (
    Stage,
    cut_stages,
    micro_batch_program,
    nothing,
    stage_program,
    update_program,
)


class Pipeline:
    """Runs a program whose layers are divided into stages.

    All replicas share the parameters, which are in one scope.

    Args:
      program: the program, with its update if it trains. Its parameters must already be in
        `scope`.
      stage_of: name of a variable -> the stage of the layer that computes it.
      stages: the number of stages of each replica.
      replicas: the number of replicas.
      micro_batches: the number of micro-batches of each replica.
      places: a place for each stage of each replica, those of replica 0 first.
      scope: the scope with the parameters and the optimiser's state.

    Attributes:
      stages: what each stage computes and exchanges.
    """

    def __init__(
        self,
        program: paddle.static.Program,
        stage_of: dict[str, int],
        stages: int,
        replicas: int,
        micro_batches: int,
        places: Sequence,
        scope,
    ):
        self._program, self._scope = program, scope
        self.stages: list[Stage] = cut_stages(program, stage_of, stages)
        self._parts = [(r, m) for r in range(replicas) for m in range(micro_batches)]
        gradients = sorted(name for stage in self.stages for name in stage.gradients)
        sums = {name: [f"{name}/sum_{r}" for r in range(replicas)] for name in gradients}
        for total in (total for totals in sums.values() for total in totals):
            scope.var(total).get_tensor()  # or each engine would make one of its own
        programs = [stage_program(program, stage) for stage in self.stages]
        self._workers = {
            (replica, micro_batch, number): _Worker(
                programs[number],
                stage,
                (replica, number),
                micro_batch,
                places[replica * stages + number],
                scope.new_scope(),
                {name: totals[replica] for name, totals in sums.items()},
            )
            for replica, micro_batch in self._parts
            for number, stage in enumerate(self.stages)
        }
        self._update, self._updated = None, set()
        if gradients:
            update = update_program(program, sums)
            self._update = ParallelExecutor(
                update, None, places[:1], scope, threads=stages * replicas
            )
            self._updated = {n for op in update.global_block().ops for n in op.output_arg_names}

    def program(self, replica: int, micro_batch: int, stage: int) -> paddle.static.Program:
        """Return the program of one micro-batch of a replica in one stage."""
        return self._workers[replica, micro_batch, stage].program

    def local_scopes(self) -> list:
        return [self._scope]

    def run(
        self, fetch: Sequence[str], feeds: Sequence[dict[str, np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """Run one step.

        Args:
          fetch: the names of the variables to return.
          feeds: for each micro-batch of each replica, name -> array. Those without rows are
            not computed.

        Returns:
          For each name, a list with the value of each micro-batch. One that has no row has a
          value of size zero on every axis whose size is not fixed, and zeros there are none.
          What the update computes is the only value of its list.
        """
        exchange = Exchange()
        running = {}
        for (replica, micro_batch), feed in zip(self._parts, feeds, strict=True):
            if not all(map(len, feed.values())):
                continue
            for number, stage in enumerate(self.stages):
                worker = self._workers[replica, micro_batch, number]
                wanted = [name for name in fetch if name in stage.defines - self._updated]
                worker.start(exchange, feed, wanted)
                running[replica, micro_batch, number] = worker
        exchange.wait_until_finished(len(running))
        values: dict[str, list[np.ndarray]] = {}
        if self._update is not None:
            names = [name for name in fetch if name in self._updated]
            values = dict(zip(names, self._update.run(names, [{}]), strict=True))
        for name in dict.fromkeys(fetch):
            if name not in values:
                (at,) = (k for k, stage in enumerate(self.stages) if name in stage.defines)
                values[name] = [
                    running[(*part, at)].values[name]
                    if (*part, at) in running
                    else nothing(self._program, name)
                    for part in self._parts
                ]
        return [values[name] for name in fetch]


class _Worker:
    """Runs one micro-batch of one stage, in a thread of its own.

    Attributes:
      program: the program that it runs.
      values: what was fetched in the last step, by name.
    """

    def __init__(self, program, stage: Stage, device, micro_batch: int, place, scope, sums):
        self._stage, self._device, self._micro_batch = stage, device, micro_batch
        self._part = device[0], micro_batch
        reference = weakref.ref(self)  # the framework never lets go of the function
        self.program = micro_batch_program(
            program,
            stage,
            lambda *sent: reference()._hand_over(*sent),
            sums,
            first=micro_batch == 0,
        )
        self._engine = ParallelExecutor(self.program, None, [place], scope)
        self._exchange: Exchange | None = None
        self.values: dict[str, np.ndarray] = {}
        self._jobs: SimpleQueue = SimpleQueue()
        Thread(target=_run_jobs, args=(self._jobs,), daemon=True).start()

    def start(self, exchange: "Exchange", feed: dict, fetch: list[str]) -> None:
        """Start a step; its end is counted by `exchange.finish`."""
        self._jobs.put(lambda: self._run(exchange, feed, fetch))

    def __del__(self):
        self._jobs.put(None)

    def _run(self, exchange: "Exchange", feed: dict, fetch: list[str]) -> None:
        stage, self._exchange = self._stage, exchange
        try:
            fed = {name: feed[name] for name in stage.data}
            fed |= exchange.receive(self._part, stage.reads)
            exchange.take(self._device, "forward", self._micro_batch)
            # what goes to others at the end: without a backward pass, everything does
            given = stage.returns if stage.awaits else [*stage.hands_over, *stage.returns]
            names = list(dict.fromkeys([*given, *fetch]))
            fetched = self._engine.run(names, [fed])
            tensors = {name: value for name, (value,) in zip(names, fetched, strict=True)}
            exchange.send(self._part, {name: tensors[name] for name in given})
            exchange.give_back(self._device)
            self.values = {name: tensors[name] for name in fetch}
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            exchange.fail(error)
        exchange.finish()

    def _hand_over(self, *sent) -> list:
        """Hand over what others read of the forward pass, and return what they send back."""
        exchange, stage = self._exchange, self._stage
        # copies: the framework may use the memory again
        values = zip(stage.hands_over, map(np.array, sent), strict=True)
        exchange.send(self._part, dict(values))
        exchange.give_back(self._device)
        received = exchange.receive(self._part, stage.awaits)
        exchange.take(self._device, "backward", self._micro_batch)
        return list(received.values())


def _run_jobs(jobs: SimpleQueue) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would keep its worker alive


class _StoppedError(Exception):
    """Another thread of the step has failed."""


class Exchange:
    """What the threads of one step share: tensors, and the use of the devices.

    Attributes:
      waiting: the number of threads that wait for tensors or for a device.
    """

    def __init__(self):
        self.waiting = 0
        self._changed = Condition()
        self._tensors: dict = {}
        self._busy: set = set()
        self._next: dict = {}  # (device, direction) -> the micro-batch whose turn it is
        self._ready: dict = {}  # device -> the backward passes that wait for it
        self._finished = 0
        self._error: BaseException | None = None

    def send(self, part, tensors: dict) -> None:
        """Give tensors to the other stages of a part, which is a micro-batch of a replica."""
        with self._changed:
            self._tensors |= {(part, name): tensor for name, tensor in tensors.items()}
            self._changed.notify_all()

    def receive(self, part, names: Sequence[str]) -> dict:
        """Return tensors of a part by name, when all of them are there."""
        with self._changed:
            self._wait(lambda: all((part, name) in self._tensors for name in names))
            return {name: self._tensors[part, name] for name in names}

    def take(self, device, direction: str, micro_batch: int) -> None:
        """Wait for a device, which computes the micro-batches of each direction in order.

        The order makes sums of gradients the same each time.
        """
        turn, backward = (device, direction), direction == "backward"
        with self._changed:
            ready = self._ready.setdefault(device, set())
            if backward:
                ready.add(micro_batch)

            def can_start() -> bool:
                if device in self._busy or self._next.get(turn, 0) != micro_batch:
                    return False
                return backward or self._next.get((device, "backward"), 0) not in ready

            self._wait(can_start)
            ready.discard(micro_batch)
            self._busy.add(device)
            self._next[turn] = micro_batch + 1

    def give_back(self, device) -> None:
        """Let other micro-batches use a device."""
        with self._changed:
            self._busy.discard(device)
            self._changed.notify_all()

    def finish(self) -> None:
        """Count one more micro-batch of a stage as finished, or failed."""
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the step because of an error; only the first one counts."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait_until_finished(self, count: int) -> None:
        """Wait until no thread works any more.

        Raises:
          Exception: what the first thread raised that failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._finished == count)
            if self._error is not None:
                raise self._error

    def _wait(self, condition) -> None:
        self.waiting += 1
        self._changed.wait_for(lambda: self._error or condition())
        self.waiting -= 1
        if self._error is not None:
            raise _StoppedError
