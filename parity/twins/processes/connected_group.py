"""A group of several processes: they meet at rank 0, compare their runs, and keep watch.

Every process has a connection to rank 0 and sends a sign of life each second. An engine may
wait for ever for a process that is gone, in code that no signal reaches: so whoever finds out
ends its own process at once, with a line that names the rank, and tells the others.
"""

import faulthandler
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, NoReturn

from parity.base.errors import OutputLost, RankLost, UsageError
from parity.base.text import escaped
from parity.twins.processes.connection import BYE, FAILED, HELLO, NAMES, Connection
from parity.twins.processes.group import ProcessGroup, Tensors
from parity.twins.processes.handshake import Reception, run_secret, visit
from parity.twins.processes.launcher_variables import Membership

MEETING_SECONDS = 60.0  # until all ranks have come
SILENT_SECONDS = 20.0  # without a sign of life

_BEAT_SECONDS = 1.0
# How long the reason of an engine's error may take to arrive from another rank.
_VERDICT_SECONDS = 5.0
_TELLING_SECONDS = 2.0
_LONGEST_SHOWN = 1000  # characters
# If all ranks fail alike (a NaN loss), each reports its own error.
_OWN_WORDS_SECONDS = 1.0


class ConnectedGroup(ProcessGroup):
    """The processes of a training, of which this is one; they meet in `join`.

    Its methods are those of `ProcessGroup`, which describes them.

    Args:
      member: the place of this process among them.
    """

    def __init__(self, member: Membership):
        super().__init__()
        members, self._meeting = member.members, member.meeting
        self.rank, self.size = member.number, len(members.endpoints)
        self.job, self.index = members.jobs[member.number]
        self.endpoints, self.served = members.endpoints, members.served
        self._members = members.names
        self._others: dict[int, Connection] = {}
        name = f"{self._members[self.rank]} ({socket.gethostname()}, process {os.getpid()})"
        self._names = {self.rank: name}
        self._closing, self._ending, self._ended = False, Lock(), Event()
        # neither `sys.stderr` nor 2, which the main thread redirects while an engine is loaded
        self._stderr = os.dup(2)

    def join(self, facts: Mapping[str, str]) -> None:
        hello: dict[str, Any] = {
            "rank": self.rank,
            "members": self._members,
            "name": self._names[self.rank],
            "facts": dict(facts),
        }
        secret = run_secret(os.environ)
        if self.rank == 0:
            self._receive_all(facts, secret)
        else:
            self._visit(hello, secret)
        for rank, connection in self._others.items():
            connection.listen(partial(self._hear, rank))
        Thread(target=self._watch, daemon=True).start()

    def gather(self, tensors: Tensors) -> list[Tensors] | None:
        if self.rank:
            self._send(self._others[0], tensors)
            return None
        return [tensors, *(self._others[rank].tensors() for rank in range(1, self.size))]

    def broadcast(self, tensors: Tensors | None) -> Tensors:
        if self.rank:
            return self._others[0].tensors()
        assert tensors is not None
        for rank in range(1, self.size):
            self._send(self._others[rank], tensors)
        return tensors

    def send(self, rank: int, tensors: Tensors) -> None:
        self._send(self._others[rank], tensors)

    def receive(self, rank: int) -> Tensors:
        return self._others[rank].tensors()

    def fail(self, message: str, status: int) -> None:
        with self._ending:
            self._closing = True
        self._tell_of(message, status)

    def await_verdict(self) -> None:
        if self._others:
            time.sleep(_VERDICT_SECONDS)

    def await_end(self) -> None:
        self._ended.wait()

    def close(self) -> None:
        if self.serves:
            _exit(0)  # an engine's server cannot be stopped otherwise
        self.gather({})
        with self._ending:
            self._closing = True
        self.broadcast({} if self.rank == 0 else None)
        for connection in self._others.values():
            with suppress(OSError):
                connection.send_json(BYE, True)

    def _receive_all(self, facts: Mapping[str, str], secret: bytes) -> None:
        """Accept a connection from every other process, and let them go on."""
        with closing(
            Reception(self._meeting, secret, MEETING_SECONDS, self._write)
        ) as reception:
            while len(self._others) < len(self._members) - 1:
                came = reception.next()
                if came is None:
                    self._end_meeting(
                        f"{', '.join(self._missing())} has not come to {self._meeting} within "
                        f"{MEETING_SECONDS:.0f} s"
                    )
                elif isinstance(came, int):
                    self._end_meeting(f"{self._names[came]} is gone before all had come")
                else:
                    channel, values = came
                    self._admit(channel, values, facts)
                    reception.watch(values["rank"], channel)
        names = [self._names[number] for number in range(len(self._members))]
        for number, connection in self._others.items():
            try:
                connection.send_json(NAMES, names)
            except OSError:
                self._end_meeting(f"{self._names[number]} is gone before all had come")

    def _end_meeting(self, message: str) -> NoReturn:
        self._tell_of(message, RankLost.exit_status)
        raise RankLost(message)

    def _admit(
        self, channel: socket.socket, values: Mapping[str, Any], own: Mapping[str, str]
    ) -> None:
        """Compare what a process that has come says of its run with this one's."""
        connection, rank, name = Connection(channel), values["rank"], _shown(values["name"])
        members, wrong = values["members"], ""
        if members != self._members:
            wrong = (
                f"{name} is one of {_count(members)}; rank 0 is one of {_count(self._members)}"
            )
        elif rank >= len(self._members) or rank in self._others:
            wrong = f"{name} came a second time; allowed: a rank of its own for each process"
        else:
            wrong = _difference(name, values["facts"], own)
        if wrong:
            self._others[-1] = connection
            self._tell_of(wrong, UsageError.exit_status)
            raise UsageError(wrong)
        self._others[rank], self._names[rank] = connection, name

    def _missing(self) -> list[str]:
        """Return the processes that have not come: "rank 2 of 3", "ps 0 of 1"."""
        jobs = [name.rsplit(" ", 1)[0] for name in self._members]
        return [
            f"{name} of {jobs.count(job)}"
            for number, (name, job) in enumerate(zip(self._members, jobs, strict=True))
            if number not in {0, *self._others}
        ]

    def _visit(self, hello: Mapping[str, Any], secret: bytes) -> None:
        """Connect to rank 0, say what this run is, and wait until all ranks have come."""
        connection = Connection(visit(self._meeting, secret, MEETING_SECONDS))
        self._others[0] = connection
        try:
            connection.send_json(HELLO, hello)
            kind, values = connection.receive(MEETING_SECONDS + SILENT_SECONDS)
            if kind not in (FAILED, NAMES):
                raise ValueError
        except (OSError, ValueError):
            raise RankLost(f"rank 0 at {self._meeting} is gone before all had come") from None
        if kind == FAILED:
            differs = values["status"] == UsageError.exit_status
            raise (UsageError if differs else RankLost)(_shown(values["message"]))
        self._names = dict(enumerate(map(_shown, values)))

    def _send(self, connection: Connection, tensors: Tensors) -> None:
        try:
            connection.send_tensors(tensors)
        except OSError:
            # the thread that receives ends this process, with the reason
            time.sleep(SILENT_SECONDS)
            raise

    def _hear(self, rank: int, kind: bytes, values: Any) -> None:
        """Act on a message that is no tensors: an error, or a connection that is closed."""
        if kind == FAILED:
            time.sleep(_OWN_WORDS_SECONDS)
            who = f"{self._names[rank]}: " if values["own"] else ""
            self._end(f"{who}{_shown(values['message'])}", values["status"], untold=rank)
        elif values is not True:
            reason = values or "its connection is closed"
            self._end(f"{self._names[rank]} is gone: {reason}", untold=rank)
        else:  # rank 0 leaves the group
            self._ended.set()

    def _watch(self) -> None:
        woken = time.monotonic()
        while not self._closing:
            # while this process itself stood still, it could hear nobody
            still = max(0.0, time.monotonic() - woken - 2 * _BEAT_SECONDS)
            woken = time.monotonic()
            self.steps.add(still)
            waited = self.steps.overdue()
            if waited is not None:
                faulthandler.dump_traceback(self._stderr)
                self._end(f"{self._names[self.rank]} is in one step for {waited:.0f} s")
            for rank, connection in self._others.items():
                connection.heard += still
                connection.beat()
                silent = time.monotonic() - connection.heard
                if silent > SILENT_SECONDS:
                    self._end(
                        f"{self._names[rank]} has been silent for {silent:.0f} s", untold=rank
                    )
            time.sleep(_BEAT_SECONDS)

    def _end(
        self, message: str, status: int = RankLost.exit_status, untold: int | None = None
    ) -> None:
        """End this process, unless it is ending already, and let the other ranks know why.

        Args:
          message: the reason, which names a rank.
          status: the exit status.
          untold: the rank that need not be told; None if the reason is in this process.
        """
        with self._ending:
            if self._closing:
                return
            self._closing = True
        self._write(f"error: {message}")
        if self.rank == 0 or untold is None:
            # in a thread: a connection on which the main thread waits lets nobody else send
            telling = Thread(
                target=self._tell_of, args=(message, status, False, untold), daemon=True
            )
            telling.start()
            telling.join(_TELLING_SECONDS)
        _exit(status)

    def _write(self, line: str) -> None:
        os.write(self._stderr, f"{line}\n".encode())

    def _tell_of(
        self, message: str, status: int, own: bool = True, besides: int | None = None
    ) -> None:
        for rank, connection in self._others.items():
            if rank != besides:
                with suppress(OSError):
                    values = {"message": message, "status": status, "own": own}
                    connection.send_json(FAILED, values)


def _shown(text: str) -> str:
    """Return a text of another process as it can be shown, on one line."""
    return escaped(text[:_LONGEST_SHOWN])


def _count(members: list[str]) -> str:
    """Return how many processes a group has, such as "3 processes (2 rank, 1 ps)"."""
    jobs = [str(name).rsplit(" ", 1)[0] for name in members]
    if len(set(jobs)) == 1:
        return f"{len(members)} processes"
    each = ", ".join(f"{jobs.count(job)} {job}" for job in dict.fromkeys(jobs))
    return f"{len(members)} processes ({each})"


def _difference(name: str, facts: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Return which fact of another process differs from this one's; empty if none does."""
    for key in [*own, *(key for key in facts if key not in own)]:
        if facts.get(key) != own.get(key):
            return (
                f"{name} has another {key} than rank 0: {facts.get(key)} there, "
                f"{own.get(key)} here; allowed: the same on every rank"
            )
    return ""


def _exit(status: int) -> NoReturn:
    """End the process from whatever thread, though others may be deep in an engine."""
    with suppress(OSError, ValueError, OutputLost):
        sys.stdout.flush()
    os._exit(status)
