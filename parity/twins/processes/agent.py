"""Starts processes of a training on one host, for a supervisor on another; see remote.py.

`python -m parity.twins.processes.agent` speaks lines of JSON. Two lines come on stdin:

  {"address": ..., "count": ..., "ports": [first, last] or null}
  {"script": ..., "words": [...], "processes": {number: {variable: value}}}

To the first it answers {"ports": [...]}, that many free ones, or {"error": ...}. Then it starts
the processes. It writes {"number": ..., "line": ...} for each line of their stderr, and
{"number": ..., "ended": status} at their end. It passes on {"signal": ...} from further lines.

When stdin ends, the supervisor is gone, or its connection: then the processes are killed.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NoReturn

from parity.base.errors import UsageError
from parity.base.process import die_with_parent
from parity.twins.processes.launcher_variables import free_ports

_START_SECONDS = 60  # until the supervisor has said what to start
_LOG_SECONDS = 15.0  # until a line of a process that has ended is read


class Agent:
    """The processes that run on this host.

    Args:
      script: the script of each, relative to the working folder.
      words: its flags.
      variables: the number of each -> its variables.
    """

    def __init__(
        self, script: str, words: list[str], variables: Mapping[str, Mapping[str, str]]
    ):
        self._processes: dict[int, subprocess.Popen] = {}
        self._writing, self._left = Lock(), len(variables)
        for text, given in variables.items():  # JSON has made the numbers texts
            self._processes[int(text)] = subprocess.Popen(
                [sys.executable, script, *words],
                env=os.environ | given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        for number in self._processes:
            Thread(target=self._follow, args=(number,), daemon=True).start()

    def obey(self) -> NoReturn:
        """Pass on signals until stdin ends, and then kill the processes."""
        for line in sys.stdin:
            asked = json.loads(line)["signal"]
            for process in self._processes.values():
                process.send_signal(asked)  # unless it has ended
        self._end(1)

    def _follow(self, number: int) -> None:
        """Tell what a process prints, and its status; the last one to end ends this one."""
        process = self._processes[number]
        reader = Thread(target=self._read, args=(number,), daemon=True)
        reader.start()
        status = process.wait()
        self._kill(process)
        reader.join(_LOG_SECONDS)
        self._tell({"number": number, "ended": status})
        with self._writing:
            self._left -= 1
            if self._left == 0:
                self._end(0)

    def _read(self, number: int) -> None:
        for line in self._processes[number].stderr or ():
            self._tell({"number": number, "line": line})

    def _tell(self, values: Mapping[str, Any]) -> None:
        try:
            with self._writing:
                print(json.dumps(values), flush=True)
        except OSError:  # nobody reads it any more
            self._end(1)

    def _kill(self, process: subprocess.Popen) -> None:
        """Kill a process and what it has started, which may hold its stderr."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _end(self, status: int) -> NoReturn:
        for process in self._processes.values():
            self._kill(process)
        os._exit(status)


def main() -> None:
    """Do what the first two lines on stdin ask for."""
    signal.alarm(_START_SECONDS)  # it ends this process unless it is called off
    asked = _next()
    try:
        ports = asked["ports"] and tuple(asked["ports"])
        print(json.dumps({"ports": free_ports(asked["address"], asked["count"], ports)}))
    except UsageError as error:
        print(json.dumps({"error": str(error)}))
    sys.stdout.flush()
    asked = _next()
    signal.alarm(0)
    if not Path(asked["script"]).is_file():
        sys.exit(f"{Path.cwd() / asked['script']}: is not there")
    Agent(asked["script"], asked["words"], asked["processes"]).obey()


def _next() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit("its stdin is closed; the command must pass stdin on, such as docker exec -i")
    return dict(json.loads(line))


if __name__ == "__main__":
    main()
