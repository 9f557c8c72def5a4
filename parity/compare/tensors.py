"""Two recorded steps -> their distances, and the first tensor that differs."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.base.errors import NumericFailure, UsageError
from parity.oracle.rounding import Rounding
from parity.spec.batch_io import shape_of
from parity.spec.networks import NETWORKS
from parity.spec.parameters import parameters, snapshot_names, snapshot_shapes
from parity.spec.spec import Spec
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE, Multiple, Tolerance
from parity.trace.trace import rung_of

_NEAR = 0.5  # share of what is allowed from which on it is measured with more runs

# What a trace may record of decoding after its last step; see parity/compare/decoded.py.
SEARCHES = ("greedy", "beam")
DECODED = (
    *(f"decode/{name}" for name in ("source", "source_lengths", "settings")),
    *(
        f"decode/{kind}_{part}"
        for kind in SEARCHES
        for part in ("tokens", "finished", "scores")
    ),
)


def tensor_names(spec: Spec, *, isolated: bool = False) -> list[str]:
    """Return the names of what a step records, in the order in which a fault would show.

    Forward before backward before update, lower layers first.

    Args:
      isolated: with what a step of an isolated run records beside the rest.
    """
    network = NETWORKS[spec.network]
    table = [parameter.name for parameter in parameters(spec)]
    snapshot = list(snapshot_names(spec))
    taps = network.taps(spec.model) if isolated else ()
    return [
        *(f"batch/{name}" for name in (*network.batch, "sizes", "carry", "learning_rate")),
        *(f"forward/{name}" for name in network.activations(spec.model)),
        "loss/replicas",
        "loss/global",
        *(f"activation_gradient/{name}" for name in taps),
        *(f"gradient/{name}" for name in table),
        "gradient_norm",
        *(f"clipped_gradient/{name}" for name in table),
        *(name for name in snapshot if name.startswith("optimizer/")),
        *(name for name in snapshot if name.startswith("weight/")),
        *(f"replicas/{name}" for name in snapshot),
        *(DECODED if network.decodes else ()),
    ]


@dataclass(frozen=True)
class Place:
    """Where in a run: step, tensor and index of an element."""

    step: int
    tensor: str
    index: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"step": self.step, "tensor": self.tensor, "index": list(self.index)}

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}], step {self.step}"


@dataclass
class Distance:
    """The worst of many comparisons of one kind.

    Attributes:
      absolute: largest |a - b|.
      relative: largest |a - b| over the largest magnitude in that tensor.
      where: the place of `relative`.
      used: largest share of the allowed difference; above 1 is a mismatch. None: not judged.
    """

    absolute: float = 0.0
    relative: float = 0.0
    where: Place | None = None
    used: float | None = None

    def add(self, other: "Distance") -> None:
        """Take in another comparison."""
        self.absolute = max(self.absolute, other.absolute)
        if self.where is None or other.relative > self.relative:
            self.relative, self.where = other.relative, other.where
        if other.used is not None:
            self.used = max(self.used or 0.0, other.used)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "worst_absolute": self.absolute,
            "worst_relative": self.relative,
            "where": self.where.to_json() if self.where else None,
            # no number of JSON is infinite: None where nothing is allowed and something differs
            "used": self.used if math.isfinite(self.used or 0.0) else None,
        }


@dataclass(frozen=True)
class Mismatch:
    """One tensor of one step that differs by more than is allowed.

    Attributes:
      sides: names of the two sides.
      place: the element that exceeds what is allowed by most.
      values: side -> its value there.
      allowed: greatest difference allowed there.
      count, size: elements that differ too much, of how many.
      problem: in place of the values, if the tensors could not be compared.
      within: the side's label, where replicas of one side were compared with each other.
    """

    sides: tuple[str, str]
    place: Place
    values: dict[str, float] = field(default_factory=dict)
    allowed: float = 0.0
    count: int = 0
    size: int = 0
    problem: str = ""
    within: str = ""

    @property
    def rung(self) -> str:
        """Return the rung of the tensor."""
        return rung_of(self.place.tensor)


def compare_tensor(
    a: np.ndarray,
    b: np.ndarray,
    sides: tuple[str, str],
    step: int,
    name: str,
    tolerance: Tolerance | Multiple | None,
    known: float = 0.0,
    of_kind: float = 0.0,
) -> tuple[Distance, Mismatch | None]:
    """Compare two tensors element by element.

    Args:
      tolerance: None to measure without judging.
      known: the largest share of the allowed difference seen before, at most 1. Where the
        largest difference of all, held against the least that is allowed, stays within it, no
        element can exceed it, and the elements' own shares are not computed.
      of_kind: largest magnitude in all tensors of this kind (all gradients) at this step.

    Returns:
      Their distance, and a mismatch if any element differs by more than is allowed, or the
      shapes do. Nothing is transposed or broadcast to make them fit.
    """
    if a.shape != b.shape:
        problem = f"shape {list(a.shape)} against {list(b.shape)}"
        return Distance(), Mismatch(sides, Place(step, name, ()), problem=problem)
    difference = np.asarray(np.subtract(a, b, dtype=np.float64))
    if not difference.size:
        return Distance(), None
    np.abs(difference, out=difference)
    index = np.unravel_index(int(np.argmax(difference)), difference.shape)
    largest = float(difference[index])
    scale = max(_magnitude(a), _magnitude(b))
    distance = Distance(
        absolute=largest,
        relative=largest / scale if scale else 0.0,
        where=Place(step, name, tuple(map(int, index))),
    )
    if tolerance is None:
        return distance, None
    if largest <= tolerance.least(scale) * min(known, 1.0):
        distance.used = 0.0 if largest == 0 else known
        return distance, None
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    allowed = tolerance.allowed(a, b, of_kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        # a NaN, as the difference of two infinities is, must not pass for no difference
        used = np.where(difference == 0, 0.0, difference / allowed)
    index = np.unravel_index(int(np.argmax(used)), used.shape)
    distance.used = float(used[index])
    if distance.used <= 1:
        return distance, None
    mismatch = Mismatch(
        sides,
        Place(step, name, tuple(map(int, index))),
        dict(zip(sides, (float(a[index]), float(b[index])), strict=True)),
        float(allowed[index]),
        int(np.count_nonzero(~(used <= 1))),
        used.size,
    )
    return distance, mismatch


def _magnitude(array: np.ndarray) -> float:
    """Return the largest magnitude; NaN if there is one, zero of nothing."""
    if not array.size:
        return 0.0
    return float(np.maximum(float(array.max()), -float(array.min())))


def compare_step(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    sides: tuple[str, str],
    step: int,
    names: Iterable[str],
    dtype: str,
    *,
    judge: bool = True,
    known: Mapping[str, Distance] | None = None,
    seen: dict[str, Distance] | None = None,
    every: list[Mismatch] | None = None,
    rounding: Rounding | None = None,
) -> tuple[dict[str, Distance], Mismatch | None]:
    """Compare all that two sides recorded of a step.

    Args:
      names: the tensors, in the order in which the first mismatch is looked for.
      dtype: "float32" or "float64", which decides the tolerances.
      judge: whether to hold the differences against the tolerances, or only measure them.
      known: rung -> the worst of the steps before, which spares work where it stays the worst.
      seen: if given, is filled with tensor -> distance.
      every: if given, all mismatches are added to it.
      rounding: of the step, where b is what the oracle makes of it: the tolerances are then
        multiples of that.

    Returns:
      Rung -> distance, and the first mismatch. A tensor that only one side has is a mismatch.
    """
    names = list(names)
    distances: dict[str, Distance] = {}
    largest: dict[str, float] = {}
    first: Mismatch | None = None
    for name in names:
        if name not in a and name not in b:
            continue
        if name not in a or name not in b:
            has = sides[0] if name in a else sides[1]
            found = Mismatch(sides, Place(step, name, ()), problem=f"only {has} has it")
        else:
            rung = rung_of(name)
            tolerance: Tolerance | Multiple | None = TABLE[dtype, rung] if judge else None
            measured = rounding if judge and rung in ONE_STEP_TIMES else None
            if measured is not None:
                tolerance = Multiple(ONE_STEP_TIMES[rung], measured.scale(name))
            used = [
                found[rung].used or 0.0 for found in (known or {}, distances) if rung in found
            ]
            kind = name.split("/")[0]
            if tolerance is not None and tolerance.step and kind not in largest:
                alike = (each for each in names if each in b and each.startswith(f"{kind}/"))
                largest[kind] = max((_magnitude(b[each]) for each in alike), default=0.0)
            distance, mismatch = compare_tensor(
                a[name],
                b[name],
                sides,
                step,
                name,
                tolerance,
                max(used, default=0.0),
                largest.get(kind, 0.0),
            )
            near = (distance.used or 0.0) > max(_NEAR, *used, 0.0)
            if measured is not None and (mismatch or near) and measured.refine(name):
                tolerance = Multiple(ONE_STEP_TIMES[rung], measured.scale(name))
                distance, mismatch = compare_tensor(
                    a[name], b[name], sides, step, name, tolerance
                )
            distances.setdefault(rung, Distance()).add(distance)
            if seen is not None:
                seen[name] = distance
            if mismatch is None:
                continue
            found = mismatch
        first = first or found
        if every is not None:
            every.append(found)
    return distances, first


def first_in_loop(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    mismatch: Mismatch,
    loop: Iterable[str],
    dtype: str,
    rounding: Rounding | None = None,
) -> Mismatch:
    """Return the mismatch that comes first where tensors are computed step by step together.

    In a loop each tensor of a step decides all of the next step. So the one that is wrong at
    the earliest step is first, and of one step the first in the order of computation.

    Args:
      mismatch: of the first tensor that differs in the order of names.
      loop: names of tensors [batch, time, ...] that one loop computes, in the order in which
        each step does; if the mismatch is in none of them, it stays.
      rounding: as of `compare_step`.
    """

    def tolerance_of(name: str) -> Tolerance | Multiple:
        rung = rung_of(name)
        if rounding is None:
            return TABLE[dtype, rung]
        return Multiple(ONE_STEP_TIMES[rung], rounding.scale(name))

    names = list(loop)
    if mismatch.place.tensor not in names or mismatch.problem:
        return mismatch
    found = []
    for place, name in enumerate(names):
        if name not in a or name not in b or a[name].shape != b[name].shape:
            continue
        x, y = (np.asarray(each[name], np.float64) for each in (a, b))
        wrong = ~(np.abs(x - y) <= tolerance_of(name).allowed(x, y))
        steps = wrong.reshape(*wrong.shape[:2], -1).any(axis=(0, 2))
        if steps.any():
            found.append((int(np.argmax(steps)), place, name))
    _, _, name = min(found)
    step, sides = mismatch.place.step, mismatch.sides
    tolerance = tolerance_of(name)
    return compare_tensor(a[name], b[name], sides, step, name, tolerance)[1] or mismatch


def check_replicas(
    tensors: Mapping[str, np.ndarray],
    side: str,
    step: int,
    names: Iterable[str],
    every: list[Mismatch] | None = None,
) -> tuple[Distance, Mismatch | None]:
    """See that all replicas of a side hold the same weights and optimiser state, to the bit.

    Args:
      every: as of `compare_step`.

    Returns:
      The worst distance from replica 0, and the first tensor in which one differs. A side whose
      replicas share one copy records nothing here, and has nothing to differ in.
    """
    worst, first = Distance(used=0.0), None
    for name in names:
        if not name.startswith("replicas/") or name not in tensors:
            continue
        found = tensors[name]
        distance, mismatch = compare_tensor(
            found,
            np.zeros_like(found),
            (f"{side} replica", f"{side} replica 0"),
            step,
            name,
            TABLE["float64", "replicas"],
        )
        worst.add(distance)
        if mismatch is None:
            continue
        mismatch = replace(mismatch, within=side)
        first = first or mismatch
        if every is not None:
            every.append(mismatch)
    return worst, first


def check_shapes(
    spec: Spec, tensors: Mapping[str, np.ndarray], side: str, step: int, names: list[str]
) -> None:
    """See that a recorded step holds the tensors of its spec, each of its shape.

    Raises:
      UsageError: for tensors missing or unknown, one of another shape, or ids out of range.
    """
    where, shapes = f"{side}, step {step}", _shapes(spec, tensors)
    extra = sorted(set(tensors) - set(names))
    may_lack = ("replicas/", "forward/logits", "decode/")
    missing = sorted(n for n in set(names) - set(tensors) if not n.startswith(may_lack))
    if missing or extra:
        listed = f"missing: {missing or 'none'}; extra: {extra or 'none'}"
        raise UsageError(f"{where}: tensors do not fit its spec; {listed}")
    network, rows = NETWORKS[spec.network], tensors["batch/lengths"].size
    if tensors["batch/sizes"].sum() != rows:
        sizes = tensors["batch/sizes"].tolist()
        raise UsageError(f"{where}: batch/sizes is {sizes}; the batch has {rows} rows")
    for name in names:
        if name in tensors and name in shapes and tensors[name].shape != shapes[name]:
            raise UsageError(
                f"{where}: {name} has shape {list(tensors[name].shape)}; "
                f"its spec says {list(shapes[name])}"
            )
    sizes = _sizes(spec, tensors)
    most = {
        name: getattr(spec.model, of_model) - 1
        for name, of_model in network.vocabularies.items()
    } | {lengths: sizes[axis] for axis, lengths in network.lengths.items()}
    for name in network.batch:
        array = tensors[f"batch/{name}"]
        if array.min() < 0 or array.max() > most[name]:
            seen = f"{array.min()} to {array.max()}"
            raise UsageError(f"{where}: batch/{name} holds {seen}; allowed: 0 to {most[name]}")


def _sizes(spec: Spec, tensors: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the sizes of a batch's axes, as far as it was recorded."""
    sizes = {"batch": 0, "time": 0, "source_time": 0}
    for name, axes in NETWORKS[spec.network].batch.items():
        shape = tensors.get(f"batch/{name}", np.zeros(0)).shape
        sizes |= {str(axis): size for axis, size in zip(axes, shape, strict=False)}
    return sizes


