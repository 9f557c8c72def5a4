"""Checks of what was recorded: same run, right tensors, finite numbers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.compare.tensors import (
    ORACLE,
    Mismatch,
    Place,
    check_numbers,
    compare_tensor,
    of_each,
    other_type,
)
from parity.trace.reader import Trace
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import snapshot_shapes
from parity.twins.spec.spec import Spec
from parity.twins.trace.contents import axis_sizes, elements_held, elements_of, tensor_shapes
from parity.twins.trace.side import TrainedSide


def check_same_run(
    first: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]
) -> None:
    """Check that two sides trained the same spec on the same text.

    Args:
      first, other: the label and the header of each.

    Raises:
      UsageError: if they did not.
    """
    (a, of_a), (b, of_b) = first, other
    for name in ("spec", "corpus", "batches_per_epoch"):
        if of_a.get(name) == of_b.get(name):
            continue
        seen = f"{of_a.get(name)!r} against {of_b.get(name)!r}"
        if name == "spec":
            specs = Spec.from_json(of_a[name]).to_json(), Spec.from_json(of_b[name]).to_json()
            networks = [spec["network"] for spec in specs]
            if networks[0] != networks[1]:  # they have other fields
                seen = f"network {networks[0]!r} against {networks[1]!r}"
                raise UsageError(f"{a} and {b} are not of the same run: spec differs: {seen}")
            seen = "; ".join(
                f"{field} {specs[0][part][field]!r} against {specs[1][part][field]!r}"
                for part in ("model", "text", "training")
                for field in specs[0][part]
                if specs[0][part][field] != specs[1][part][field]
            )
        raise UsageError(f"{a} and {b} are not of the same run: {name} differs: {seen}")


def check_sizes(side: str, trace: Trace, step: int) -> None:
    """Check that the weights of a spec are as large as those that a step holds.

    A header may promise any sizes; what is not there would take hours or all memory to make up.

    Args:
      side: the label of the trace.
      step: the number of a recorded step.

    Raises:
      UsageError: if they are not.
    """
    spec, tensors = Spec.from_json(trace.header["spec"]), trace.read(step)
    layers = getattr(spec.model, "num_layers", 0)
    if layers > len(tensors):
        seen = f"--num-layers is {layers}, but a step has {len(tensors)} tensors"
        raise UsageError(f"{side}: {seen}; allowed: a spec of what was recorded")
    for name, shape in snapshot_shapes(spec).items():
        _check_shape(tensors, name, shape, f"{side}, step {step}")
    # an update is of one replica's rows
    trained = TrainedSide.from_json(trace.header)
    shares = trained.replicas if trained.synchronous else 1
    _check_shape(tensors, "batch/sizes", (shares,), f"{side}, step {step}")


def _check_shape(
    tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], where: str
) -> None:
    if name in tensors and tensors[name].shape != shape:
        seen = f"{name} has shape {list(tensors[name].shape)}"
        raise UsageError(f"{where}: {seen}; its spec says {list(shape)}")


def check_recorded(
    spec: Spec,
    sides: Mapping[str, TrainedSide],
    tensors: Mapping[str, Mapping[str, np.ndarray]],
    step: int,
    names: Sequence[str],
) -> list[Mismatch]:
    """Check what all sides recorded of a step, before anything is computed with it.

    Args:
      sides, tensors: label -> side, and what it recorded.
      names: the tensors of a step, as `tensor_names` lists them.

    Returns:
      A mismatch for each tensor that has another type on some side, or else for each activation
      of another shape than the spec's; nothing else of such a step is compared.

    Raises:
      UsageError, NumericFailure: as `check_shapes` and `check_numbers`.
    """
    if unlike := tensors_of_other_types(tensors, step, names, spec.training.dtype):
        return unlike
    for side, recorded in tensors.items():
        found = _activations_of_other_shapes(spec, side, recorded, step)
        unlike += found
        wrong = {mismatch.place.tensor for mismatch in found}
        of_side = [name for name in names if name not in wrong]
        if sides[side].synchronous:
            of_side = [n for n in of_side if not n.startswith(("schedule/", "read/"))]
        rest = {name: array for name, array in recorded.items() if name not in wrong}
        check_shapes(spec, rest, side, step, of_side)
        check_numbers(rest, side, step, names)
    return sorted(unlike, key=lambda mismatch: names.index(mismatch.place.tensor))


def _activations_of_other_shapes(
    spec: Spec, side: str, tensors: Mapping[str, np.ndarray], step: int
) -> list[Mismatch]:
    """Return a mismatch for each activation that has not the shape of the spec.

    A side that takes other positions of its batch for real computes so many others.
    """
    return [
        Mismatch(
            (side, ORACLE),
            Place(step, name, ()),
            problem=of_each("shape", list(tensors[name].shape), list(shape), (side, ORACLE)),
        )
        for name, shape in tensor_shapes(spec, tensors).items()
        if name.startswith("forward/") and name in tensors and tensors[name].shape != shape
    ]


def tensors_of_other_types(
    tensors: Mapping[str, Mapping[str, np.ndarray]],
    step: int,
    names: Iterable[str],
    dtype: str,
) -> list[Mismatch]:
    """Return a mismatch for each tensor that has another type on some side.

    Where one of the types is the run's precision, the sides that have another one differ from
    the oracle.

    Args:
      tensors: label -> recorded tensors.
      dtype: the precision of the run.
    """
    asked = np.empty(0, dtype)
    found = []
    for name in names:
        having = [(side, each[name]) for side, each in tensors.items() if name in each]
        for side, array in having[1:]:
            first, of_first = having[0]
            found.append(other_type(of_first, array, (first, side), step, name))
        if any(array.dtype == asked.dtype for _, array in having):
            found += [other_type(a, asked, (side, ORACLE), step, name) for side, a in having]
    return [mismatch for mismatch in found if mismatch]


def batches_of_other_shapes(
    spec: Spec, tensors: Mapping[str, Mapping[str, np.ndarray]], step: int
) -> list[Mismatch]:
    """Return a mismatch for each array of the batch that has another shape on some side.

    Nothing else of such a step can be compared: each side trained on a batch of its own.

    Args:
      tensors: label -> recorded tensors.
    """
    first, batch = next(iter(tensors.items()))
    compared = (
        compare_tensor(batch[name], recorded[name], (first, side), step, name, None)[1]
        for name in (f"batch/{each}" for each in NETWORKS[spec.network].batch)
        for side, recorded in tensors.items()
    )
    return [mismatch for mismatch in compared if mismatch]


def check_shapes(
    spec: Spec, tensors: Mapping[str, np.ndarray], side: str, step: int, names: Sequence[str]
) -> None:
    """Check that a recorded step holds the tensors of its spec, with the shapes of its spec.

    Args:
      names: the tensors of a step, as `tensor_names` lists them.

    Raises:
      UsageError: for a tensor that is missing, unknown, of another shape or another kind of
        numbers, and for ids out of range.
    """
    where, shapes = f"{side}, step {step}", tensor_shapes(spec, tensors)
    extra = sorted(set(tensors) - set(names))
    may_lack = ("replicas/", "forward/logits", "decode/", "evaluate/")
    missing = sorted(n for n in set(names) - set(tensors) if not n.startswith(may_lack))
    if missing or extra:
        listed = f"missing: {_first(missing)}; extra: {_first(extra)}"
        raise UsageError(f"{where}: tensors do not fit its spec; {listed}")
    network, rows = NETWORKS[spec.network], tensors["batch/lengths"].size
    if tensors["batch/sizes"].sum() != rows:
        sizes = tensors["batch/sizes"].tolist()
        raise UsageError(f"{where}: batch/sizes is {sizes}; the batch has {rows} rows")
    for name in names:
        if name in shapes:
            _check_shape(tensors, name, shapes[name], where)
        if name in tensors and elements_held(tensors[name].dtype) != elements_of(name):
            seen = f"{name} is of type {tensors[name].dtype}"
            raise UsageError(f"{where}: {seen}; allowed: {elements_of(name)}")
    sizes = axis_sizes(spec, tensors)
    most = {
        name: getattr(spec.model, of_model) - 1
        for name, of_model in network.vocabularies.items()
    } | {lengths: sizes[axis] for axis, lengths in network.lengths.items()}
    for name in network.batch:
        array = tensors[f"batch/{name}"]
        if array.min() < 0 or array.max() > most[name]:
            seen = f"{array.min()} to {array.max()}"
            raise UsageError(f"{where}: batch/{name} holds {seen}; allowed: 0 to {most[name]}")


def _first(names: list[str], most: int = 5) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{names[:most]}{more}" if names else "none"
