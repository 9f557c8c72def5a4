"""Reads the trace of a training that still runs."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from parity.base.errors import UsageError
from parity.trace.folder import step_file
from parity.trace.reader import Trace, read_step


def wait_for_trace(folder: Path, alive: Callable[[], bool]) -> Trace:
    """Return the trace in a folder as soon as its writer has started it.

    Args:
      alive: called while waiting, as by `follow`.

    Raises:
      UsageError: if the writer ended before that.
    """
    path = folder / "trace.json"
    while not path.exists():
        if not alive() and not path.exists():
            raise UsageError(f"{folder}: its writer ended before the first step")
        time.sleep(0.02)
    return Trace(folder)


def follow(
    trace: Trace,
    steps: int,
    alive: Callable[[], bool],
    *,
    delete: Callable[[int], bool],
    keep: Mapping[int, Path] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the tensors of steps 0 .. steps-1 as they are written.

    Args:
      alive: called while waiting; returns whether the writer is still running, and raises
        if it failed.
      delete: called with a step when the next one is requested; returns whether to remove
        its file.
      keep: step -> the folder to keep a copy of its file in. In the trace's own folder it
        would count as a step that has not been read yet.

    Raises:
      UsageError: if the writer ended before it wrote them all.
    """
    for step in range(steps):
        path = trace.folder / step_file(step)
        while not path.exists():
            try:
                running = alive()
            except Exception:
                if path.exists():  # it was written, and only then did its writer fail
                    break
                raise
            if not running and not path.exists():
                raise UsageError(f"{trace.folder}: its writer ended before step {step}")
            time.sleep(0.002)
        yield read_step(path)
        if keep is not None and step in keep:
            shutil.copyfile(path, keep[step] / path.name)
        if delete(step):
            path.unlink()
