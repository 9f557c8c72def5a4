"""The steps of a training that is watched, on their way into a trace."""

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.names import Key, Rename
from parity.base.errors import UsageError
from parity.base.machine import usable_cores
from parity.pair.perturbation import asked_for
from parity.pair.recorder import Recorder, is_narrower, is_number, savable
from parity.trace.ranks import rank_folder
from parity.trace.reduced import FULL, Detail
from parity.trace.rungs import RUNGS, fits
from parity.trace.tolerances import Tolerance
from parity.watch.modules import sources

_NO_STEP = "the optimizer made none; allowed: the one that the loop trains with"
_DOUBLE = {"float64", "complex128"}


class Recording:
    """Collects what a framework shows of a step, and records it when the step ends.

    The keyword arguments from `run` on are those of every `watch`.

    Args:
      folder: where to write, as for `Recorder`.
      framework: what reports call this side, unless the user says otherwise with `side`.
      dtypes: the names of the types of the model's parameters. The side's dtype is float64 if
        they all are, and otherwise float32. What is less precise is recorded in that type,
        which holds the same values.
      versions, facts: for the header.
      run: settings that both sides must have in common, as plain values.
      names: name in this side's code -> shared name, or a `Rename`, as for `Recorder`.
      tolerances: rung, or pattern of names -> how much the sides may differ, likewise.
      steps: which steps are recorded: all (None), every k-th (a number), those of a range.
      modules: patterns of names of modules, such as "encoder.*"; only their outputs and
        activation gradients are recorded. None: all.
      rungs: first parts of names, such as "gradient"; only they are recorded. None: all.
      detail: how much of each tensor is recorded, as for `Recorder`.
      side: what reports call this side.
      ranks: of which rank of how many this process is; each writes a folder of its own, such as
        `rank-0`, in `folder`. None: of one.

    Attributes:
      step: the number of the step that is under way.
      active: whether it is recorded.
      began: whether a step was recorded.
      perturbation: how the numbers of the training are moved; None: they are not.
      is_given: whether outputs and gradients of another training take the place of its own.

    Raises:
      UsageError: for an argument that is not allowed, or a folder that cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        framework: str,
        dtypes: Iterable[str],
        versions: Mapping[str, str],
        facts: Mapping[str, Any],
        *,
        ranks: tuple[int, int] | None = None,
        run: Mapping[str, Any] | None = None,
        names: Mapping[Key, str | Rename] | None = None,
        tolerances: Mapping[str, Tolerance] | None = None,
        steps: int | range | None = None,
        modules: Iterable[str] | None = None,
        rungs: Iterable[str] | None = None,
        detail: Detail = FULL,
        side: str | None = None,
    ):
        if steps is not None and not isinstance(steps, range) and not _whole(steps):
            raise UsageError(f"steps is {steps!r}; allowed: a number from 1, a range, or None")
        self._steps = steps
        self._modules = None if modules is None else _texts("modules", modules)
        known = [str(each["name"]) for each in facts["modules"]]
        for pattern in self._modules or ():
            if not any(fits(name, pattern) for name in known):
                raise UsageError(f"modules holds {pattern!r}; allowed: {', '.join(known)}")
        self._rungs = None if rungs is None else _texts("rungs", rungs)
        for rung in self._rungs or ():
            if rung not in RUNGS:
                raise UsageError(f"rungs holds {rung!r}; allowed: {', '.join(RUNGS)}")
        kinds = set(dtypes)
        self._dtype = np.dtype("float64" if kinds and kinds <= _DOUBLE else "float32")
        asked = asked_for(Path(folder))
        folder, self.perturbation = asked.folder, asked.perturbation
        self.is_given = bool(asked.given)
        self._given, self._given_step = asked.given, asked.step
        rank, count = _checked((0, 1) if ranks is None else ranks)
        if count > 1 and detail != FULL:
            raise UsageError(f"detail is {detail!r}; allowed on several ranks: {FULL}")
        of_ranks = {"rank": rank, "ranks": count} if count > 1 else {}
        self._recorder = Recorder(
            rank_folder(folder, rank, count),
            framework=framework if side is None else side,
            dtype=self._dtype.name,
            run=run,
            names=names,
            tolerances=tolerances,
            versions={"python": platform.python_version(), **versions},
            facts={"parameters": sorted(kinds), "cores": usable_cores(), **of_ranks, **facts},
            sources=sources(facts["modules"]),
            detail=detail,
            same_tensors=False,
        )
        self._told: list[dict[str, Any]] = facts["modules"]  # the header's own list
        self.step, self.began = 0, False
        self._found: dict[str, np.ndarray] = {}
        self._calls: Counter[str] = Counter()
        self.active = self._chosen()

    def wants(self, rung: str, module: str | None = None) -> bool:
        """Return whether tensors of a rung, or of a module on it, are recorded in this step."""
        if not self.active or (self._rungs is not None and rung not in self._rungs):
            return False
        patterns = self._modules
        if module is None or patterns is None:
            return True
        return fits(module, *patterns)

    def describe(self, name: str, kind: str, settings: Mapping[str, Any]) -> None:
        """Say what a module is that was not known when the watch began."""
        found = next((each for each in self._told if each["name"] == name), None)
        if found is None:
            self._told.append(found := {"name": name, "parameters": {}, "source": ""})
        found.update(kind=kind, settings=settings)
        self._recorder.rewrite_header()

    def call(self, name: str) -> str:
        """Return the name of a module's next call in this step: fc, fc#1, fc#2 ..."""
        number = self._calls[name]
        self._calls[name] += 1
        return f"{name}#{number}" if number else name

    def add(self, rung: str, name: str, value: Any, *, replace: bool = False) -> None:
        """Keep a tensor of the step; one that cannot be compared (text, objects) is left out.

        Args:
          value: anything that NumPy makes an array of, which nobody changes until the step
            ends.
          replace: whether it takes the place of one of the same name; otherwise it gets a
            number, as a further call does.
        """
        array = savable(value)
        if not is_number(array.dtype):
            return
        if is_narrower(array.dtype, self._dtype):
            array = array.astype(np.result_type(array.dtype, self._dtype))
        full = whole = f"{rung}/{name}"
        number = 0
        while not replace and whole in self._found:
            number += 1
            whole = f"{full}#{number}"
        self._found[whole] = array

    def given(self, rung: str, name: str) -> np.ndarray | None:
        """Return what takes the place of a module's output, or its gradient, in this step."""
        return self._given.get(f"{rung}/{name}") if self.step == self._given_step else None

    def end_step(self) -> None:
        """Record the step, if it is one of those chosen, and begin the next.

        Raises:
          UsageError: if the folder cannot be written, or the name map does not fit.
        """
        if self.active and self._found:
            some = self.began or self._rungs is not None or self._modules is not None
            self._recorder.step(self.step, self._found, partial=some)
            self.began = True
        self._found.clear()
        self._calls.clear()
        self.step += 1
        self.active = self._chosen()

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._recorder.close(finished=kind is None)
        if kind is None and not self.began:
            why = f"`steps` chooses none of {self.step}" if self.step else _NO_STEP
            raise UsageError(f"no step was recorded: {why}")

    def _chosen(self) -> bool:
        if self._steps is None:
            return True
        if isinstance(self._steps, range):
            return self.step in self._steps
        return self.step % self._steps == 0


