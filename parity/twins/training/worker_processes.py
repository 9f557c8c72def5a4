"""Asynchronous workers that are processes: rank 0 says when each reads, computes and updates.

Every rank is a worker. Rank 0 takes the steps of the run as it does with workers that are its
own threads: a thread of rank 0 stands for each other rank, and waits there for its answers. So
the order of all reads and updates is one that rank 0 decides or sees. What passes between the
ranks here are these requests, losses, recurrent states and, for a trace, recorded tensors;
weights and gradients of the training pass between the engine's workers and its servers alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import numpy as np

from parity.base.errors import Interrupted
from parity.twins.processes.gathering import local_batch
from parity.twins.processes.group import ProcessGroup, Tensors
from parity.twins.spec.asynchronous_schedule import WorkerRows, local_worker_rows
from parity.twins.spec.step_arrays import StepResult, step_inputs
from parity.twins.training.rank_agreement import StopRequest, catch_signals
from parity.twins.training.strategy import AsynchronousStrategy, Strategy
from parity.twins.training.text_source import TextSource


@contextmanager
def led_by_rank_0(strategy: Strategy, text: TextSource) -> Iterator[Strategy | None]:
    """Yield what rank 0 trains with: of asynchronous processes, one strategy for all workers.

    Any other rank of an asynchronous training does here what rank 0 asks it for, until rank 0
    leaves the context; the body then receives None and should return.

    Raises:
      Interrupted: on every rank, if rank 0 was asked to stop.
    """
    group = strategy.build.group
    if strategy.entry.traits.synchronous or group.size == 1:
        yield strategy
        return
    if group.rank > 0:
        with catch_signals() as request:
            _work(cast(AsynchronousStrategy, strategy), text, request)
        yield None
        return
    leader = _Leader(cast(AsynchronousStrategy, strategy))
    try:
        yield cast(Strategy, leader)  # without `step`, as all asynchronous ones
        leader.end()
    except Interrupted as error:
        leader.end(str(error), error.exit_status - 128)
        raise


class _Leader:
    """An AsynchronousStrategy of all workers: rank 0's own, and the others, which it asks.

    The run that uses it has no other processes, as far as it knows.
    """

    def __init__(self, local: AsynchronousStrategy):
        self._local, self._ranks = local, local.build.group
        self.framework, self.entry, self.spec = local.framework, local.entry, local.spec
        self.replicas = local.replicas
        self._alone = ProcessGroup()
        self.build = replace(local.build, group=self._alone)
        # what no other rank is asked for
        self.load, self.snapshot, self.evaluate = local.load, local.snapshot, local.evaluate
        self.replica_distances, self.profile = local.replica_distances, local.profile
        self.decoder, self.sources = local.decoder, local.sources

    def read(self, worker: int) -> None:
        if worker == 0:
            self._local.read(0)
        else:
            self._ask(worker, "read")

    def compute(
        self, part: WorkerRows, state: Mapping[str, np.ndarray], record: bool = False
    ) -> StepResult:
        if part.worker == 0:
            return self._local.compute(part, state, record)
        found = self._ask(
            part.worker,
            "compute",
            {
                "step": np.array(part.step),
                "record": np.array(record),
                **{f"state/{name}": array for name, array in state.items()},
            },
        )
        return StepResult(
            found["losses"],
            _named("state/", found),
            float(found["gradient_norm"]),
            _named("tensors/", found),
        )

    def update(self, worker: int, learning_rate: float) -> None:
        if worker == 0:
            self._local.update(0, learning_rate)
        else:
            self._ask(worker, "update", {"learning_rate": np.array(learning_rate)})

    def end(self, reason: str = "", signal: int = 0) -> None:
        """Let every other rank go.

        Args:
          reason: why the training ends before its last step; empty if it does not.
          signal: the number of the signal that asked for it; 0 for none.
        """
        for rank in range(1, self._ranks.size):
            last = {"reason": np.array(reason), "signal": np.array(signal)}
            self._ranks.send(rank, {"request": np.array("end"), **last})

    def _ask(self, rank: int, request: str, values: Tensors | None = None) -> Tensors:
        self._ranks.send(rank, {"request": np.array(request), **(values or {})})
        found = self._ranks.receive(rank)
        if found["stop_asked"]:
            self._alone.stop_asked = int(found["stop_asked"])
        return found


def _work(strategy: AsynchronousStrategy, text: TextSource, stop: StopRequest) -> None:
    """Do on a rank what rank 0 asks for, until its last request.

    Raises:
      Interrupted: if rank 0 was asked to stop.
    """
    group = strategy.build.group
    while True:
        asked = group.receive(0)
        request, answer = str(asked["request"]), dict[str, np.ndarray]()
        if request == "end":
            if asked["signal"]:
                raise Interrupted(str(asked["reason"]), int(asked["signal"]))
            return
        if request == "read":
            strategy.read(group.rank)
        elif request == "update":
            strategy.update(group.rank, float(asked["learning_rate"]))
        else:
            answer = _computed(strategy, text, asked)
        answer["stop_asked"] = np.array(stop.signal)
        group.send(0, answer)


def _computed(
    strategy: AsynchronousStrategy, text: TextSource, asked: Tensors
) -> dict[str, np.ndarray]:
    step, group = int(asked["step"]), strategy.build.group
    batch = local_batch(text.train, step, group, strategy.replicas)
    part = local_worker_rows(step_inputs(strategy.spec, step, batch), step, group.rank)
    result = strategy.compute(part, _named("state/", asked), bool(asked["record"]))
    return {
        "losses": result.losses,
        "gradient_norm": np.array(result.gradient_norm),
        **{f"state/{name}": array for name, array in result.state.items()},
        **{f"tensors/{name}": array for name, array in result.tensors.items()},
    }


def _named(prefix: str, tensors: Tensors) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }
