"""The traces of the ranks of one training, put together as that of one process."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.folder import clear_trace
from parity.trace.reader import Trace, Unequal
from parity.trace.reduced import Reduced

# Names that begin so hold a batch's rows or means over them; all else is alike on all ranks.
_OF_ROWS = ("batch", "forward", "loss", "activation_gradient")
_FOLDER = re.compile(r"rank-(\d{1,6})")
Tensors = Mapping[str, np.ndarray]


def rank_folder(folder: str | Path, rank: int, ranks: int) -> Path:
    """Return where a rank writes its trace: the folder itself if there is but one.

    Rank 0 removes the traces of ranks that an earlier training had beyond these.

    Raises:
      UsageError: if the folder holds a trace of one process, or what is removed is no trace.
    """
    folder = Path(folder)
    if ranks == 1:
        return folder
    if (folder / "trace.json").exists():
        raise UsageError(f"{folder}: holds the trace of one process; allowed: a new name")
    for number, old in _folders(folder) if rank == 0 else ():
        if number >= ranks:
            clear_trace(old)
    return folder / f"rank-{rank}"


def open_side(folder: Path) -> Trace:
    """Open a trace, or a folder of those of all ranks of one training.

    Raises:
      UsageError: if the folder holds neither, or a rank is missing.
    """
    found = _folders(folder)
    if not found or (folder / "trace.json").exists():
        return Trace(folder)
    traces = [Trace(each) for _, each in found]
    counts = [trace.header.get("facts", {}).get("ranks") for trace in traces]
    if any(each != len(traces) for each in counts) or [number for number, _ in found] != list(
        range(len(traces))
    ):
        there = ", ".join(str(number) for number, _ in found)
        told = " or ".join(sorted(set(map(shortened, counts))))
        raise UsageError(
            f"{folder}: has ranks {there} of a training with {told}; allowed: all ranks"
        )
    for trace in traces[1:]:
        for key in ("framework", "dtype", "run", "tolerances"):
            if trace.header.get(key) != traces[0].header.get(key):
                raise UsageError(f"{trace.folder}: {key} is not that of rank 0")
    return Ranks(folder, traces)


def join_ranks(traces: Sequence[Trace]) -> None:
    """Tell the ranks of one side which trace of one process they are compared with."""
    for one, other in (traces, traces[::-1]):
        if isinstance(one, Ranks) and not isinstance(other, Ranks):
            one.partner = other


class Ranks(Trace):
    """The ranks of one data-parallel training, as one process would have recorded it.

    Rows of inputs and outputs are put together; losses, and whatever else is a mean over the
    rows, are averaged. Weights, the optimiser's state and the gradients that reach the
    optimiser must be equal to the bit on all ranks: `unequal` has those that are not.

    Args:
      folder: the folder of the ranks' folders.
      traces: those of the ranks, in order.

    Attributes:
      partner: the trace of one process with which this is compared, if it is: its shapes say
        which axis has the rows, and its batch in which order they are.
    """

    def __init__(self, folder: Path, traces: Sequence[Trace]):
        self.folder, self._ranks = folder, traces
        self.header, self.side = dict(traces[0].header), traces[0].side
        self.partner: Trace | None = None
        self._clipped: set[str] | None = None  # parameters whose gradient the partner clips
        self._shapes: dict[str, tuple[int, ...] | None] = {}  # of the partner's tensors
        # whether the ranks' rows follow each other in the partner's batch
        self._in_order = True
        self._unequal: tuple[int, dict[str, Unequal]] = -1, {}
        facts = self.header.get("facts", {})
        facts = facts if isinstance(facts, dict) else {}
        # the loss is the ranks' sum, divided by this: their mean, unless they say otherwise
        self._divisor = 1 if facts.get("loss") == "sum" else len(traces)
        buffers = facts.get("buffers")
        # each rank's own, such as running statistics; rank 0's are those that count
        self._buffers = set(map(str, buffers)) if isinstance(buffers, list) else set()

    @property
    def sources(self) -> dict[str, str]:
        return self._ranks[0].sources

    def over(self, view: Callable[[Trace], Trace]) -> Trace:
        return Ranks(self.folder, [view(trace) for trace in self._ranks])

    def number(self, step: int, name: str) -> float | None:
        found = [trace.number(step, name) for trace in self._ranks]
        known = [each for each in found if each is not None]
        return sum(known) / self._divisor if len(known) == len(found) else None

    def cut(self) -> str:
        found = {rank: trace.cut() for rank, trace in enumerate(self._ranks)}
        return ", ".join(f"rank {rank} {where}" for rank, where in found.items() if where)

    def unequal(self, step: int) -> Mapping[str, Unequal]:
        return self._unequal[1] if self._unequal[0] == step else {}

    def lines(self) -> Iterator[dict[str, Any]]:
        counts = {rank: len(trace.numbers()) for rank, trace in enumerate(self._ranks)}
        for rank, count in counts.items():
            # one rank may go on where another was cut
            if count < max(counts.values()) and not self._ranks[rank].cut():
                told = f"rank {rank} recorded {count} steps of {max(counts.values())}"
                raise UsageError(f"{self.folder}: {told}; allowed: the same steps")
        for lines in zip(*(trace.lines() for trace in self._ranks), strict=False):
            self._check_step([line["step"] for line in lines])
            names = self._names([line["digests"] for line in lines])
            yield {"step": lines[0]["step"], "kind": "", "digests": dict.fromkeys(names, "")}

    def everything(
        self, chosen: Container[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for found in zip(*(trace.everything(chosen) for trace in self._ranks), strict=False):
            self._check_step([step for step, _ in found])
            step, ranks = found[0][0], [tensors for _, tensors in found]
            for name in (n for each in ranks for n in each if isinstance(each[n], Reduced)):
                raise UsageError(
                    f"{self.folder}: {name} is not recorded whole, and ranks cannot be put "
                    "together from statistics; allowed: detail full"
                )
            yield step, self._joined(step, ranks)

    def read(self, step: int) -> dict[str, np.ndarray]:
        return next(tensors for _, tensors in self.steps([step]))

    def _check_step(self, steps: Sequence[int]) -> None:
        for rank, step in enumerate(steps):
            if step != steps[0]:
                told = f"rank {rank} recorded step {step} where rank 0 recorded {steps[0]}"
                raise UsageError(f"{self.folder}: {told}; allowed: the same steps")

    def _names(self, ranks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int | None, str]]:
        """Return name -> the rank whose tensor it is (None: of all), and its name there.

        Where the partner does not clip, what the loop made of a rank's gradient is the mean
        over the ranks, which the loop computed itself: it counts as the gradient.
        """
        found: dict[str, tuple[int | None, str]] = {}
        for rank, names in enumerate(ranks):
            for name in names:
                if all(name in each for each in ranks):
                    found[name] = None, name
                else:
                    found[f"{name} (rank {rank})"] = rank, name
        for name in [each for each in found if each.startswith("clipped_gradient/")]:
            plain = name.removeprefix("clipped_")
            if plain in found and not self._clips(name):
                found[plain] = found.pop(name)
        return found

    def _clips(self, name: str) -> bool:
        if self.partner is None:
            return True
        if self._clipped is None:
            lines = self.partner.lines()
            every = {each for line in lines for each in line["digests"]}
            self._clipped = {each for each in every if each.startswith("clipped_gradient/")}
        return name in self._clipped

    def _joined(self, step: int, ranks: Sequence[Tensors]) -> dict[str, np.ndarray]:
        """Return the tensors of a step as one process would have recorded them."""
        names = self._names(ranks)
        partner = self._partner_step(step, names)
        # before the loop averages gradients by itself, none is the same on all ranks
        averaged = any(
            rank is None and _are_reduced([tensors[own] for tensors in ranks])
            for name, (rank, own) in names.items()
            if name.startswith("gradient/")
        )
        self._unequal = step, {}
        found: dict[str, np.ndarray] = {}
        axes: dict[str, int] = {}  # of the rows
        for name, (rank, own) in names.items():
            if rank is not None:
                found[name] = ranks[rank][own]
                continue
            arrays = [tensors[own] for tensors in ranks]
            kind, _, rest = name.partition("/")
            axis = _row_axis(arrays, self._shapes.get(name)) if kind in _OF_ROWS else None
            local = kind == "gradient" and f"clipped_{name}" in names and not averaged
            if axis is not None:
                axes[name] = axis
                found[name] = np.concatenate(arrays, axis)
                if kind == "activation_gradient":
                    found[name] = found[name] / self._divisor
            elif local or (kind in _OF_ROWS[1:] and _are_means(arrays)):
                divisor = len(ranks) if kind == "forward" else self._divisor
                found[name] = np.sum(arrays, axis=0, dtype=arrays[0].dtype) / divisor
            else:
                found[name] = arrays[0]
                if kind != "weight" or rest not in self._buffers:
                    self._unequal[1].update(_unequal(name, arrays))
        if partner:
            self._sort_rows(found, axes, partner)
        return found

    def _partner_step(self, step: int, names: Iterable[str]) -> Tensors:
        """Return the partner's step if it has something new to say; else nothing."""
        known = self._in_order and self._shapes.keys() >= set(names)
        if self.partner is None or known:
            return {}
        tensors = self.partner.read(step)
        for name in names:
            self._shapes[name] = tensors[name].shape if name in tensors else None
        return tensors

    def _sort_rows(
        self, found: dict[str, np.ndarray], axes: Mapping[str, int], partner: Tensors
    ) -> None:
        """Bring rows into the order that they have in the partner's batch, if it has the same.

        Samplers deal rows out in turn: rank 0 of two then has the first, the third and so on.
        """
        calls: dict[str, list[str]] = {}  # number of a micro-batch -> what the model was given
        for name in axes:
            if name.startswith("batch/") and name in partner:
                calls.setdefault(name.partition("#")[2], []).append(name)
        orders = {}
        for call, names in calls.items():
            order = _order(*([(each[n], axes[n]) for n in names] for each in (found, partner)))
            if order is not None:
                orders[call] = order
        self._in_order = not orders
        for name, axis in axes.items():
            order = orders.get(name.partition("#")[2], orders.get(""))
            if order is not None:
                found[name] = _sorted(found[name], axis, order)


