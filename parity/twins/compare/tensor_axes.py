"""What the axes of the networks' tensors are called, and the numbers that a factor may be."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from parity.compare.relation import Axis
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec

GATES = {"lstm": "ifgo", "gru": "rzc"}
_OF_PARAMETERS = ("gradient", "clipped_gradient", "optimizer", "weight", "initial")


def axes_of(
    spec: Spec, name: str, shape: Sequence[int], tensors: Mapping[str, np.ndarray]
) -> list[Axis]:
    """Return what the first axes of a recorded tensor are; see `region`.

    Args:
      name: the tensor's name.
      shape: its shape.
      tensors: all that the side recorded of the step.
    """
    kind, _, rest = name.partition("/")
    if kind in _OF_PARAMETERS:
        layer, _, part = rest.removesuffix("/m").removesuffix("/v").rpartition("/")
        if part == "table":
            return [Axis("token")]
        cell = next((cell for cell in GATES if f"{cell}_" in layer), "")
        if not cell or part not in ("input_kernel", "recurrent_kernel", "bias"):
            return []
        names = GATES[cell]
        gates = _divided(names, [shape[-1] // len(names)] * len(names))
        columns = Axis("element" if len(shape) == 1 else "column", "gate", gates)
        return [Axis("row"), columns][-len(shape) :]
    network = NETWORKS[spec.network]
    named = network.activations(spec.model).get(rest) or network.batch.get(rest) or ()
    if named[:1] != ("batch",) or kind not in ("forward", "batch"):
        return []
    sizes = tensors["batch/sizes"].tolist()
    rows = Axis("row", "replica", _divided([str(place) for place in range(len(sizes))], sizes))
    times = [str(each) for each in named[1:] if each in network.lengths]
    return [rows, *(Axis(f"{each.replace('_', ' ')} step") for each in times)]


def lengths_of(spec: Spec, name: str, tensors: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the real tokens of each row of an activation over time, [batch]; else None."""
    network = NETWORKS[spec.network]
    named = network.activations(spec.model).get(name.removeprefix("forward/"), ())
    lengths = network.lengths.get(str(*named[1:2]))
    return tensors[f"batch/{lengths}"] if lengths else None


def numbers_of(spec: Spec, tensors: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the numbers of a step by which a tensor may be too large or too small.

    Args:
      tensors: all that the side recorded of the step.
    """
    lengths, clip = tensors["batch/lengths"], spec.training.clip_norm
    norm = float(tensors.get("gradient_norm", 0.0))
    return {
        "replicas": len(tensors["batch/sizes"]),
        "rows of the batch": len(lengths),
        "tokens of the batch": int(lengths.sum()),
        "keep": getattr(spec.model, "keep", 1.0),
        "gradient_norm / clip norm": norm / clip if clip else 1.0,
    }


def _divided(names: Sequence[str], sizes: Sequence[int]) -> dict[str, range]:
    """Return name -> its places along an axis that is divided into parts of these sizes."""
    edges = pairwise(accumulate(sizes, initial=0))
    return {name: range(*each) for name, each in zip(names, edges, strict=True)}