def _checked(ranks: Any) -> tuple[int, int]:
    """Return which rank this process is, and of how many."""
    whole = isinstance(ranks, tuple) and [type(each) for each in ranks] == [int, int]
    if not whole or not 0 <= ranks[0] < ranks[1]:
        raise UsageError(f"ranks is {ranks!r}; allowed: a rank, from 0, and their number")
    return ranks[0], ranks[1]


def leaves(value: Any, is_tensor: type | tuple[type, ...]) -> Iterable[tuple[str, Any]]:
    """Yield (path, tensor) for the tensors in what a module was given or returned.

    Looks into tuples, lists, mappings, named tuples (a packed sequence is one) and dataclasses;
    the path is made of places and names of fields, with a slash before each.
    """
    if isinstance(value, is_tensor):
        yield "", value
        return
    found: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        found = value.items()
    elif hasattr(value, "_asdict"):
        found = value._asdict().items()
    elif isinstance(value, (tuple, list)):
        found = enumerate(value)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        found = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
    for key, part in found:
        for path, tensor in leaves(part, is_tensor):
            yield f"/{key}{path}", tensor


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _texts(name: str, values: Any) -> list[str]:
    if isinstance(values, str) or not all(isinstance(each, str) for each in values):
        raise UsageError(f"{name} is {values!r}; allowed: a list of texts")
    return list(values)
