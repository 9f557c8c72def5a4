"""Network namespaces: networks of their own on one machine, each as if it were a host."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# `ip netns exec` shows a namespace the files of the folder with its name instead of /etc's own.
FILES = Path("/etc/netns")
DEVICE = "link0"  # of each host


def command_inside(namespace: str, command: Sequence[str]) -> list[str]:
    """Return a command that runs another one in a namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def run_inside(namespace: str, command: Sequence[str]) -> str:
    """Run a command in a namespace and return what it prints.

    Raises:
      subprocess.CalledProcessError: if it fails.
    """
    return run(command_inside(namespace, command))


def processes_inside(namespace: str) -> list[int]:
    """Return the processes that run in a namespace; none if it does not exist."""
    try:
        return [int(each) for each in run(["ip", "netns", "pids", namespace]).split()]
    except (OSError, subprocess.CalledProcessError):
        return []


def remove(namespace: str) -> None:
    """Remove a namespace, its files and the processes that run in it, if it exists.

    Its devices end with it. This process and its parent are spared, which may be inside.
    """
    while found := set(processes_inside(namespace)) - {os.getpid(), os.getppid()}:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)  # in which they end
    with suppress(OSError, subprocess.CalledProcessError):
        run(["ip", "netns", "del", namespace])
    shutil.rmtree(FILES / namespace, ignore_errors=True)


def run(command: Sequence[str]) -> str:
    """Run a command and return what it prints.

    Raises:
      subprocess.CalledProcessError: if it fails.
    """
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
