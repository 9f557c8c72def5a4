"""Runs a watched training again, with its numbers moved: `parity bounds`."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from parity.base.errors import UsageError
from parity.base.process import prepare_child, stop_signals
from parity.base.progress import ProgressBar
from parity.base.text import counted, escaped, some_of
from parity.compare.measured_bounds import measure
from parity.pair.perturbation import environment
from parity.trace.reader import Trace
from parity.trace.rungs import rung_of

RUNS = 5
_CLEAN_UP_SECONDS = 5.0
_LONGEST_SHOWN = 2000  # bytes


def write_bounds(trace: Trace, command: Sequence[str], out: Path) -> None:
    """Run a training again and write its bounds; print what they are.

    Args:
      trace: what the command recorded when it ran before.

    Raises:
      UsageError: if the command fails, records nothing in the trace's folder, or trains
        otherwise without anything being moved.
    """
    with (
        tempfile.TemporaryDirectory(prefix="parity-bounds-") as folder,
        ProgressBar("training again", 1 + RUNS, "run") as progress,
    ):
        plain = run_again(trace, command, Path(folder) / "plain")
        _check_same(trace, plain)
        runs = []
        for seed in range(RUNS):
            progress.update()
            runs.append(run_again(trace, command, Path(folder) / str(seed), seed=seed))
        progress.update()
        bounds = measure(trace, plain, runs)
    if not any(map(any, bounds.tensors.values())):
        raise UsageError(f"{trace.folder}: nothing was moved; allowed: a watched training")
    bounds.write(out)
    steps = counted(len(bounds.steps), "step")
    print(escaped(f"bounds: {out}: {counted(len(bounds.tensors), 'tensor')}, {steps}"))
    if bounds.noise:
        print(escaped(f"zero but for rounding: {some_of(list(bounds.noise))}"))
    for name, flips in bounds.kinks.items():
        print(escaped(f"kinks: {name}: {counted(flips, 'element')} zero by rounding alone"))


def run_again(trace: Trace, command: Sequence[str], to: Path, **asked: Any) -> Trace:
    """Run what recorded a trace once more, into another folder.

    Args:
      asked: what is asked of the training; see `parity.pair.perturbation.environment`.

    Raises:
      UsageError: if the command fails, or records nothing.
    """
    words = " ".join(command)
    # no pipe: a process that the training leaves behind could hold its other end
    with tempfile.TemporaryFile() as printed:
        try:
            status = _status(command, environment(trace.folder, to, **asked), printed)
        except OSError as error:
            raise UsageError(f"{words}: cannot be run: {error.strerror}") from None
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _LONGEST_SHOWN))
        lines = printed.read().decode(errors="replace").strip().splitlines()
    if status:
        last = "".join(f": {line}" for line in lines[-1:])
        raise UsageError(f"{words}: ended with status {status}{last}")
    if not (to / "trace.json").exists():
        raise UsageError(
            f"{words}: recorded nothing in {trace.folder}; allowed: the command that watches "
            "its training there, run where it was run before"
        )
    return Trace(to)


def _status(command: Sequence[str], variables: dict[str, str], printed: BinaryIO) -> int:
    """Run a command, which prints to a file, and return its exit status."""
    # a signal's exception in the middle of the start would lose the process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,  # each run has the same
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(prepare_child, os.getpid(), before),
        )
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process.wait()
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    """End a training and the processes that it has started, which may clean up first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLEAN_UP_SECONDS)


def _check_same(trace: Trace, again: Trace) -> None:
    """Check that a run as it is starts as the one before did: alike in batches and weights."""
    numbers = trace.numbers()
    if not numbers or again.numbers() != numbers:
        raise UsageError(f"{trace.folder}: a run again recorded other steps, or none")
    for step, tensors in trace.steps():
        other = again.read(step)
        for name, array in tensors.items():
            same = name in other and np.array_equal(array, other[name], equal_nan=True)
            if rung_of(name) == "batch" and not same:
                raise UsageError(
                    f"{trace.folder}: a run again has another {name} in step {step}; allowed: "
                    "a training with seeds, which starts from the same weights and batches"
                )
