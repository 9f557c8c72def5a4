"""Reads a trace: all steps, or one."""

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from parity.base.errors import UsageError
from parity.base.files import open_regular, read_file, reason
from parity.base.text import parse_json
from parity.trace.folder import DIGESTS, LAST_STEP, RECORDING, step_file
from parity.trace.header import check_header
from parity.trace.reduced import Reduced, read_reduced

# (rank, tensor) of two ranks of one training that should hold the same and do not
Unequal = tuple[tuple[int, np.ndarray], tuple[int, np.ndarray]]


class Trace:
    """Reads a trace.

    Attributes:
      folder: the folder that holds it.
      header: the values of trace.json.
      side: the training that recorded it.
    """

    def __init__(self, folder: str | Path):
        """Open a recorded trace.

        Raises:
          UsageError: if the folder holds no trace, or one of another format.
        """
        self.folder = folder = Path(folder)
        self._lines: dict[int, dict[str, Any]] = {}
        try:
            content = read_file(folder / "trace.json")
        except FileNotFoundError:
            raise UsageError(
                f"{folder}: no trace.json here; not a recorded trace{_how_to_record(folder)}"
            ) from None
        except OSError as error:
            raise UsageError(f"{folder}/trace.json: cannot be read: {reason(error)}") from None
        try:
            self.header = parse_json(content)
            self.side = check_header(self.header)
        except ValueError as error:
            raise UsageError(f"{folder}/trace.json: cannot be read: {error}") from None
        except UsageError as error:
            raise UsageError(f"{folder}/trace.json: {error}") from None

    @property
    def of_recorder(self) -> bool:
        """Return whether a `Recorder` wrote it: a user's training, not this project's."""
        return "run" in self.header

    @property
    def sources(self) -> dict[str, str]:
        """Return name of a tensor, or first parts of it -> the lines of code that made it."""
        return dict(self.header.get("sources", {}))

    @property
    def whole(self) -> "Trace":
        """Return the trace that this is a part or a view of."""
        return self

    def over(self, view: Callable[["Trace"], "Trace"]) -> "Trace":
        """Return a view of the trace; of several ranks put together, one of each of them."""
        return view(self)

    def unequal(self, step: int) -> Mapping[str, Unequal]:
        """Return name -> ranks that differ, of a step that was read last; none of one rank."""
        return {}

    def cut(self) -> str:
        """Return where a trace ends that its writer did not finish; empty if it is whole.

        Raises:
          UsageError: if a line of the index cannot be read.
        """
        numbers = self.numbers()
        planned = self.header.get("steps")  # a Recorder does not know how many will come
        fewer = type(planned) is int and len(numbers) < planned and not self.of_recorder
        if not fewer and not (self.folder / RECORDING).exists():
            return ""
        if not numbers:
            return "cut before its first step was whole"
        of_all = f" ({len(numbers)} of {planned} steps)" if type(planned) is int else ""
        return f"cut after step {numbers[-1]}{of_all}"

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the finished steps: {"step", "kind", "digests", "reduced"}.

        The last two are tensor -> digest, and tensor -> what stands for it, as plain values. A
        line that is cut off, at the end of the index, does not count.

        Raises:
          UsageError: if one cannot be read.
        """
        path = self.folder / "steps.jsonl"
        number, line, last = 0, b"", -1
        try:
            with open_regular(path) as written:
                for number, line in enumerate(written, start=1):
                    values = parse_json(line)
                    step = values["step"]
                    (kind,) = DIGESTS.keys() & values.keys()
                    digests, reduced = dict(values[kind]), dict(values.get("reduced", {}))
                    if type(step) is not int:
                        raise TypeError
                    if not last < step <= LAST_STEP:
                        told = f"{path}, line {number}: step is {shortened(step)}"
                        raise UsageError(f"{told}; allowed: {last + 1} to {LAST_STEP}")
                    texts = all(isinstance(each, str) for each in digests.values())
                    if not texts or reduced.keys() - digests.keys():
                        raise TypeError
                    last = step
                    yield {"step": step, "kind": kind, "digests": digests, "reduced": reduced}
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            if line.endswith(b"\n"):
                told = f"{path}, line {number}: not a line of a trace's index"
                raise UsageError(told) from None

    def numbers(self) -> list[int]:
        """Return the numbers of the finished steps, in the order in which they were recorded.

        Raises:
          UsageError: if a line cannot be read.
        """
        return [line["step"] for line in self.lines()]

    def steps(
        self, chosen: Container[int] | None = None
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield (step, tensors) one by one, in the order recorded, checked as `read` does.

        Tensors that were not recorded whole are left out; `everything` has them, too.

        Args:
          chosen: the steps that are read; None: all.

        Raises:
          UsageError: if a step is missing, truncated, or not what was written.
        """
        for step, tensors in self.everything(chosen):
            yield step, _whole(tensors)

    def everything(
        self, chosen: Container[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what `steps` does, with a `Reduced` for each tensor that is not there whole."""
        for line in self.lines():
            if chosen is None or line["step"] in chosen:
                yield line["step"], self._checked(line)

    def read(self, step: int) -> dict[str, np.ndarray]:
        """Return the whole tensors of a step, checked against their digests.

        Raises:
          UsageError: if the step is missing, truncated, or not what was written.
        """
        if step not in self._lines:
            self._lines = {line["step"]: line for line in self.lines()}
        if step not in self._lines:
            raise UsageError(f"{self.folder}: step {step} was never finished")
        return _whole(self._checked(self._lines[step]))

    def read_all(self, step: int) -> dict[str, np.ndarray]:
        """Return what `read` does, of a step whose tensors are all whole.

        Raises:
          UsageError: also if one is not.
        """
        ((_, tensors),) = self.everything([step])
        for name, each in tensors.items():
            if isinstance(each, Reduced):
                raise UsageError(
                    f"{self.folder}: {name} is not recorded whole in step {step}, which is "
                    "needed here; allowed: detail full"
                )
        return tensors

    def _checked(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of a line's step in the order recorded."""
        path = self.folder / step_file(line["step"])
        recorded, digest = line["digests"], DIGESTS[line["kind"]]
        tensors: dict[str, Any] = dict(read_step(path))
        try:
            for name, values in line["reduced"].items():
                tensors[name] = read_reduced(values, recorded[name], tensors.get(name))
        except (KeyError, OverflowError, TypeError, ValueError):
            raise UsageError(f"{path}: tensor {name!r} is not what was recorded") from None
        for name in sorted(recorded.keys() | tensors.keys()):
            if name in line["reduced"]:
                continue
            if name not in tensors or digest(tensors[name]) != recorded.get(name):
                raise UsageError(f"{path}: tensor {name!r} is not what was recorded")
        return {name: tensors[name] for name in recorded}

    def number(self, step: int, name: str) -> float | None:
        """Return a tensor of one element without reading the rest of its step, unchecked.

        None if the step has no such tensor.

        Raises:
          UsageError: if the step is missing or truncated.
        """
        with _opened(self.folder / step_file(step)) as file:
            array = _tensor(file, name) if name in file.keys() else np.zeros(0)  # noqa: SIM118
            return float(array.reshape(())) if array.size == 1 else None


class View(Trace):
    """A trace seen in another way; what a subclass does not say is the trace's own."""

    def __init__(self, trace: Trace):
        self.folder, self.header, self.side = trace.folder, dict(trace.header), trace.side
        self._whole = trace

    @property
    def whole(self) -> Trace:
        return self._whole

    @property
    def sources(self) -> dict[str, str]:
        return self._whole.sources

    def unequal(self, step: int) -> Mapping[str, Unequal]:
        return self._whole.unequal(step)

    def cut(self) -> str:
        return self._whole.cut()

    def lines(self) -> Iterator[dict[str, Any]]:
        return self._whole.lines()

    def read(self, step: int) -> dict[str, np.ndarray]:
        return next(tensors for _, tensors in self.steps([step]))

    def number(self, step: int, name: str) -> float | None:
        return self._whole.number(step, name)


def _whole(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: each for name, each in tensors.items() if not isinstance(each, Reduced)}


def _how_to_record(folder: Path) -> str:
    """Say how a trace comes about, where a folder is another result of a training."""
    if not any((folder / name).exists() for name in _RESULTS):
        return ""
    return (
        "; train.py records one with --trace, and parity run keeps its own with --keep-traces"
    )


# what the folder of a training holds, and that of `parity run`
_RESULTS = ("losses.csv", "checkpoints", "config.yaml", "report.json", "traces")


def read_step(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a step's file, which are not checked against their hashes.

    Raises:
      UsageError: if it is missing or truncated.
    """
    with _opened(path) as file:
        return {name: _tensor(file, name) for name in file.keys()}  # noqa: SIM118


def _tensor(file: Any, name: str) -> np.ndarray:
    """Return a tensor of an open step.

    Raises:
      TypeError: if it is of a type that no recording has; some libraries add such to NumPy.
    """
    array: np.ndarray = file.get_tensor(name)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} is of type {array.dtype}")
    return array


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a step's file; an error of any kind while it is read is one of usage."""
    try:
        with open_regular(path), safe_open(path, "numpy") as file:
            yield file
    # AttributeError and others: a type that NumPy has not
    except (OSError, SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read as a step of a trace: {why}") from None