def _folders(folder: Path) -> list[tuple[int, Path]]:
    """Return (rank, folder) of the ranks' folders in a folder."""
    found = {path: _FOLDER.fullmatch(path.name) for path in folder.glob("rank-*")}
    return sorted((int(match[1]), path) for path, match in found.items() if match)


def _row_axis(arrays: Sequence[np.ndarray], shape: tuple[int, ...] | None) -> int | None:
    """Return the axis on which the ranks' shapes add up to that of one process.

    Args:
      shape: that of one process; None if unknown: then it is the first axis.

    Returns:
      The axis; None if the tensor has no rows.
    """
    shapes = [each.shape for each in arrays]
    if shapes[0] == () or all(each == shape for each in shapes):
        return None
    for axis in range(len(shapes[0])):
        total = sum(each[axis] for each in shapes if len(each) > axis)
        whole = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
        rest = {each[:axis] + each[axis + 1 :] for each in shapes}
        if len(rest) == 1 and shape in (None, whole):
            return axis
    return 0 if len({each[1:] for each in shapes}) == 1 else None


def _are_means(arrays: Sequence[np.ndarray]) -> bool:
    return arrays[0].dtype.kind == "f" and len({each.shape for each in arrays}) == 1


def _are_reduced(arrays: Sequence[np.ndarray]) -> bool:
    return bool(arrays[0].any()) and all(np.array_equal(arrays[0], each) for each in arrays)


