"""The file a run writes: per step every tensor that decides or shows what the network does.

A trace is a folder, readable without any framework; parity/trace/TRACE.md describes it in full:

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole
from parity.trace.names import RUNGS as RUNGS
from parity.trace.names import NameMap
from parity.trace.names import Rename as Rename
from parity.trace.names import rung_of as rung_of
from parity.trace.side import Side
from parity.trace.tolerances import Tolerance, check_declared

FORMAT = 3  # 3: the header names the strategy, the kernels and the processes

# What a reader needs of trace.json: of a training of this project, and of any other.
_HEADER = (
    *("framework", "strategy", "replicas", "kernels", "processes", "synchronous"),
    *("spec", "corpus", "batches_per_epoch", "versions"),
)
_OWN_HEADER = ("framework", "dtype", "run", "tolerances", "versions")

DTYPES = ("float64", "float32")
LAST_STEP = 999_999  # six digits in the name of its file


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


class Writer:
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


class Recorder:
    """Records a training of your own, to be held against its port; see parity/trace/TRACE.md.

        with Recorder("runs/mine", framework="pytorch", dtype="float32") as recorder:
            recorder.step(0, {"forward/logits": logits, "weight/fc1/kernel": kernel})

    Each tensor's name begins with its rung, and within a rung they are recorded in the order in
    which they were computed: a report names the first one that differs.

    Args:
      folder: made if missing; a trace already in it is replaced.
      framework: what reports call this side.
      dtype: "float64" or "float32", what the side computes in.
      run: settings that both sides must have in common, as plain values.
      names: own name -> shared name, or a `Rename` where the layout differs too.
      tolerances: rung, or pattern of names -> what the pair may differ by, with its reason.
      versions: of the framework and what else is worth knowing in a report.

    Raises:
      UsageError: for arguments that make no sense, or a folder that cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        framework: str,
        dtype: str,
        run: Mapping[str, Any] | None = None,
        names: Mapping[str, str | Rename] | None = None,
        tolerances: Mapping[str, Tolerance] | None = None,
        versions: Mapping[str, str] | None = None,
    ):
        if not str(framework).strip() or not str(framework).isprintable():
            raise UsageError(f"framework is {framework!r}; allowed: a word, such as 'pytorch'")
        if dtype not in DTYPES:
            raise UsageError(f"dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
        check_declared(tolerances or {})
        self._map, self._dtype = NameMap(names or {}), np.dtype(dtype)
        header = {
            "framework": str(framework),
            "dtype": dtype,
            "run": dict(run or {}),
            "tolerances": {key: asdict(each) for key, each in (tolerances or {}).items()},
            "versions": {"numpy": np.__version__, **(versions or {})},
        }
        try:
            json.dumps(header, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"run or versions: {error}; allowed: values of JSON") from None
        self._writer = Writer(Path(folder), header)
        self._last: int | None = None
        self._first: tuple[int, frozenset[str]] | None = None
        self._closed = False

    def step(self, step: int, tensors: Mapping[str, Any], *, partial: bool = False) -> None:
        """Record a step: it is on disk when this returns, and nothing of it stays in memory.

        Args:
          step: from 0; more than the one recorded before, not necessarily by one.
          tensors: own name -> array, or what NumPy makes an array of. NaN and infinity are
            recorded as they are, and fail the comparison.
          partial: this step leaves out some of the tensors that the first one had.

        Raises:
          UsageError: for a step that goes back; tensors on no rung, missing, unknown to the
            first step, mapped on one name, of no numbers, or of less precision than the side's;
            a folder that cannot be written.
        """
        if self._closed:
            raise UsageError(f"{self._writer.folder}: step {step}: the recorder is closed")
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise UsageError(f"step is {step!r}; allowed: a whole number")
        least = 0 if self._last is None else self._last + 1
        if not least <= step <= LAST_STEP:
            raise UsageError(f"step is {step}; allowed: {least} to {LAST_STEP}")
        if partial and self._first is None:
            raise UsageError(f"step {step}: is partial; allowed: all tensors in the first step")
        found: dict[str, np.ndarray] = {}
        came_from: dict[str, str] = {}
        met = set()
        for own, value in tensors.items():
            if not isinstance(own, str):
                raise UsageError(f"step {step}: a tensor is named {own!r}; allowed: a string")
            row_name, name, row = self._map.find(own)
            if name in found:
                raise UsageError(
                    f"step {step}: {came_from[name]!r} and {own!r} are both named {name!r}; "
                    "allowed: one tensor of a name"
                )
            array = self._array(step, own, name, value)
            found[name] = array if row is None else row.laid_out(array, own)
            came_from[name] = own
            if row_name is not None:
                met.add(row_name)
        self._check_names(step, found, met, partial)
        self._writer.step(int(step), found)
        self._last = int(step)
        if self._first is None:
            self._first = self._last, frozenset(found)

    def close(self) -> None:
        """Close the index."""
        self._closed = True
        self._writer.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _array(self, step: int, own: str, name: str, value: Any) -> np.ndarray:
        try:
            array = np.asarray(value)
        # of frameworks: tensors that still have a gradient, or lie on another device
        except (TypeError, ValueError, RuntimeError) as error:
            told = " ".join(str(error).split())
            raise UsageError(f"step {step}: tensor {own!r} is no array: {told}") from None
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise UsageError(
                f"step {step}: tensor {own!r} holds {array.dtype}; allowed: bool, integers, "
                "float16 to float64"
            )
        narrower = array.dtype.kind == "f" and array.dtype.itemsize < self._dtype.itemsize
        if narrower and rung_of(name) not in ("batch", "decode"):
            raise UsageError(
                f"step {step}: tensor {own!r} is {array.dtype}; allowed in a side of dtype "
                f"{self._dtype}: nothing less precise"
            )
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _check_names(
        self, step: int, found: Mapping[str, Any], met: set[str], partial: bool
    ) -> None:
        if not found:
            raise UsageError(f"step {step}: no tensors; allowed: at least one")
        unused = self._map.unused(met)
        if unused and not partial:
            raise UsageError(f"step {step}: no tensor of the name map's {_listed(unused)}")
        if self._first is None:
            return
        first, names = self._first
        if extra := sorted(found.keys() - names):
            raise UsageError(f"step {step}: has {_listed(extra)}, which step {first} had not")
        if not partial and (missing := sorted(names - found.keys())):
            raise UsageError(
                f"step {step}: lacks {_listed(missing)}, which step {first} had; allowed with "
                "partial=True"
            )


class Trace:
    """Reads a trace.

    Attributes:
      folder: where it lies.
      header: the values of trace.json.
      side: the training that recorded it.
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
        needed = _OWN_HEADER if self.own else _HEADER
        lacking = [name for name in needed if name not in self.header]
        if lacking:
            raise UsageError(f"{folder}/trace.json: lacks {', '.join(lacking)}")
        for name in ("tolerances", "versions") if self.own else ():
            if not isinstance(self.header[name], dict):
                seen = f"{name} is {self.header[name]!r}"
                raise UsageError(f"{folder}/trace.json: {seen}; allowed: an object")
        try:
            self.side = Side.from_header(self.header)
        except UsageError as error:
            raise UsageError(f"{folder}/trace.json: {error}") from None

    @property
    def own(self) -> bool:
        """Return whether a `Recorder` wrote it: a training that is not this project's."""
        return "run" in self.header

    def index(self) -> list[dict[str, Any]]:
        """Return the finished steps: [{"step", "sha256": {tensor: digest}}].

        Raises:
          UsageError: if a line cannot be read.
        """
        return list(self._lines())

    def _lines(self) -> Iterator[dict[str, Any]]:
        path = self.folder / "steps.jsonl"
        number = 0
        try:
            with path.open("rb") as written:
                for number, line in enumerate(written, start=1):  # noqa: B007  told below
                    values = json.loads(line)
                    if type(values["step"]) is not int:
                        raise TypeError
                    yield {"step": values["step"], "sha256": dict(values["sha256"])}
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{path}, line {number}: not a line of a trace's index") from None

    def numbers(self) -> list[int]:
        """Return the numbers of the finished steps, in the order in which they were recorded.

        Raises:
          UsageError: if a line cannot be read.
        """
        return [line["step"] for line in self._lines()]

    def steps(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield (step, tensors) one by one, in the order recorded, checked as `read` does.

        Raises:
          UsageError: if a step is missing, truncated, or not what was written.
        """
        for line in self._lines():
            yield line["step"], self._checked(line["step"], line["sha256"])

    def read(self, step: int) -> dict[str, np.ndarray]:
        """Return the tensors of a step, checked against their hashes.

        Raises:
          UsageError: if the step is missing, truncated, or not what was written.
        """
        if step not in self._hashes:
            self._hashes = {line["step"]: line["sha256"] for line in self._lines()}
        if step not in self._hashes:
            raise UsageError(f"{self.folder}: step {step} was never finished")
        return self._checked(step, self._hashes[step])

    def _checked(self, step: int, recorded: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Return a step's tensors in the order recorded."""
        path = self.folder / step_file(step)
        tensors = _load(path)
        for name in sorted(recorded.keys() | tensors.keys()):
            if name not in tensors or sha256(tensors[name]) != recorded.get(name):
                raise UsageError(f"{path}: tensor {name!r} is not what was recorded")
        return {name: tensors[name] for name in recorded}

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


def _listed(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


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
