"""TensorBoard event files, written without either framework."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import reason
from parity.base.plugins import without_module
from parity.twins.spec.replicas import split_rows
from parity.twins.training.meter import Meter
from parity.twins.training.train_steps import TrainedStep

# A fast network would spend its time on writing events: after the first steps, not each one.
_ALWAYS, _SECONDS_BETWEEN = 100, 0.1
_SECONDS_UNFLUSHED = 120.0


class EventWriter:
    """Writes the run's curves: loss/global, loss/replica_N, tokens_per_second, learning_rate.

    It writes in the thread that calls it: a thread of its own could only print that the disk is
    full. Every method raises UsageError if the folder cannot be written.

    Args:
      folder: the folder of the event files, or None to write nothing.
      step: the first step; when resuming, what was recorded from here on is replaced.
    """

    def __init__(self, folder: Path | None, step: int):
        self._writer: Any = None
        self._folder, self._first, self._written = folder, step, 0.0
        self._flushed = time.monotonic()
        if folder is not None:
            # It sets a variable of the environment when it is imported. Once threads of an
            # engine compute, one of them may be reading the environment, and crash. It loads
            # PyTorch only to take tensors, of which none is written here, which takes a second
            # and 200 MB.
            with without_module("torch"):
                import tensorboardX  # noqa: F401

    def step(self, trained: TrainedStep, replicas: int, meter: Meter) -> None:
        """Write one step's scalars; after a run's first 100 steps at most ten times a second.

        Args:
          trained: the step; the loss of each replica is divided by its own real tokens.
          replicas: the number of replicas.
          meter: has measured the recent throughput.
        """
        step, inputs = trained.number, trained.inputs
        recent = time.monotonic() - self._written < _SECONDS_BETWEEN
        if self._folder is None or (recent and step >= self._first + _ALWAYS):
            return
        self._written = time.monotonic()
        sizes = split_rows(inputs.rows, replicas)
        tokens = np.add.reduceat(inputs.lengths["lengths"], np.cumsum([0, *sizes[:-1]]))
        losses = inputs.per_token(trained.result.losses)
        of_replicas = enumerate(losses * tokens.sum() / np.maximum(tokens, 1))
        values = {
            "loss/global": losses.sum(),
            **{f"loss/replica_{replica}": loss for replica, loss in of_replicas},
            "tokens_per_second": meter.recent,
            "learning_rate": trained.learning_rate,
        }
        self.scalars(step, values)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers of a step, by their names."""
        if self._folder is None:
            return
        # not the library's own scalar(), which prints a line for each infinite value
        from tensorboardX.proto.summary_pb2 import Summary

        with self._naming_the_folder(self._folder):
            if self._writer is None:  # not before the first step, which it would delay
                self._writer = self._opened(self._folder)
            for name, value in values.items():
                content = Summary.Value(tag=name, simple_value=float(value))
                self._write(step, summary=Summary(value=[content]))
            if time.monotonic() - self._flushed > _SECONDS_UNFLUSHED:
                self.flush()

    def flush(self) -> None:
        """Flush what was written to the disk: no kill and no power cut then loses it."""
        if self._writer is not None and self._folder is not None:
            with self._naming_the_folder(self._folder):
                self._writer.flush()
            self._flushed = time.monotonic()

    def _opened(self, folder: Path) -> Any:
        """Return a writer of a new file, which replaces all later steps of earlier ones."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        # named by the second alone, a run resumed at once would overwrite the first one's file;
        # in a container all processes may have one number
        suffix = f".{os.getpid()}.{self._first}"
        self._writer = EventsWriter(str(folder / "events"), suffix)
        self._write(self._first, file_version="brain.Event:2")
        self._write(self._first, session_log=SessionLog(status=SessionLog.START))
        return self._writer

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(wall_time=time.time(), step=step, **content))

    @contextlib.contextmanager
    def _naming_the_folder(self, folder: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._drop()
            raise UsageError(f"{folder}: cannot be written: {reason(error)}") from None

    def _drop(self) -> None:
        """Close the file without an error: what its buffer holds could not be written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.flush()
        self._drop()
