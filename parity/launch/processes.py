"""Starts each side's `train.py` as a process of its own, and tells why one ended.

The frameworks share neither memory nor threads with each other or with the harness, and need
not share an environment: PARITY_PADDLE_PYTHON and PARITY_TENSORFLOW_PYTHON name other
interpreters.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from parity.base.errors import DEFECT_STATUS, NumericFailure, SideFailed, UsageError
from parity.base.fields import flag
from parity.base.files import make_folder
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.spec import Spec

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = {name: each.folder for name, each in FRAMEWORKS.items()}
# What the benchmark may time beside them: module, and what it imports.
PEERS = {
    "pytorch": ("parity.peers.pytorch_peer", "torch"),
    "keras": ("parity.peers.keras_peer", "keras"),
}

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)


def interpreter(framework: str) -> str:
    """Return the Python that runs a framework's scripts."""
    return os.environ.get(f"PARITY_{framework.upper()}_PYTHON", sys.executable)


class Process(Protocol):
    """What `SideProcess` needs of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal, or None while it runs."""

    def wait(self) -> int:
        """Return its exit status once it has ended."""

    def kill(self) -> None:
        """Kill it."""


class SideProcess:
    """A running `train.py`; leaving the context stops it.

    Args:
      framework: "paddle" or "tensorflow", or one of `PEERS`.
      spec: what to train.
      log: file that gets what it prints.
      start: takes flags and log and starts it, as `ForkServer.side` does; by default it is
        started anew.
      **options: of TrainOptions, by name.
    """

    def __init__(
        self,
        framework: str,
        spec: Spec,
        log: Path,
        start: Callable[[list[str], Path], Process] | None = None,
        **options: Any,
    ):
        self.framework, self.log = framework, log
        make_folder(log.parent)
        flags = [*spec_flags(spec), *option_flags(options)]
        self._process: Process
        if start is not None:
            self._process = start(flags, log)
            return
        command, environment = [interpreter(framework)], dict(os.environ)
        if framework in PEERS:
            command += ["-m", PEERS[framework][0]]
            environment["PYTHONPATH"] = str(ROOT)
        else:
            command.append(str(ROOT / FOLDERS[framework] / "train.py"))
        # A signal amid the fork would be lost with the exception it raises there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    [*command, *flags],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    preexec_fn=partial(_end_with_parent, os.getpid(), before),
                )
        except OSError as error:
            raise UsageError(f"{error.filename}: cannot be started: {error.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def check(self) -> None:
        """See that it is still running, or has ended well.

        Raises:
          UsageError, NumericFailure, SideFailed: with its own message, if it ended otherwise.
        """
        status = self._process.poll()
        if status:
            self._raise(status)

    def wait(self) -> None:
        """Wait for its end.

        Raises:
          UsageError, NumericFailure, SideFailed: with its own message, if it did not end well.
        """
        status = self._process.wait()
        if status:
            self._raise(status)

    def ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None

    def _raise(self, status: int) -> None:
        raise_for(self.framework, status, self.log)

    def __enter__(self) -> "SideProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def raise_for(framework: str, status: int, log: Path) -> None:
    """Raise what a side's process ended with, unless it ended well.

    Args:
      status: of the process, negative for a signal.
      log: what it printed.

    Raises:
      UsageError, NumericFailure, SideFailed: with its own message.
    """
    if status == 0:
        return
    lines = log.read_text(errors="replace").splitlines()
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if said and status in (2, 3):
        kind = {2: UsageError, 3: NumericFailure}[status]
        raise kind(f"{framework}: {said[-1]}")
    last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
    how = f"status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
    message = f"{framework} ended with {how}: {last} (the rest is in {log})"
    if status < 0:
        status = 128 - status  # a signal, as a shell reports it
    raise SideFailed(message, DEFECT_STATUS if status == 1 else status)


def _end_with_parent(parent: int, signals: set) -> None:
    """Let this process end with the harness, and hear signals again.

    Args:
      parent: the harness.
      signals: that were blocked before this process was made.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    end_with(parent)


def end_with(parent: int) -> None:
    """Ask the kernel to kill this process once its parent is gone, even if it was killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before it could be asked
        os._exit(1)


def spec_flags(spec: Spec) -> list[str]:
    """Return the flags that make exactly this spec, whatever the presets say."""
    values = spec.values()
    switches = [
        flag(name) if value else f"--no-{flag(name)[2:]}"
        for name, value in values.items()
        if isinstance(value, bool)
    ]
    others = {name: value for name, value in values.items() if not isinstance(value, bool)}
    return ["--network", spec.network, *switches, *option_flags(others)]


def option_flags(values: Mapping[str, Any]) -> list[str]:
    """Return the flags that set these values; of a None or False there is none."""
    words: list[str] = []
    for name, value in values.items():
        if value is True:
            words.append(flag(name))
        elif value is not None and value is not False:
            # one word, so that a value that begins with a dash is no flag
            words.append(f"{flag(name)}={value}")
    return words