def _unequal(name: str, arrays: Sequence[np.ndarray]) -> dict[str, Unequal]:
    """Return name -> the first rank that is not as most are, if there is one.

    Of two ranks, the second is said to differ.
    """
    alike = [[np.array_equal(a, b) for b in arrays] for a in arrays]
    most = max(range(len(arrays)), key=lambda rank: sum(alike[rank]))
    if all(alike[most]):
        return {}
    wrong = alike[most].index(False)
    return {name: ((most, arrays[most]), (wrong, arrays[wrong]))}


def _order(
    mine: Sequence[tuple[np.ndarray, int]], theirs: Sequence[tuple[np.ndarray, int]]
) -> list[int] | None:
    """Return the places of the second side's rows among the first side's.

    Returns:
      None if the rows are in the same order, or are not the same.
    """
    own, other = map(_rows, (mine, theirs))
    places: dict[tuple[bytes, ...], list[int]] = {}
    for place in reversed(range(len(own))):
        places.setdefault(own[place], []).append(place)
    if own == other or sorted(own) != sorted(other):
        return None
    return [places[row].pop() for row in other]


def _rows(arrays: Sequence[tuple[np.ndarray, int]]) -> list[tuple[bytes, ...]]:
    """Return what each row holds; nothing if the arrays have not the same number of rows."""
    rows = [np.moveaxis(array, axis, 0) for array, axis in arrays]
    if len({len(each) for each in rows}) != 1:
        return []
    return [tuple(part.tobytes() for part in row) for row in zip(*rows, strict=True)]


def _sorted(array: np.ndarray, axis: int, order: Sequence[int]) -> np.ndarray:
    """Return an array whose rows are in an order; a row may be several elements of the axis."""
    each, rest = divmod(array.shape[axis], len(order))
    if rest or not each:
        return array
    parts = (*array.shape[:axis], len(order), each, *array.shape[axis + 1 :])
    return np.take(array.reshape(parts), order, axis).reshape(array.shape)
