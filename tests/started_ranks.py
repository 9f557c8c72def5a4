"""Starts the ranks of tests/ranks_alone.py, and sees that none of their processes is left."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

from conftest import wait_for

from parity.twins.launch.processes import ROOT

SCRIPT = ROOT / "tests" / "ranks_alone.py"


class StartedRanks:
    """Three ranks, on this machine or on the hosts of a file.

    Args:
      mode: what they do.
      hosts: the file of hosts; None for this machine.
      restarts: how often to start all ranks again after one was lost.
      **variables: variables to set for them.
    """

    def __init__(
        self, mode: str, hosts: Path | None = None, restarts: int = 0, **variables: str
    ):
        name, value = "MARK", uuid.uuid4().hex
        words = [] if hosts is None else [str(hosts), str(restarts)]
        self._mark = f"{name}={value}".encode()
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), mode, *words],
            env=os.environ | {"PYTHONPATH": str(ROOT), name: value, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def running(self) -> list[int]:
        """Return the processes that it has started, and they, and that have not ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ended = (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if not ended and self._mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def wait(self) -> tuple[int, str, str]:
        """Return status, output and what is printed on stderr, once nothing runs any more."""
        output, errors = self.process.communicate(timeout=100)
        wait_for(lambda: not self.running(), seconds=5)
        return self.process.returncode, output, errors
