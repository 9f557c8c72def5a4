"""Starts the processes of a training, on this machine and on others, and ends them together."""

import os
import secrets
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
from parity.base.process import die_with_parent, fork, stop_signals
from parity.twins.processes.handshake import SECRET
from parity.twins.processes.hosts import Host, HostList
from parity.twins.processes.launcher_variables import RUN, Members, free_ports, variables
from parity.twins.processes.private_network import (
    PrivateNetwork,
    private_network,
    warn_of_ports,
)
from parity.twins.processes.remote import RemoteProcesses

# How long the other ranks may take to end by themselves once one has.
_GRACE_SECONDS = 15.0
_POLL_SECONDS = 0.05
_HERE = Host("this machine", "127.0.0.1")


@dataclass
class _Started:
    """The processes that a supervisor watches over; none in one of them itself.

    Attributes:
      names: the name of each, by its number.
      local: process -> number, for those on this machine.
      streams: number -> the file descriptor of what it prints on stderr, for the same.
      remote: the processes of each other host.
      asked: the number of the signal that asked the training to stop; 0 if none has.
    """

    names: list[str] = field(default_factory=list)
    local: dict[int, int] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)
    remote: list[RemoteProcesses] = field(default_factory=list)
    asked: int = 0

    def ended(self) -> dict[int, int]:
        """Return number -> exit status, negative for a signal, for those that just ended."""
        found = {}
        for process in list(self.local):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                found[self.local.pop(process)] = os.waitstatus_to_exitcode(status)
        for each in self.remote:
            found |= each.take_ended()
        return found

    def signal(self, number: int) -> None:
        """Send a signal to all that run."""
        for process in list(self.local):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        for each in self.remote:
            each.signal(number)

    def stop(self, number: int) -> None:
        """Pass on a signal that asks the training to stop."""
        self.asked = self.asked or number
        self.signal(number)

    def kill(self) -> None:
        """End all that run."""
        self.signal(signal.SIGKILL)
        for each in self.remote:
            each.kill()


def start_processes(
    framework: str,
    size: int,
    served: Mapping[str, int],
    restarts: int = 0,
    hosts: HostList | None = None,
    trusted: bool = False,
) -> None:
    """Return in each of the new processes, which have the variables of a member.

    This process stays behind and ends, by SystemExit, when they have ended. The terminal shows
    what rank 0 prints, and the errors of the others if rank 0 cannot name them.

    On other hosts they are started with this process's script and flags, and join the others
    by their variables.

    Args:
      framework: "paddle" or "tensorflow".
      size: the number of ranks.
      served: job -> number of processes that serve as that.
      restarts: how often to start all of them again after one was lost.
      hosts: the hosts that they run on, this machine first; by default this machine alone,
        where they have a network of their own if the kernel allows it.
      trusted: whether to say nothing of ports that are open to others.

    Raises:
      UsageError: if a host cannot be used.
      RankLost: if a host cannot be reached.
    """
    # no port is known yet
    members = Members(("",) * size, {job: ("",) * count for job, count in served.items()})
    everywhere = [(_HERE, list(range(len(members.jobs))))]
    places = everywhere if hosts is None else hosts.places(members.jobs)
    ports = None if hosts is None else hosts.ports
    os.environ[RUN], os.environ[SECRET] = uuid.uuid4().hex, secrets.token_hex(32)
    warns = not trusted
    for attempt in range(restarts + 1):
        network = private_network(framework) if hosts is None else None
        try:
            started = _start(framework, members, places, ports, network, warns)
            if not started.local:
                return
            status = _supervise(started)
            if started.asked and status == RankLost.exit_status:
                # a rank that had not begun to train: no loss to start again for
                status = 128 + started.asked
        except RankLost as lost:
            if attempt == restarts:
                raise
            status = lost.exit_status
            print(lost, file=sys.stderr)
        finally:
            if network is not None:
                network.close()
        warns = False
        if status != RankLost.exit_status:
            break
        if attempt < restarts:
            again = f"starting again from the newest checkpoint, {attempt + 1} of {restarts}"
            print(f"{again} times", file=sys.stderr, flush=True)
    raise SystemExit(status)


