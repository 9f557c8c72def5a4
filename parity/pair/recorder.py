"""Records a training of any kind, so that it can be compared with another."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.names import Key, NameMap, Rename
from parity.base.errors import UsageError
from parity.base.locks import only_writer
from parity.base.text import some_of
from parity.trace.folder import DTYPES, FORMAT, LAST_STEP, WITH_REDUCED
from parity.trace.header import check_sources
from parity.trace.reduced import FULL, Detail, check_detail
from parity.trace.rungs import rung_of
from parity.trace.tolerances import Tolerance, check_declared
from parity.trace.writer import Writer


class Recorder:
    """Records a training of your own, to be compared with its port; see parity/trace/TRACE.md.

        with Recorder("runs/mine", framework="pytorch", dtype="float32") as recorder:
            recorder.step(0, {"forward/logits": logits, "weight/fc1/kernel": kernel})

    The name of each tensor begins with its rung. Within a rung, record tensors in the order in
    which they are computed: a report names the first one that differs.

    Args:
      folder: where to write; it is made if it is missing, and a trace in it is replaced.
      framework: what reports call this side.
      dtype: the precision in which the side computes, "float64" or "float32".
      run: settings that both sides must have in common, as plain values.
      names: name in this side's code -> shared name, or a `Rename` where the layout differs
        too. Of several tensors that become one, the key is a tuple.
      tolerances: rung, or pattern of names -> how much the sides may differ, with the reason.
      versions: name -> version, of the framework and whatever else a report should show.
      facts: what else is worth knowing, and need not be the same on both sides, as plain
        values.
      sources: name of a tensor in this side's code, or the beginning of several up to a slash
        behind the rung -> the line that made it, such as "net.py:12 (Net)", for the first lines
        of a report.
      detail: how much of each tensor is recorded: "full"; "statistics": min, max, mean, norm
        and a checksum; "sample": these and up to 1,024 elements, the same ones in every trace.
        Or pattern of shared names -> one of these: the first that fits counts, and a tensor
        that none fits is recorded in full.
      same_tensors: whether every step must hold the tensors of the first one.

    Raises:
      UsageError: for an argument that is not allowed, or a folder that cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        framework: str,
        dtype: str,
        run: Mapping[str, Any] | None = None,
        names: Mapping[Key, str | Rename] | None = None,
        tolerances: Mapping[str, Tolerance] | None = None,
        versions: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
        detail: Detail = FULL,
        same_tensors: bool = True,
    ):
        given = (("run", run), ("names", names), ("versions", versions), ("facts", facts))
        mapping: Any
        for name, mapping in given:
            if mapping is not None and not isinstance(mapping, Mapping):
                raise UsageError(f"{name} is {mapping!r}; allowed: a mapping")
        if not (_is_text(framework) and framework.strip() and framework.isprintable()):
            raise UsageError(f"framework is {framework!r}; allowed: a word, such as 'pytorch'")
        if dtype not in DTYPES:
            raise UsageError(f"dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
        check_declared(tolerances or {})
        check_sources(sources or {})
        check_detail(detail)
        self._detail = detail
        self._map, self._dtype = NameMap(names or {}), np.dtype(dtype)
        header = {
            "format": FORMAT if detail == FULL else WITH_REDUCED,
            "framework": framework,
            "dtype": dtype,
            "run": dict(run or {}),
            "tolerances": {key: asdict(each) for key, each in (tolerances or {}).items()},
            "versions": {"numpy": np.__version__, **(versions or {})},
            "facts": dict(facts or {}),
            "sources": self._map.in_shared_names(sources or {}),
        }
        try:
            json.dumps(header, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"run or versions: {error}; allowed: values of JSON") from None
        self._same_tensors = same_tensors
        with ExitStack() as stack:
            # another training's recording would remove this one's steps
            stack.enter_context(only_writer(Path(folder), "folder"))
            self._writer = Writer(Path(folder), header)
            self._locked = stack.pop_all()
        self._last: int | None = None
        self._first: tuple[int, frozenset[str]] | None = None
        self._closed = False

    def step(self, step: int, tensors: Mapping[str, Any], *, partial: bool = False) -> None:
        """Record a step: it is on disk when this returns, and no longer in memory.

        Args:
          step: the number of the step, from 0; greater than the one recorded before it, not
            necessarily by one.
          tensors: name in this side's code -> array, or anything that NumPy makes an array of.
            NaN and infinity are recorded as they are, and fail the comparison.
          partial: whether this step may leave out tensors that the first one had.

        Raises:
          UsageError: for a step that is not after the last one; for a tensor that is on no
            rung, missing, not in the first step, mapped to the name of another, not numeric, or
            less precise than the side's dtype; for a folder that cannot be written.
        """
        if self._closed:
            raise UsageError(f"{self._writer.folder}: step {step}: the recorder is closed")
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise UsageError(f"step is {step!r}; allowed: a whole number")
        least = 0 if self._last is None else self._last + 1
        if not least <= step <= LAST_STEP:
            raise UsageError(f"step is {step}; allowed: {least} to {LAST_STEP}")
        if partial and self._first is None and self._same_tensors:
            raise UsageError(f"step {step}: is partial; allowed: all tensors in the first step")
        for given in tensors:
            if not isinstance(given, str):
                raise UsageError(f"step {step}: a tensor is named {given!r}; allowed: a string")
        try:
            sources = self._map.sources(tensors)
        except UsageError as error:
            raise UsageError(f"step {step}: {error}") from None
        found: dict[str, np.ndarray] = {}
        for name, source in sources.items():
            arrays = {
                given: self._array(step, given, name, tensors[given]) for given in source.given
            }
            found[name] = _pairs(source.value(arrays))
        self._check_names(step, found, self._map.unused(sources), partial)
        self._writer.step(int(step), found, self._detail)
        self._last = int(step)
        if self._first is None:
            self._first = self._last, frozenset(found)

    def rewrite_header(self) -> None:
        """Write the header again, whose `facts` have changed."""
        self._writer.write_header()

    def close(self, *, finished: bool = True) -> None:
        """Close the index.

        Args:
          finished: whether there was no more to record; if not, the comparison says that the
            trace was cut.
        """
        self._closed = True
        with self._locked:
            self._writer.close(finished=finished)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close(finished=exception[0] is None)

    def _array(self, step: int, given: str, name: str, value: Any) -> np.ndarray:
        try:
            array = savable(value)
        # frameworks raise these for a tensor that requires a gradient, or is on another device
        except (TypeError, ValueError, RuntimeError) as error:
            message = " ".join(str(error).split())
            raise UsageError(f"step {step}: tensor {given!r} is no array: {message}") from None
        if not is_number(array.dtype):
            raise UsageError(
                f"step {step}: tensor {given!r} holds {array.dtype}; allowed: bool, integers, "
                "float8 to float64, complex64, complex128"
            )
        if is_narrower(array.dtype, self._dtype) and rung_of(name) not in ("batch", "decode"):
            raise UsageError(
                f"step {step}: tensor {given!r} is {array.dtype}; allowed in a side of dtype "
                f"{self._dtype}: nothing less precise"
            )
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _check_names(
        self, step: int, found: Mapping[str, Any], unused: list[str], partial: bool
    ) -> None:
        if not found:
            raise UsageError(f"step {step}: no tensors; allowed: at least one")
        if unused and not partial:
            raise UsageError(f"step {step}: no tensor of the name map's {some_of(unused)}")
        if self._first is None or not self._same_tensors:
            return
        first, names = self._first
        if extra := sorted(found.keys() - names):
            raise UsageError(f"step {step}: has {some_of(extra)}, which step {first} had not")
        if not partial and (missing := sorted(names - found.keys())):
            raise UsageError(
                f"step {step}: lacks {some_of(missing)}, which step {first} had; allowed with "
                "partial=True"
            )


def savable(value: Any) -> np.ndarray:
    """Return an array of NumPy's own types: others (bfloat16, float8) as float32, exactly."""
    array = np.asarray(value)
    if array.dtype.isbuiltin != 2:
        return array
    return array.astype(np.int8 if "int" in array.dtype.name else np.float32)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors of a type can be recorded."""
    return (dtype.kind in "biuf" and dtype.itemsize <= 8) or dtype.char in "FD"


def is_narrower(dtype: np.dtype[Any], side: np.dtype[Any]) -> bool:
    """Return whether a type of real or complex numbers is less precise than a side's."""
    return dtype.kind in "fc" and np.finfo(dtype).eps > np.finfo(side).eps


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _pairs(array: np.ndarray) -> np.ndarray:
    """Return complex numbers as a last axis of real and imaginary part."""
    if array.dtype.kind != "c":
        return array
    return np.stack([array.real, array.imag], axis=-1)
