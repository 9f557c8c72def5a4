"""Starts the ranks of a training on this machine, and ends them together."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from typing import IO

from parity.base.errors import RankLost
from parity.base.parent import die_with_parent
from parity.base.progress import be_quiet
from parity.processes.membership import variables

# How long the other ranks may take to end by themselves once one has.
_GRACE_SECONDS = 15.0
_POLL_SECONDS = 0.05
_HOST = "127.0.0.1"


def fork_ranks(framework: str, size: int, restarts: int = 0) -> int:
    """Return in each of `size` new processes, which have the variables of their rank.

    This process stays behind and ends, by SystemExit, when they have ended. The terminal shows
    what rank 0 prints, and the errors of the others if rank 0 cannot name them.

    Args:
      framework: "paddle" or "tensorflow".
      size: the number of processes.
      restarts: how often to start all of them again after one was lost.

    Returns:
      How often they have been started before.
    """
    for attempt in range(restarts + 1):
        ranks, streams = _fork(framework, size)
        if not ranks:
            return attempt
        status = _supervise(ranks, streams)
        if status != RankLost.exit_status:
            break
        if attempt < restarts:
            again = f"starting again from the newest checkpoint, {attempt + 1} of {restarts}"
            print(f"{again} times", file=sys.stderr, flush=True)
    raise SystemExit(status)


def _fork(framework: str, size: int) -> tuple[dict[int, int], dict[int, int]]:
    """Start the ranks; return process -> rank and rank -> stderr, both empty in a rank."""
    *endpoints, meeting = _free_endpoints(size + 1)
    sys.stdout.flush()
    sys.stderr.flush()
    parent, ranks, streams = os.getpid(), dict[int, int](), dict[int, int]()
    for rank in range(size):
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
            os.environ.update(variables(framework, rank, endpoints, meeting))
            if rank > 0:
                be_quiet()
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(write, 2)
            os.close(write)
            return {}, {}
        os.close(write)
        ranks[process], streams[rank] = rank, read
    return ranks, streams


def _supervise(ranks: dict[int, int], streams: dict[int, int]) -> int:
    """Wait until all ranks have ended; return the exit status for all.

    Args:
      ranks: process -> rank.
      streams: rank -> the file descriptor of what it prints on stderr.
    """
    logs = [_Log(rank, os.fdopen(stream, errors="replace")) for rank, stream in streams.items()]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: _pass_on(number, ranks))
    statuses: dict[int, int] = {}
    failed, deadline = 0, float("inf")
    while ranks:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process in ranks:
            rank, code = ranks.pop(process), os.waitstatus_to_exitcode(status)
            statuses[rank] = code
            if code and deadline == float("inf"):
                failed, deadline = rank, time.monotonic() + _GRACE_SECONDS
            continue
        if time.monotonic() > deadline:
            _pass_on(signal.SIGKILL, ranks)
        time.sleep(_POLL_SECONDS)
    for log in logs:
        log.thread.join(_GRACE_SECONDS)
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

    def __init__(self, rank: int, stream: IO[str]):
        self.errors: list[str] = []
        self._rank, self._stream = rank, stream
        self.thread = Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self._stream:
            for line in self._stream:
                if line.startswith("error: "):
                    self.errors.append(line)
                else:
                    print(f"rank {self._rank}: {line}", end="", file=sys.stderr, flush=True)


def _pass_on(number: int, processes: Iterable[int]) -> None:
    for process in list(processes):
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _free_endpoints(count: int) -> list[str]:
    """Return "host:port" of ports on this machine that nothing listens at."""
    with_ports = [socket.create_server((_HOST, 0)) for _ in range(count)]
    try:
        return [f"{_HOST}:{each.getsockname()[1]}" for each in with_ports]
    finally:
        for each in with_ports:
            each.close()