def _start(
    framework: str,
    members: Members,
    places: Sequence[tuple[Host, list[int]]],
    ports: tuple[int, int] | None,
    network: PrivateNetwork | None,
    warns: bool,
) -> _Started:
    """Start all processes.

    Args:
      framework: "paddle" or "tensorflow".
      members: the processes to start; their addresses are not known yet.
      places: the hosts, this machine first, and the numbers of the processes of each.
      ports: the first and the last port to choose from; None for any free one.
      network: what those of this machine enter; None for the machine's own.
      warns: whether to say which ports are open, if the network is the machine's own.

    Returns:
      The processes; none of them in a new process.
    """
    names, (here, local) = members.names, places[0]
    started = _Started(names)
    try:
        for host, numbers in places[1:]:
            there = {number: names[number] for number in numbers}
            started.remote.append(RemoteProcesses(host, there, framework))
        for each in started.remote:
            each.ask_ports(len(each.names), ports)
        meeting, *free = _free_endpoints(here, len(local) + 1, ports)
        endpoints = dict(zip(local, free, strict=True))
        for each in started.remote:
            own = [f"{each.host.address}:{port}" for port in each.answer()]
            endpoints |= dict(zip(each.names, own, strict=True))
        members = members.at([endpoints[number] for number in range(len(names))])
        if warns and network is None:
            warn_of_ports(framework, members)
        given = {
            number: host.variables
            | variables(framework, number, members, meeting)
            | {RUN: os.environ[RUN], SECRET: os.environ[SECRET]}
            for host, numbers in places
            for number in numbers
        }
        for each in started.remote:
            each.start({number: given[number] for number in each.names})
        for number in local:
            if _fork(started, number, given[number], network):
                return _Started()
    except BaseException:
        started.kill()
        raise
    return started


def _free_endpoints(host: Host, count: int, ports: tuple[int, int] | None) -> list[str]:
    """Return "host:port" of ports on this machine that nothing listens at."""
    try:
        return [f"{host.address}:{port}" for port in free_ports(host.address, count, ports)]
    except UsageError as error:
        raise UsageError(f"{host.name}: {error}") from None


def _fork(
    started: _Started, number: int, given: Mapping[str, str], network: PrivateNetwork | None
) -> bool:
    """Start a process on this machine; return whether this is it, not its supervisor."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent, (read, write) = os.getpid(), os.pipe()
    process = fork()
    if process:
        os.close(write)
        started.local[process], started.streams[number] = number, read
        return False
    os.setpgid(0, 0)  # Ctrl-C reaches the supervisor alone, which passes it on once
    if network is not None:
        network.enter()
    die_with_parent(parent)  # later: with a change of its rights the kernel would forget it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(read)
    for earlier in started.streams.values():
        os.close(earlier)
    for each in started.remote:
        each.release()
    os.environ.update(given)
    if number > 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(write, 2)
    os.close(write)
    return True


def _supervise(started: _Started) -> int:
    """Wait until all processes have ended; return the exit status for all."""
    logs = [_Log(name) for name in started.names]
    threads = [
        logs[number].follow(os.fdopen(stream, errors="replace"))
        for number, stream in started.streams.items()
    ]
    threads += [
        each.listen(lambda number, line: logs[number].add(line)) for each in started.remote
    ]
    before = {
        number: signal.signal(number, lambda number, _: started.stop(number))
        for number in stop_signals()
    }
    statuses: dict[int, int] = {}
    failed, deadline = 0, float("inf")
    while len(statuses) < len(logs):
        for number, status in started.ended().items():
            statuses[number] = status
            if status and deadline == float("inf"):
                failed, deadline = number, time.monotonic() + _GRACE_SECONDS
        if time.monotonic() > deadline:
            started.kill()
        time.sleep(_POLL_SECONDS)
    for thread in threads:
        thread.join(_GRACE_SECONDS)
    if not started.asked:  # another attempt may follow
        for number, handler in before.items():
            signal.signal(number, handler)
    if statuses[0] == 128 + signal.SIGTERM:
        # what the ranks agree on is to stop; only those that got it know by which signal
        return min(status for status in statuses.values() if status > 128)
    if statuses[0] > 0 or not any(statuses.values()):
        return statuses[0]  # it has named the error itself
    code, lines = statuses[failed], logs[failed].errors
    if code < 0:
        how = "was stopped" if -code == started.asked else "was killed"
        lines = [f"error: {started.names[failed]} {how} by {signal.Signals(-code).name}\n"]
    elif not lines:
        lines = [f"error: {started.names[failed]} ended with status {code}\n"]
    print(*lines, sep="", end="", file=sys.stderr, flush=True)
    return code if code > 0 else RankLost.exit_status


class _Log:
    """Passes on what a process prints, with its name; keeps the lines that name an error."""

    def __init__(self, name: str):
        self.errors: list[str] = []
        self._name = name

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
            print(f"{self._name}: {line}", end="", file=sys.stderr, flush=True)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.add(line)
