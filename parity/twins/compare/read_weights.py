"""The weights that a worker of an asynchronous side read, and those that it should have read.

A worker copies the shared weights before it computes. Its copy must be one version of them, to
the bit: what the side itself recorded after so many updates. Where reads and updates are not
atomic, a copy can be *torn*: parts of it are of different versions.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from parity.compare.tensors import Distance, Mismatch, compare_tensor
from parity.trace.tolerances import TABLE
from parity.twins.oracle.replay import PastWeights, RecordedUpdate

Tensors = Mapping[str, np.ndarray]


def check_read_weights(
    recorded: Tensors,
    past: PastWeights,
    side: str,
    step: int,
) -> tuple[Distance, Mismatch | None]:
    """Check that a worker read the version of the weights that its schedule says, to the bit.

    Args:
      recorded: what an asynchronous side recorded of an update.
      past: the versions that the worker may have read, as the side recorded them.
      side: the side's label.
      step: the number of the update.

    Returns:
      The largest distance, and the first tensor that is of no or another version; a note in it
      says of which versions the copy is made.
    """
    update = RecordedUpdate.of(recorded)
    assert update is not None
    version = past.expected(update).read
    weights = past.at(version)
    worst, first = Distance(used=0.0), None
    for name, expected in weights.items():
        read = name.replace("weight/", "read/", 1)
        sides = f"{side} worker {update.worker}", f"{side} version {version}"
        exact = TABLE["float64", "replicas"]
        distance, mismatch = compare_tensor(recorded[read], expected, sides, step, read, exact)
        worst.add(distance)
        if mismatch is not None and first is None:
            note = _made_of(recorded, past, update.worker, version)
            first = replace(mismatch, within=side, note=note)
    return worst, first


def _made_of(recorded: Tensors, past: PastWeights, worker: int, version: int) -> str:
    """Return in words which versions a worker's copy is made of."""
    versions = past.versions
    names = list(next(iter(versions.values())))
    copies = {name: recorded[name.replace("weight/", "read/", 1)] for name in names}
    whole = {
        name: {v for v in versions if np.array_equal(copies[name], versions[v][name])}
        for name in names
    }
    common = set.intersection(*whole.values())
    if common:
        return (
            f"worker {worker} read version {max(common)} of the weights; the schedule says "
            f"version {version}"
        )
    unknown = [name for name in names if not whole[name]]
    mixed = {name: _mixture(copies[name], name, versions) for name in unknown}
    if None in mixed.values():
        name = next(name for name in unknown if mixed[name] is None)
        return (
            f"worker {worker}'s copy of {_parameter(name)} is none of the versions "
            f"{min(versions)} to {max(versions)} of the weights"
        )
    of_each = {name: [max(whole[name])] if whole[name] else mixed[name] for name in names}
    # whether it read during an update or did not copy them all, the copy does not tell
    return f"a torn read: worker {worker} has {_listed(of_each)}"


def _mixture(copy: np.ndarray, name: str, versions: Mapping[int, Tensors]) -> list[int] | None:
    """Return the versions of which each element of a copy has one; None if some has none."""
    left = np.ones(copy.shape, bool)
    found = []
    for version in sorted(versions, reverse=True):
        here = left & (copy == versions[version][name])
        if here.any():
            found.append(version)
            left &= ~here
    return None if left.any() else sorted(found)


def _listed(of_each: Mapping[str, list[int] | None]) -> str:
    """Return the parameters of each version in words, such as "embed/table of version 3"."""
    groups: dict[str, list[str]] = {}
    for name, versions in of_each.items():
        words = " and ".join(map(str, versions or []))
        groups.setdefault(words, []).append(_parameter(name))
    return "; ".join(
        f"{', '.join(names)} of version{'s' if ' and ' in words else ''} {words}"
        for words, names in groups.items()
    )


def _parameter(name: str) -> str:
    return name.removeprefix("weight/")
