"""Writes a trace: for each step, every tensor that decides or shows what the network does.

A trace is a folder that any program can read; parity/trace/TRACE.md describes it in full:

    trace.json           what ran: format, framework, spec, replicas, versions
    steps.jsonl          a line per finished step: {"step", "crc32": {tensor: digest}}, and
                         "reduced": the statistics of tensors that are not there whole
    step-000000.safetensors   the tensors of that step, by name
    config.yaml               of a training by train.py: its options, for --config

Names are paths; the part before the first slash says on which rung a tensor is compared:

    batch/tokens, targets, lengths, sizes, carry, learning_rate ... what was read
    schedule/worker, batch, read, first_row, of_rows                asynchronous runs only
    read/PARAMETER                            what the gradient was computed with, likewise
    forward/embedded, lstm_k/hidden, h, c, logits, token_loss ...   [batch, time, ...]
    loss/replicas, loss/global
    gradient/PARAMETER, gradient_norm, clipped_gradient/PARAMETER   canonical layout
    optimizer/PARAMETER/SLOT, optimizer/beta1_power, ...            after the update
    weight/PARAMETER                                                after the update
    replicas/SNAPSHOT_NAME                                          [replicas], see below
    decode/SEARCH_tokens, ...                                       last step, if asked for

`replicas/...` is the largest absolute difference between each replica and replica 0 in a weight
or optimizer slot; it is exactly zero where the replicas hold the same parameters.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import make_folder, reason, remove_file, write_whole
from parity.trace.folder import (
    FORMAT,
    RECORDING,
    content,
    crc32,
    step_file,
    step_files,
    trace_files,
)
from parity.trace.reduced import FULL, Detail, detail_of, reduce


class Writer:
    """Writes a trace step by step; a reader may follow while it is written.

    Args:
      folder: where to write; it is made if it is missing, and a trace in it is replaced.
      header: plain values for trace.json.
      most_pending: wait while the folder holds this many steps; with a reader that deletes each
        step after comparing it, a long trace never fills the disk. None: never wait.
      waiting: called while waiting; it raises to give up.
      kept: names of files that are of this trace already, and are not removed.
    """

    def __init__(
        self,
        folder: Path,
        header: Mapping[str, Any],
        most_pending: int | None = None,
        waiting: Callable[[], None] | None = None,
        kept: Collection[str] = (),
    ):
        self.folder, self.most_pending, self._waiting = folder, most_pending, waiting
        self._parent = os.getppid()
        if folder.is_dir():
            for old in trace_files(folder):
                if old.name not in kept:
                    remove_file(old)
        make_folder(folder)
        self._header = header
        self.write_header()
        self._path, self._last = folder / "steps.jsonl", "no step"
        try:
            (folder / RECORDING).touch()
            # unbuffered: a line that fails is not written later, when the file is closed
            self._index = self._path.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"{self._path}: cannot be written: {reason(error)}") from None

    def write_header(self) -> None:
        """Write trace.json, again if what the header holds has changed."""
        text = json.dumps({"format": FORMAT, **self._header}, indent=2)
        write_whole(self.folder / "trace.json", text.encode())

    def step(self, step: int, tensors: Mapping[str, np.ndarray], detail: Detail = FULL) -> None:
        """Write the tensors of one step, and only then its line in the index.

        Args:
          detail: how much of them: "full", "sample" or "statistics", or patterns of names with
            these.

        Raises:
          UsageError: if the folder cannot be written; the steps before this one stay readable.
        """
        while self.most_pending and self._pending() >= self.most_pending:
            time.sleep(0.03)  # each look lists the folder: every 10 ms is 2 % of a core
            if self._waiting is not None:
                self._waiting()
            if (
                os.getppid() != self._parent
            ):  # the reader is gone: nobody will delete what it has read
                raise UsageError(f"{self.folder}: the reader of this trace is gone")
        arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
        with ThreadPoolExecutor(1) as beside:  # neither holds Python's lock for long
            digests = beside.submit(list, map(crc32, arrays.values()))
            details = {name: detail_of(name, detail) for name in arrays}
            reduced = {
                name: reduce(arrays[name], each)
                for name, each in details.items()
                if each != FULL
            }
            kept = {name: each for name, each in arrays.items() if name not in reduced}
            for name, each in reduced.items():
                if each.sample is not None:
                    kept[name] = each.sample
            try:
                write_whole(self.folder / step_file(step), _packed(kept), durable=False)
                line = {"step": step, "crc32": dict(zip(arrays, digests.result(), strict=True))}
                if reduced:
                    line["reduced"] = {name: each.to_json() for name, each in reduced.items()}
                self._append(f"{json.dumps(line)}\n".encode())
            except UsageError as error:
                raise UsageError(f"{error}; the trace holds {self._last}") from None
        self._last = f"the steps up to {step}"

    def _append(self, line: bytes) -> None:
        """Add a line to the index, whole or not at all."""
        end, rest = self._index.tell(), memoryview(line)
        try:
            while rest:  # a disk may have room for a part
                rest = rest[self._index.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._index.seek(end)
                self._index.truncate()
            raise UsageError(f"{self._path}: cannot be written: {reason(error)}") from None

    def _pending(self) -> int:
        return len(step_files(self.folder))

    def close(self, *, finished: bool = True) -> None:
        """Close the index.

        Args:
          finished: whether there was no more to record; if not, readers say that the trace was
            cut.
        """
        self._index.close()
        if finished and (self.folder / RECORDING).exists():
            remove_file(self.folder / RECORDING)


def _packed(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Yield the parts of a file of safetensors; its own `save` would copy them three times."""
    header: dict[str, Any] = {}
    end = 0
    # the widest first, as there: so all lie at multiples of their size
    ordered = sorted(arrays.items(), key=lambda pair: -pair[1].itemsize)
    for name, array in ordered:
        kind = (
            "BOOL" if array.dtype == bool else f"{array.dtype.kind.upper()}{array.itemsize * 8}"
        )
        header[name] = {
            "dtype": kind,
            "shape": array.shape,
            "data_offsets": (end, end + array.nbytes),
        }
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, array in ordered:
        yield content(array)
