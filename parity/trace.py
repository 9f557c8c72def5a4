"""The file a run writes: per step every tensor that decides or shows what the network does.

A trace is a folder, readable without any framework:

    trace.json           what ran: format, framework, spec, replicas, versions
    steps.jsonl          a line per finished step: {"step", "sha256": {tensor: digest}}
    step-000000.safetensors   the tensors of that step, by name

Names are paths; the part before the first slash says which rung of the ladder a tensor is on:

    batch/tokens, targets, lengths, sizes, carry, learning_rate ... what was read
    forward/embedded, lstm_k/hidden, h, c, logits, token_loss ...   [batch, time, ...]
    loss/replicas, loss/global
    activation_gradient/ACTIVATION                                  isolated runs alone
    gradient/PARAMETER, gradient_norm, clipped_gradient/PARAMETER   canonical layout
    optimizer/PARAMETER/SLOT, optimizer/beta1_power, ...            after the update
    weight/PARAMETER                                                after the update
    replicas/PARAMETER                                              [replicas], see below
    decode/SEARCH_tokens, ...                                       last step, if asked for

`replicas/...` is each replica's greatest absolute distance from replica 0 in a weight or slot;
where replicas hold the same parameters it is exactly zero.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from parity.errors import UsageError
from parity.files import make_folder, write_whole

FORMAT = 2  # 2: the stored spec has a part for text

# What a reader needs of trace.json.
_HEADER = ("framework", "replicas", "spec", "corpus", "batches_per_epoch", "versions")

# Prefix of a tensor's name -> rung, in the order of computation.
RUNGS = {
    "batch": "batch",
    "forward": "forward",
    "loss": "loss",
    "activation_gradient": "gradient",
    "gradient": "gradient",
    "gradient_norm": "gradient",
    "clipped_gradient": "gradient",
    "optimizer": "optimizer",
    "weight": "weight",
    "replicas": "replicas",
    "decode": "decode",
}

# Logits of more elements than this are left out of a trace: they would be most of its bytes,
# and what they decide is recorded all the same (token_loss, gradients of kernel and bias).
MOST_LOGITS = 4_000_000


def rung_of(name: str) -> str:
    """Return the rung of a tensor's name.

    Raises:
      UsageError: for a name on no rung.
    """
    prefix = name.split("/", 1)[0]
    if prefix not in RUNGS:
        raise UsageError(f"tensor {name!r} is on no rung; allowed prefixes: {', '.join(RUNGS)}")
    return RUNGS[prefix]


def records_logits(elements: int) -> bool:
    """Return whether a trace records logits of so many elements."""
    return elements <= MOST_LOGITS


def step_file(step: int) -> str:
    """Return the name of a step's file."""
    return f"step-{step:06d}.safetensors"


# Six digits: a checkpoint's eight are no step of a trace, and never removed as one.
_STEP_FILE = re.compile(r"step-\d{6}\.safetensors")
# All that a trace is made of, with the temporary files that a killed writer leaves.
_OWN = re.compile(rf"steps\.jsonl|trace\.json|{_STEP_FILE.pattern}|\.(trace|step-\d{{6}})\..*")