def _shapes(spec: Spec, tensors: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a spec gives to a step's tensors, for the rows and time it has."""
    network, sizes = NETWORKS[spec.network], _sizes(spec, tensors)
    snapshot = snapshot_shapes(spec)
    kinds = ("gradient", "clipped_gradient")
    replicas = tensors.get("batch/sizes", np.zeros(0)).shape[:1]
    return {
        **{f"batch/{name}": shape_of(axes, sizes) for name, axes in network.batch.items()},
        "batch/sizes": replicas,
        "batch/carry": (),
        "batch/learning_rate": (),
        **{
            f"forward/{name}": shape_of(axes, sizes)
            for name, axes in network.activations(spec.model).items()
        },
        "loss/replicas": replicas,
        "loss/global": (),
        **{
            f"activation_gradient/{name}": shape_of(axes, sizes)
            for name, axes in network.activations(spec.model).items()
        },
        "gradient_norm": (),
        **{f"{kind}/{each.name}": each.shape for kind in kinds for each in parameters(spec)},
        **snapshot,
        **{f"replicas/{name}": replicas for name in snapshot},
    }


def check_numbers(
    tensors: Mapping[str, np.ndarray], side: str, step: int, names: list[str]
) -> None:
    """See that a recorded step holds nothing but finite numbers.

    Raises:
      NumericFailure: for the first NaN or infinity in the order of computation.
    """
    for name in names:
        if name.startswith("decode/"):
            continue  # a score of -inf says that a search found fewer hypotheses
        if name in tensors and not np.all(np.isfinite(tensors[name])):
            array = tensors[name]
            index = tuple(map(int, np.argwhere(~np.isfinite(array))[0])) if array.ndim else ()
            place = Place(step, name, index)
            raise NumericFailure(f"{side}: {array[index]} in {place}{_replica(tensors, place)}")


def _replica(tensors: Mapping[str, np.ndarray], place: Place) -> str:
    """Return which replica computed an element, where its first axis is the batch's rows."""
    of_rows = ("forward/", "activation_gradient/")
    if not place.tensor.startswith(of_rows) or "batch/sizes" not in tensors:
        return ""
    bounds = np.cumsum(tensors["batch/sizes"])
    return f", replica {int(np.searchsorted(bounds, place.index[0], side='right'))}"
