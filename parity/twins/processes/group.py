"""The group of processes that share one training, as a strategy and the training loop see it.

Gradients never pass through here: they are the engine's. What does is what a training needs
besides: that all are of the same run, checkpoints, recorded tensors, and who has failed.
"""

import faulthandler
import signal
import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np

from parity.twins.processes.launcher_variables import RANK, WORKER

Tensors = Mapping[str, np.ndarray]

# How long a step may take.
_SHORTEST, _MEDIANS = 120.0, 20.0  # seconds, and times a step of this run
_FIRST = 10.0  # times as long: an engine builds what it computes
_KEPT = 101  # steps


class ProcessGroup:
    """The processes of one training; this class by itself is a group of one.

    All of them take the same steps and call the same methods in the same order.

    Some strategies need processes that only serve, such as parameter servers. They meet with
    the others and are watched like them, but take no steps and exchange nothing.

    Attributes:
      rank: the number of this process, from 0; one that serves has a number after all ranks.
      size: the number of ranks, which are the processes that take steps.
      job: what this process is: "rank", or the job that it serves as, such as "ps".
      index: its number among those of its job, from 0.
      endpoints: "host:port" of each rank, for the engine.
      served: job -> "host:port" of each process that serves as that.
      serve: "package.module:function" that a process calls which serves.
      run: a name for the command that has started all processes, the same when it starts them
        again after one was lost; empty if a launcher has started them.
      steps: watches over the time that this process spends in each step.
      stop_asked: the number of the signal that asked this process to stop; 0 if none has.
      stop_agreed: whether a process was asked to stop before the last step, as every process
        knows after it. A strategy sets it, from a sum over all ranks of `stop_asked`.
    """

    rank: int = 0
    size: int = 1
    job: str = RANK
    index: int = 0
    endpoints: tuple[str, ...] = ()
    served: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    serve: str = ""

    def __init__(self) -> None:
        self.run = ""
        self.steps = StepWatch()
        self.stop_asked = 0
        self.stop_agreed = False

    @property
    def workers(self) -> int:
        """Return the number of processes that compute gradients."""
        return len(self.served.get(WORKER, ())) or self.size

    @property
    def local_rank(self) -> int:
        """Return how many ranks below this one are on the same host."""
        hosts = [endpoint.rpartition(":")[0] for endpoint in self.endpoints]
        return hosts[: self.rank].count(hosts[self.rank]) if hosts else 0

    @property
    def serves(self) -> bool:
        """Return whether this process only serves."""
        return self.job != RANK

    def own(self, replicas: int) -> slice:
        """Return which of all replicas are those of this process.

        Args:
          replicas: the number of all replicas, of which every process has as many.
        """
        each = replicas // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def join(self, facts: Mapping[str, str]) -> None:
        """Wait for all processes, and check that they are of the same run.

        Args:
          facts: what must be equal on all of them, such as the hash of the text, by its name.

        Raises:
          UsageError: for a run that differs, with the rank and the first fact that does.
          RankLost: if a process does not come in time.
        """

    def gather(self, tensors: Tensors) -> list[Tensors] | None:
        """Return on rank 0 what every rank gave, by rank; None on the others."""
        return [tensors]

    def broadcast(self, tensors: Tensors | None) -> Tensors:
        """Return on every rank what rank 0 gave."""
        assert tensors is not None
        return tensors

    def send(self, rank: int, tensors: Tensors) -> None:
        """Send arrays to one other rank, for its `receive`; one of the two is rank 0."""
        raise NotImplementedError  # there is no other

    def receive(self, rank: int) -> Tensors:
        """Return the next arrays that another rank sends to this one; waits for them."""
        raise NotImplementedError

    def all_gather(self, tensors: Tensors) -> list[Tensors]:
        """Return on every rank what every rank gave, by rank."""
        gathered = self.gather(tensors)
        joined = None if gathered is None else _joined(gathered)
        found: list[dict[str, np.ndarray]] = [{} for _ in range(self.size)]
        for key, array in self.broadcast(joined).items():
            rank, name = key.split("/", 1)
            found[int(rank)][name] = array
        return list(found)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.all_gather({})

    def fail(self, message: str, status: int) -> None:
        """Tell the other ranks that this one ends with an error, and why."""

    def await_verdict(self) -> None:
        """Wait, after an engine's error, in case another rank is the reason.

        If one is, this ends the process with a line that names it; otherwise it returns.
        """

    def await_end(self) -> None:
        """Wait, in a process that serves, until rank 0 leaves the group."""

    def close(self) -> None:
        """Leave the group, when its work is done on every rank; a process that serves ends."""


def _joined(by_rank: list[Tensors]) -> dict[str, np.ndarray]:
    return {
        f"{rank}/{name}": array
        for rank, tensors in enumerate(by_rank)
        for name, array in tensors.items()
    }


class StepWatch:
    """How long a process has been in its step, and how long it may be.

    Args:
      seconds: how long a step may take; None for 20 times the median of the last steps, at
        least 120 s. The first one may take ten times as long.
    """

    def __init__(self, seconds: float | None = None):
        self._seconds = seconds
        self._durations: deque[float] = deque(maxlen=_KEPT)
        self._began: float | None = None

    @contextmanager
    def start(self) -> Iterator[None]:
        """Let the body start the engine, for as long as the first step may take.

        After that SIGALRM ends the process, and it prints its stack: an engine that waits for
        another process may let no thread of Python run, the one that watches included.
        """
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.setitimer(signal.ITIMER_REAL, (self._seconds or _SHORTEST) * _FIRST)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.unregister(signal.SIGALRM)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Let the body be one step."""
        began = self._began = time.monotonic()
        yield
        self._began = None
        self._durations.append(time.monotonic() - began)

    def add(self, seconds: float) -> None:
        """Do not count some seconds, in which the whole process stood still."""
        if self._began is not None:
            self._began += seconds

    def overdue(self) -> float | None:
        """Return for how many seconds it has been in a step, if that is too long; or None."""
        began, durations = self._began, list(self._durations)
        if began is None:
            return None
        limit = self._seconds or _SHORTEST
        if not durations:
            limit *= _FIRST
        elif self._seconds is None:
            limit = max(limit, _MEDIANS * statistics.median(durations))
        waited = time.monotonic() - began
        return waited if waited > limit else None