def sha256(array: np.ndarray) -> str:
    """Return the hash of an array's type, shape and bytes."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class Recorder:
    """Writes a trace, step by step; a reader may follow while it is written.

    Args:
      folder: made if missing; a trace already in it is replaced.
      header: plain values for trace.json.
      most_pending: if given, wait while this many steps' files lie unread: a reader that
        deletes what it has compared keeps a long trace off the disk.
      waiting: called while waiting; raises to give up.
    """

    def __init__(
        self,
        folder: Path,
        header: Mapping[str, Any],
        most_pending: int | None = None,
        waiting: Callable[[], None] | None = None,
    ):
        self.folder, self.most_pending, self._waiting = folder, most_pending, waiting
        self._parent = os.getppid()
        if folder.is_dir():
            for old in _own_files(folder):
                old.unlink()
        make_folder(folder)
        write_whole(
            folder / "trace.json", json.dumps({"format": FORMAT, **header}, indent=2).encode()
        )
        self._index = (folder / "steps.jsonl").open("w")

    def step(self, step: int, tensors: Mapping[str, np.ndarray]) -> None:
        """Write one step's tensors, and only then its line in the index.

        Raises:
          UsageError: if the folder cannot be written.
        """
        while self.most_pending and self._pending() >= self.most_pending:
            time.sleep(0.002)
            if self._waiting is not None:
                self._waiting()
            if os.getppid() != self._parent:  # the reader is gone; nobody will make room
                raise UsageError(f"{self.folder}: the reader of this trace is gone")
        # safetensors keeps no zero-dimensional NumPy scalars apart from arrays
        arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
        write_whole(self.folder / step_file(step), save(arrays), durable=False)
        line = {"step": step, "sha256": {name: sha256(array) for name, array in arrays.items()}}
        self._index.write(json.dumps(line) + "\n")
        self._index.flush()

    def _pending(self) -> int:
        return len(_step_files(self.folder))

    def close(self) -> None:
        """Close the index."""
        self._index.close()


class Trace:
    """Reads a trace.

    Attributes:
      folder: where it lies.
      header: the values of trace.json.
    """

    def __init__(self, folder: Path):
        """Open a recorded trace.

        Raises:
          UsageError: if the folder holds no trace, or one of another format.
        """
        self.folder = folder
        self._hashes: dict[int, dict[str, str]] = {}
        try:
            self.header = json.loads((folder / "trace.json").read_text())
        except FileNotFoundError:
            raise UsageError(f"{folder}: no trace.json here; not a recorded trace") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder}/trace.json: cannot be read: {error}") from None
        if not isinstance(self.header, dict) or self.header.get("format") != FORMAT:
            seen = self.header.get("format") if isinstance(self.header, dict) else self.header
            raise UsageError(f"{folder}/trace.json: format is {seen!r}; allowed: {FORMAT}")
        lacking = [name for name in _HEADER if name not in self.header]
        if lacking:
            raise UsageError(f"{folder}/trace.json: lacks {', '.join(lacking)}")

    @property
    def label(self) -> str:
        """Return how reports name this side, such as paddle-2."""
        return f"{self.header['framework']}-{self.header['replicas']}"

    def index(self) -> list[dict[str, Any]]:
        """Return the finished steps: [{"step", "sha256": {tensor: digest}}].

        Raises:
          UsageError: if a line cannot be read.
        """
        path = self.folder / "steps.jsonl"
        try:
            written = path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        lines = []
        for number, line in enumerate(written, start=1):
            try:
                values = json.loads(line)
                lines.append({"step": values["step"], "sha256": dict(values["sha256"])})
            except (ValueError, KeyError, TypeError):
                raise UsageError(
                    f"{path}, line {number}: not a line of a trace's index"
                ) from None
        return lines

    def read(self, step: int) -> dict[str, np.ndarray]:
        """Return the tensors of a step, checked against their hashes.

        Raises:
          UsageError: if the step is missing, truncated, or not what was written.
        """
        path = self.folder / step_file(step)
        if step not in self._hashes:
            self._hashes = {line["step"]: line["sha256"] for line in self.index()}
        recorded = self._hashes
        if step not in recorded:
            raise UsageError(f"{self.folder}: step {step} was never finished")
        tensors = _load(path)
        for name in sorted(recorded[step].keys() | tensors.keys()):
            digest = recorded[step].get(name)
            if name not in tensors or sha256(tensors[name]) != digest:
                raise UsageError(f"{path}: tensor {name!r} is not what was recorded")
        return tensors

    def follow(
        self, steps: int, alive: Callable[[], bool], *, delete: bool
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the tensors of steps 0 .. steps-1 as they are written.

        Args:
          alive: called while waiting; says whether the writer may still write, and raises if
            it failed.
          delete: remove a step's file once the next one is asked for.

        Raises:
          UsageError: if the writer ended before it wrote them all.
        """
        for step in range(steps):
            path = self.folder / step_file(step)
            while not path.exists():
                if not alive() and not path.exists():
                    raise UsageError(f"{self.folder}: its writer ended before step {step}")
                time.sleep(0.002)
            yield _load(path)
            if delete:
                path.unlink()


def wait_for_trace(folder: Path, alive: Callable[[], bool]) -> Trace:
    """Return the trace in a folder as soon as its writer has begun it.

    Args:
      alive: as of `Trace.follow`.

    Raises:
      UsageError: if the writer ended before.
    """
    path = folder / "trace.json"
    while not path.exists():
        if not alive() and not path.exists():
            raise UsageError(f"{folder}: its writer ended before the first step")
        time.sleep(0.02)
    return Trace(folder)


def clear_trace(folder: Path) -> None:
    """Remove a trace and nothing else.

    Raises:
      UsageError: if the folder is there and holds anything that is no part of a trace.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder; allowed: a trace's folder, or a new name")
    _own_files(folder)
    shutil.rmtree(folder)


def _own_files(folder: Path) -> list[Path]:
    paths = list(folder.iterdir())
    for path in paths:
        if not _OWN.fullmatch(path.name):
            raise UsageError(f"{folder}: holds {path.name!r}, which is no part of a trace")
    return paths


def _step_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _STEP_FILE.fullmatch(path.name)]


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read as a step of a trace: {error}") from None
