"""Runs the `train.py` of each side in a separate process, and reports why a process ended.

The frameworks share neither memory nor threads with each other or with the harness. They need
not even share an environment: PARITY_PADDLE_PYTHON and PARITY_TENSORFLOW_PYTHON name the
interpreters to use. A strategy with an environment of its own always runs in that one.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from parity.base.errors import DEFECT_STATUS, NumericFailure, SideFailed, UsageError
from parity.base.files import make_folder
from parity.base.process import prepare_child, stop_signals
from parity.twins.spec.fields import flag
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec

ROOT = Path(__file__).resolve().parents[3]
# Other frameworks that the benchmark can time: name -> module to run, package that it imports.
PEERS = {
    "pytorch": ("parity.twins.peers.pytorch_peer", "torch"),
    "keras": ("parity.twins.peers.keras_peer", "keras"),
}


def interpreter(framework: str, strategy: str | None = None) -> str:
    """Return the path of the Python interpreter that runs a framework's scripts.

    Args:
      framework: "paddle" or "tensorflow", or one of `PEERS`.
      strategy: the strategy that they are to train with; None for the default one.

    Raises:
      UsageError: if the strategy needs an environment of its own that is not there.
    """
    if has_own_environment(framework, strategy):
        entry = FRAMEWORKS[framework].strategies.entry(strategy)
        found = ROOT / entry.environment / "bin" / "python"
        if not found.exists():
            raise UsageError(
                f"--strategy is {strategy!r}, which needs an environment of its own, "
                f"{entry.environment}: run `make {strategy}` in the checkout"
            )
        return str(found)
    return os.environ.get(f"PARITY_{framework.upper()}_PYTHON", sys.executable)


def has_own_environment(framework: str, strategy: str | None) -> bool:
    """Return whether a strategy runs in another environment than the framework's."""
    if framework in PEERS or strategy is None:
        return False
    return bool(FRAMEWORKS[framework].strategies.entry(strategy).environment)


class Process(Protocol):
    """The methods of `subprocess.Popen` that `SideProcess` uses."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""

    def wait(self) -> int:
        """Wait until the process ends, and return its exit status."""

    def kill(self) -> None:
        """Kill the process."""


class SideProcess:
    """A running `train.py`, which is killed when the context is left.

    Args:
      framework: "paddle" or "tensorflow", or one of `PEERS`.
      spec: the network, its text and its training.
      log: the file that receives its output.
      start: a function (flags, log) that starts the process, such as `ForkServer.side`; by
        default a new interpreter is started.
      **options: values of fields of TrainOptions, by name.
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
        strategy = options.get("strategy")
        command, environment = [interpreter(framework, strategy)], dict(os.environ)
        if framework in PEERS:
            command += ["-m", PEERS[framework][0]]
            environment["PYTHONPATH"] = str(ROOT)
        else:
            command.append(str(FRAMEWORKS[framework].path / "train.py"))
        # The exception that a signal handler raises during the fork would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        try:
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    [*command, *flags],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    preexec_fn=partial(prepare_child, os.getpid(), before),
                )
        except OSError as error:
            raise UsageError(f"{error.filename}: cannot be started: {error.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def check(self) -> None:
        """Check that the process is running or has ended with status 0.

        Raises:
          UsageError, NumericFailure, SideFailed: if it has not, with the process's message.
        """
        status = self._process.poll()
        if status:
            self._raise(status)

    def wait(self) -> None:
        """Wait until the process ends.

        Raises:
          UsageError, NumericFailure, SideFailed: if its status is not 0, with the process's
            message.
        """
        status = self._process.wait()
        if status:
            self._raise(status)

    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def _raise(self, status: int) -> None:
        raise_for_status(self.framework, status, self.log)

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


_EXCEPTION = re.compile(r"[a-z_][\w.]*(Error|Exception)\b", re.IGNORECASE)  # ends a traceback


def raise_for_status(framework: str, status: int, log: Path) -> None:
    """Raise the error that a side's process ended with, unless its status is 0.

    Args:
      framework: the framework's name, which begins the message.
      status: the exit status of the process, negative for a signal.
      log: the file with its output.

    Raises:
      UsageError, NumericFailure, SideFailed: with the message that the process printed.
    """
    if status == 0:
        return
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if errors and status in (2, 3):
        kind = {2: UsageError, 3: NumericFailure}[status]
        raise kind(f"{framework}: {errors[-1]}")
    told = [line for line in lines if line.strip()]
    # TensorFlow follows an error with where its operation was made
    at = max((i for i, line in enumerate(told) if _EXCEPTION.match(line)), default=-1)
    more = told[at + 1 : at + 2] if at >= 0 and told[at].endswith(("found.", ":")) else []
    last = " ".join(map(str.strip, told[at:][:1] + more)) or "it printed nothing"
    ending = f"status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
    message = f"{framework} ended with {ending}: {last} (the rest is in {log})"
    if status < 0:
        status = 128 - status  # how a shell reports a signal
    # without a message, these are not a verdict, bad use or a numeric failure
    raise SideFailed(message, DEFECT_STATUS if status <= NumericFailure.exit_status else status)


def spec_flags(spec: Spec) -> list[str]:
    """Return flags that set every field of a spec, whatever the preset has."""
    values = spec.values()
    switches = [
        flag(name) if value else f"--no-{flag(name)[2:]}"
        for name, value in values.items()
        if isinstance(value, bool)
    ]
    others = {name: value for name, value in values.items() if not isinstance(value, bool)}
    return ["--network", spec.network, *switches, *option_flags(others)]


def shared_options(options: Any) -> dict[str, Any]:
    """Return the options of a command that it hands on to each side, by name."""
    names = ("preset", "data", "cache", "replicas", "threads", "device", "debug")
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def option_flags(values: Mapping[str, Any]) -> list[str]:
    """Return flags that set these options; one that is None or False gets no flag."""
    words: list[str] = []
    for name, value in values.items():
        if value is True:
            words.append(flag(name))
        elif value is not None and value is not False:
            # in one word: a value that begins with a dash would be taken for a flag
            words.append(f"{flag(name)}={value}")
    return words
