"""The processes of another host, as their supervisor sees them; agent.py starts them there."""

import json
import os
import queue
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from parity.base.errors import RankLost, UsageError
from parity.base.process import die_with_parent
from parity.base.text import parse_json
from parity.twins.processes.hosts import Host

# How long a host may take to answer, once its command is started.
ANSWER_SECONDS = 30.0
_ROOT = Path(__file__).resolve().parents[3]


class RemoteProcesses:
    """Some processes of a training that run on another host.

    Attributes:
      host: the host.
      names: their numbers -> their names, such as "rank 1".

    Args:
      host: the host.
      names: the numbers of the processes -> their names.
      framework: "paddle" or "tensorflow".
    """

    def __init__(self, host: Host, names: Mapping[int, str], framework: str):
        self.host, self.names = host, names
        self._ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._command = host.command_of_agent(framework)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                # a terminal's Ctrl-C is for the supervisor, which passes it on
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except OSError as error:
            raise UsageError(
                f"{host.name}: {error.filename} cannot be started: {error.strerror}"
            ) from None
        self._deadline = time.monotonic() + ANSWER_SECONDS

    def ask_ports(self, count: int, ports: tuple[int, int] | None) -> None:
        """Ask for the numbers of free ports there, which `answer` returns."""
        asked = {"address": self.host.address, "count": count, "ports": ports}
        self._send(asked)

    def answer(self) -> list[int]:
        """Return the ports, once the host has answered.

        Raises:
          RankLost: if it does not answer in time, or its command ends.
          UsageError: if it refuses.
        """
        while True:
            values = _values(self._line())
            if "error" in values:
                raise UsageError(f"{self.host.name}: {values['error']}")
            ports = values.get("ports")
            if isinstance(ports, list) and all(type(each) is int for each in ports):
                return ports

    def start(self, variables: Mapping[int, Mapping[str, str]]) -> None:
        """Start the processes, with the script and the flags of this one.

        Args:
          variables: number -> variables.

        Raises:
          UsageError: for a script that is not in the checkout.
        """
        script = Path(sys.argv[0]).resolve()
        if not script.is_relative_to(_ROOT):
            raise UsageError(
                f"--hosts is given to {script}; allowed: a script of the checkout, which every "
                "host has"
            )
        script = script.relative_to(_ROOT)
        self._send({"script": str(script), "words": sys.argv[1:], "processes": variables})

    def listen(self, tell: Callable[[int, str], None]) -> Thread:
        """Follow the processes in a thread from now on, until all have ended.

        Args:
          tell: called in that thread with the number of a process and a line of its stderr.
        """
        thread = Thread(target=self._follow, args=(tell,), daemon=True)
        thread.start()
        return thread

    def take_ended(self) -> dict[int, int]:
        """Return number -> exit status, negative for a signal, for those that just ended."""
        return dict(self._ended.get() for _ in range(self._ended.qsize()))

    def signal(self, number: int) -> None:
        """Send a signal to the processes."""
        self._send({"signal": number})

    def release(self) -> None:
        """Close this process's ends of the connection, for another process that holds them."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def kill(self) -> None:
        """Cut the connection, which makes the host kill the processes."""
        with suppress(ProcessLookupError):  # the command may have started others
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _send(self, values: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        line = json.dumps(values).encode() + b"\n"
        with suppress(OSError):  # whoever reads the answer finds out
            while line:  # without a buffer: a signal may come between
                line = line[os.write(self._process.stdin.fileno(), line) :]

    def _line(self) -> bytes:
        """Return the next line, in time."""
        assert self._process.stdout is not None
        line, stream = bytearray(), self._process.stdout.fileno()
        while not line.endswith(b"\n"):
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise RankLost(
                    f"{self.host.name} has not answered within {ANSWER_SECONDS:.0f} s: "
                    f"{shlex.join(self._command)}"
                )
            # one by one: what follows the line is not for here
            byte = os.read(stream, 1)
            if not byte:
                raise RankLost(f"{self.host.name} cannot be reached: {self._ending()}")
            line += byte
        return bytes(line)

    def _ending(self) -> str:
        """Return how the command has ended, and the last line that it has printed."""
        status = self._process.wait()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{shlex.join(self._command)} ended with {how}" + (f": {last}" if last else "")

    def _follow(self, tell: Callable[[int, str], None]) -> None:
        assert self._process.stdout is not None
        running = set(self.names)
        with suppress(OSError):
            for line in self._process.stdout:
                values = _values(line)
                number, ended = values.get("number"), values.get("ended")
                if type(number) is not int or number not in self.names:
                    continue
                if type(values.get("line")) is str:
                    tell(number, values["line"])
                if type(ended) is int:
                    running.discard(number)
                    self._ended.put((number, ended))
        ending = self._ending()
        for number in sorted(running):
            lost = f"{self.names[number]} is gone with {self.host.name}: {ending}"
            tell(number, f"error: {lost}\n")
            self._ended.put((number, RankLost.exit_status))


def _values(line: bytes) -> dict[str, Any]:
    """Return the values of a line; none if it is not the agent's, but the host's greeting."""
    try:
        values = parse_json(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
