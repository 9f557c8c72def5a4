"""Starts the ranks of a training, on this machine and on others, and ends them together."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import IO

from parity.base.errors import RankLost, UsageError
from parity.base.parent import die_with_parent
from parity.processes.hosts import Host, Hosts
from parity.processes.membership import RUN, variables
from parity.processes.ports import free_ports
from parity.processes.remote import RemoteRanks

# How long the other ranks may take to end by themselves once one has.
_GRACE_SECONDS = 15.0
_POLL_SECONDS = 0.05
_HERE = Host("this machine", "127.0.0.1")


@dataclass
class _Started:
    """The ranks that a supervisor watches over; none in a rank itself.

    Attributes:
      local: process -> rank, for those on this machine.
      streams: rank -> the file descriptor of what it prints on stderr, for the same.
      remote: the ranks of each other host.
    """

    local: dict[int, int] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)
    remote: list[RemoteRanks] = field(default_factory=list)

    def ended(self) -> dict[int, int]:
        """Return rank -> exit status, negative for a signal, for those that have just ended."""
        found = {}
        for process in list(self.local):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                found[self.local.pop(process)] = os.waitstatus_to_exitcode(status)
        for each in self.remote:
            found |= each.take_ended()
        return found

    def signal(self, number: int) -> None:
        """Send a signal to all ranks that run."""
        for process in list(self.local):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        for each in self.remote:
            each.signal(number)

    def kill(self) -> None:
        """End all ranks that run."""
        self.signal(signal.SIGKILL)
        for each in self.remote:
            each.kill()


def start_ranks(
    framework: str, size: int, restarts: int = 0, hosts: Hosts | None = None
) -> None:
    """Return in each of `size` new processes, which have the variables of their rank.

    This process stays behind and ends, by SystemExit, when they have ended. The terminal shows
    what rank 0 prints, and the errors of the others if rank 0 cannot name them.

    Ranks of other hosts run the same script with the same flags, and are made known to it by
    their variables.

    Args:
      framework: "paddle" or "tensorflow".
      size: the number of processes.
      restarts: how often to start all of them again after one was lost.
      hosts: the hosts that they run on, this machine first; by default this machine alone.

    Raises:
      UsageError: if the hosts cannot be used.
      RankLost: if one cannot be reached.
    """
    places = [(_HERE, range(size))] if hosts is None else hosts.places(size)
    ports = None if hosts is None else hosts.ports
    os.environ[RUN] = uuid.uuid4().hex
    for attempt in range(restarts + 1):
        try:
            started = _start(framework, places, ports)
            if not started.local:
                return
            status = _supervise(started)
        except RankLost as lost:
            if attempt == restarts:
                raise
            status = lost.exit_status
            print(lost, file=sys.stderr)
        if status != RankLost.exit_status:
            break
        if attempt < restarts:
            again = f"starting again from the newest checkpoint, {attempt + 1} of {restarts}"
            print(f"{again} times", file=sys.stderr, flush=True)
    raise SystemExit(status)


def _start(
    framework: str, places: Sequence[tuple[Host, range]], ports: tuple[int, int] | None
) -> _Started:
    """Start the ranks of each host; return what there is of them, and nothing in a rank."""
    started, (here, local) = _Started(), places[0]
    try:
        for host, ranks in places[1:]:
            started.remote.append(RemoteRanks(host, ranks, framework))
        for each in started.remote:
            each.ask_ports(len(each.ranks), ports)
        *own, meeting = _free_endpoints(here, len(local) + 1, ports)
        endpoints = own + [
            endpoint
            for each in started.remote
            for endpoint in _endpoints(each.host, each.answer())
        ]
        given = {
            rank: host.variables
            | variables(framework, rank, endpoints, meeting)
            | {RUN: os.environ[RUN]}
            for host, ranks in places
            for rank in ranks
        }
        for each in started.remote:
            each.start({rank: given[rank] for rank in each.ranks})
        for rank in local:
            if _fork(started, rank, given[rank]):
                return _Started()
    except BaseException:
        started.kill()
        raise
    return started


def _free_endpoints(host: Host, count: int, ports: tuple[int, int] | None) -> list[str]:
    """Return "host:port" of ports on this machine that nothing listens at."""
    try:
        return _endpoints(host, free_ports(host.address, count, ports))
    except UsageError as error:
        raise UsageError(f"{host.name}: {error}") from None


def _endpoints(host: Host, ports: Sequence[int]) -> list[str]:
    return [f"{host.address}:{port}" for port in ports]


def _fork(started: _Started, rank: int, given: Mapping[str, str]) -> bool:
    """Start a rank on this machine; return whether this is the rank, not its supervisor."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent, (read, write) = os.getpid(), os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        started.local[process], started.streams[rank] = rank, read
        return False
    os.setpgid(0, 0)  # Ctrl-C reaches the supervisor alone, which passes it on once
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(read)
    for earlier in started.streams.values():
        os.close(earlier)
    for each in started.remote:
        each.release()
    os.environ.update(given)
    if rank > 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(write, 2)
    os.close(write)
    return True


def _supervise(started: _Started) -> int:
    """Wait until all ranks have ended; return the exit status for all."""
    size = len(started.local) + sum(len(each.ranks) for each in started.remote)
    logs = [_Log(rank) for rank in range(size)]
    threads = [
        logs[rank].follow(os.fdopen(stream, errors="replace"))
        for rank, stream in started.streams.items()
    ]
    threads += [each.listen(lambda rank, line: logs[rank].add(line)) for each in started.remote]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: started.signal(number))
    statuses: dict[int, int] = {}
    failed, deadline = 0, float("inf")
    while len(statuses) < size:
        for rank, status in started.ended().items():
            statuses[rank] = status
            if status and deadline == float("inf"):
                failed, deadline = rank, time.monotonic() + _GRACE_SECONDS
        if time.monotonic() > deadline:
            started.kill()
        time.sleep(_POLL_SECONDS)
    for thread in threads:
        thread.join(_GRACE_SECONDS)
    if statuses[0] > 0 or not any(statuses.values()):
        return statuses[0]  # it has named the error itself
    code, lines = statuses[failed], logs[failed].errors
    if code < 0:
        lines = [f"error: rank {failed} was killed by {signal.Signals(-code).name}\n"]
    elif not lines:
        lines = [f"error: rank {failed} ended with status {code}\n"]
    print(*lines, sep="", end="", file=sys.stderr, flush=True)
    return code if code > 0 else RankLost.exit_status


class _Log:
    """Passes on what a rank prints, with its name; keeps the lines that name an error."""

    def __init__(self, rank: int):
        self.errors: list[str] = []
        self._rank = rank

    def follow(self, stream: IO[str]) -> Thread:
        """Pass on the lines of a stream, in a thread."""
        thread = Thread(target=self._read, args=(stream,), daemon=True)
        thread.start()
        return thread

    def add(self, line: str) -> None:
        """Pass on a line, or keep it."""
        if line.startswith("error: "):
            self.errors.append(line)
        else:
            print(f"rank {self._rank}: {line}", end="", file=sys.stderr, flush=True)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.add(line)
