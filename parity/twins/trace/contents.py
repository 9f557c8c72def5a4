"""The tensors of a step of this project's trainings: their names, order and shapes."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache

import numpy as np

from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters, snapshot_names, snapshot_shapes
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import shape_of
from parity.twins.trace.decoded import DECODED
from parity.twins.trace.evaluated import evaluated_names

# Which update of an asynchronous training a recorded step is; see `RecordedUpdate`.
_SCHEDULE = tuple(
    f"schedule/{name}" for name in ("worker", "batch", "read", "first_row", "of_rows")
)

# What a tensor's elements are, by patterns of names: the first that fits counts.
_ELEMENTS = {
    "*/carry": "booleans",
    "batch/learning_rate": "floating point",
    "batch/*": "integers",
    "schedule/*": "integers",
    "evaluate/*/batch/*": "integers",
    "evaluate/*/rows": "integers",
    "evaluate/*/tokens_per_batch": "integers",
    "decode/*_finished": "booleans",
    "decode/*_scores": "floating point",
    "decode/settings": "floating point",
    "decode/*": "integers",
    "*": "floating point",
}
_DTYPES = {np.bool_: "booleans", np.integer: "integers", np.floating: "floating point"}


def tensor_names(spec: Spec, *, asynchronous: bool = False) -> list[str]:
    """Return the names of the tensors of a step, in the order in which a fault would show.

    Forward comes before backward, backward before the update, and lower layers before higher.

    Args:
      asynchronous: whether to include what a step of an asynchronous run records in addition.
    """
    network = NETWORKS[spec.network]
    table = [parameter.name for parameter in parameters(spec)]
    snapshot = list(snapshot_names(spec))
    return [
        *(f"batch/{name}" for name in (*network.batch, "sizes", "carry", "learning_rate")),
        *(_SCHEDULE if asynchronous else ()),
        *(f"read/{name}" for name in (table if asynchronous else ())),
        *(f"forward/{name}" for name in network.activations(spec.model)),
        "loss/replicas",
        "loss/global",
        *(f"gradient/{name}" for name in table),
        "gradient_norm",
        *(f"clipped_gradient/{name}" for name in table),
        *(name for name in snapshot if name.startswith("optimizer/")),
        *(name for name in snapshot if name.startswith("weight/")),
        *(f"replicas/{name}" for name in snapshot),
        *(DECODED if network.decodes else ()),
        *evaluated_names(spec),
    ]


@cache
def elements_of(name: str) -> str:
    """Return what a tensor's elements are: "booleans", "integers" or "floating point"."""
    return next(what for pattern, what in _ELEMENTS.items() if fnmatchcase(name, pattern))


@cache
def elements_held(dtype: np.dtype) -> str:
    """Return what elements of a type are, as `elements_of`; else the type's name."""
    known = (what for kind, what in _DTYPES.items() if np.issubdtype(dtype, kind))
    return next(known, str(dtype))


def axis_sizes(spec: Spec, tensors: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return axis -> size of a recorded batch; 0 for an axis that it does not have."""
    sizes = {"batch": 0, "time": 0, "source_time": 0}
    for name, axes in NETWORKS[spec.network].batch.items():
        shape = tensors.get(f"batch/{name}", np.zeros(0)).shape
        sizes |= {str(axis): size for axis, size in zip(axes, shape, strict=False)}
    return sizes


def tensor_shapes(spec: Spec, tensors: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a step's tensors, for the rows and time steps that it has."""
    network, sizes = NETWORKS[spec.network], axis_sizes(spec, tensors)
    snapshot = snapshot_shapes(spec)
    kinds = ("gradient", "clipped_gradient")
    replicas = tensors.get("batch/sizes", np.zeros(0)).shape[:1]
    return {
        **{f"batch/{name}": shape_of(axes, sizes) for name, axes in network.batch.items()},
        "batch/sizes": replicas,
        "batch/carry": (),
        "batch/learning_rate": (),
        **dict.fromkeys(_SCHEDULE, ()),
        **{
            f"forward/{name}": shape_of(axes, sizes)
            for name, axes in network.activations(spec.model).items()
        },
        "loss/replicas": replicas,
        "loss/global": (),
        "gradient_norm": (),
        **{
            f"{kind}/{each.name}": each.shape
            for kind in ("read", *kinds)
            for each in parameters(spec)
        },
        **snapshot,
        **{f"replicas/{name}": replicas for name in snapshot},
    }
