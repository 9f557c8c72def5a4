"""Starts the ranks of a training on this machine, and ends them together."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Thread
from typing import IO

from parity.base.errors import RankLost
from parity.base.parent import die_with_parent
from parity.base.progress import be_quiet
from parity.processes.membership import Members, variables

# How long the other ranks may take to end by themselves once one has.
_GRACE_SECONDS = 15.0
_POLL_SECONDS = 0.05
_HOST = "127.0.0.1"


def fork_processes(
    framework: str, size: int, served: Mapping[str, int], restarts: int = 0
) -> int:
    """Return in each of the new processes, which have the variables of a member.

    This process stays behind and ends, by SystemExit, when they have ended. The terminal shows
    what rank 0 prints, and the errors of the others if rank 0 cannot name them.

    Args:
      framework: "paddle" or "tensorflow".
      size: the number of ranks.
      served: job -> number of processes that serve as that.
      restarts: how often to start all of them again after one was lost.

    Returns:
      How often they have been started before.
    """
    for attempt in range(restarts + 1):
        members, meeting = _free_members(size, served)
        processes, streams = _fork(framework, members, meeting)
        if not processes:
            return attempt
        status = _supervise(members.names, processes, streams)
        if status != RankLost.exit_status:
            break
        if attempt < restarts:
            again = f"starting again from the newest checkpoint, {attempt + 1} of {restarts}"
            print(f"{again} times", file=sys.stderr, flush=True)
    raise SystemExit(status)


def _fork(
    framework: str, members: Members, meeting: str
) -> tuple[dict[int, int], dict[int, int]]:
    """Start the processes.

    Args:
      framework: "paddle" or "tensorflow".
      members: the processes to start.
      meeting: "host:port" where they meet.

    Returns:
      Process -> number, and number -> stderr; both empty in a new process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent, processes, streams = os.getpid(), dict[int, int](), dict[int, int]()
    for number in range(len(members.jobs)):
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os.setpgid(0, 0)  # Ctrl-C reaches the supervisor alone, which passes it on once
            die_with_parent(parent)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(read)
            for earlier in streams.values():
                os.close(earlier)
            os.environ.update(variables(framework, number, members, meeting))
            if number > 0:
                be_quiet()
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(write, 2)
            os.close(write)
            return {}, {}
        os.close(write)
        processes[process], streams[number] = number, read
    return processes, streams


def _supervise(names: list[str], processes: dict[int, int], streams: dict[int, int]) -> int:
    """Wait until all processes have ended; return the exit status for all.

    Args:
      names: the name of each process, by its number.
      processes: process -> number.
      streams: number -> the file descriptor of what it prints on stderr.
    """
    logs = [
        _Log(names[n], os.fdopen(stream, errors="replace")) for n, stream in streams.items()
    ]
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda each, _: _pass_on(each, processes))
    statuses: dict[int, int] = {}
    failed, deadline = 0, float("inf")
    while processes:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process in processes:
            number, code = processes.pop(process), os.waitstatus_to_exitcode(status)
            statuses[number] = code
            if code and deadline == float("inf"):
                failed, deadline = number, time.monotonic() + _GRACE_SECONDS
            continue
        if time.monotonic() > deadline:
            _pass_on(signal.SIGKILL, processes)
        time.sleep(_POLL_SECONDS)
    for log in logs:
        log.thread.join(_GRACE_SECONDS)
    if statuses[0] > 0 or not any(statuses.values()):
        return statuses[0]  # it has named the error itself
    code, lines = statuses[failed], logs[failed].errors
    if code < 0:
        lines = [f"error: {names[failed]} was killed by {signal.Signals(-code).name}\n"]
    elif not lines:
        lines = [f"error: {names[failed]} ended with status {code}\n"]
    print(*lines, sep="", end="", file=sys.stderr, flush=True)
    return code if code > 0 else RankLost.exit_status


class _Log:
    """Passes on what a process prints, with its name; keeps the lines that name an error."""

    def __init__(self, name: str, stream: IO[str]):
        self.errors: list[str] = []
        self._name, self._stream = name, stream
        self.thread = Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self._stream:
            for line in self._stream:
                if line.startswith("error: "):
                    self.errors.append(line)
                else:
                    print(f"{self._name}: {line}", end="", file=sys.stderr, flush=True)


def _pass_on(number: int, processes: Iterable[int]) -> None:
    for process in list(processes):
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _free_members(size: int, served: Mapping[str, int]) -> tuple[Members, str]:
    """Return members on this machine, and "host:port" where they can meet."""
    meeting, *endpoints = _free_endpoints(1 + size + sum(served.values()))
    ranks, first, serving = tuple(endpoints[:size]), size, {}
    for job, count in served.items():
        serving[job], first = tuple(endpoints[first : first + count]), first + count
    return Members(ranks, serving), meeting


def _free_endpoints(count: int) -> list[str]:
    """Return "host:port" of ports on this machine that nothing listens at."""
    with_ports = [socket.create_server((_HOST, 0)) for _ in range(count)]
    try:
        return [f"{_HOST}:{each.getsockname()[1]}" for each in with_ports]
    finally:
        for each in with_ports:
            each.close()
