"""The canonical table of parameters: names, shapes, and the layout each framework keeps.

Gates are ordered i, f, g, o along the last axis of every LSTM kernel and bias, and r, z, c
along that of a GRU's. There is one trainable bias per layer; where a framework's kernel wants
two, the second is a constant zero. Each network's own table is in parity/spec/networks.
"""

from collections.abc import Iterable

import numpy as np

from parity.spec.frameworks import FRAMEWORKS
from parity.spec.networks import NETWORKS
from parity.spec.networks.network import Parameter
from parity.spec.spec import Spec

# The two optimisers' slots per parameter, in the order in which they are computed.
SLOTS = {"sgd": (), "adam": ("m", "v")}

# Running products of Adam's decay rates, one each for the whole network: after t updates
# beta**t, multiplied up in the run's own precision. They start at beta, as the first update
# needs them.
POWERS = {"sgd": (), "adam": ("beta1_power", "beta2_power")}


def parameters(spec: Spec) -> tuple[Parameter, ...]:
    """Return the parameters of a network along its path of computation, lower layers first."""
    return NETWORKS[spec.network].parameters(spec.model)


def snapshot_names(spec: Spec) -> Iterable[str]:
    """Yield the names of all tensors that training changes: weights, then optimiser state."""
    table = parameters(spec)
    for parameter in table:
        yield f"weight/{parameter.name}"
    for parameter in table:
        for slot in SLOTS[spec.training.optimizer]:
            yield f"optimizer/{parameter.name}/{slot}"
    for power in POWERS[spec.training.optimizer]:
        yield f"optimizer/{power}"


def snapshot_shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return the canonical shape of every tensor that `snapshot_names` yields."""
    shapes = {parameter.name: parameter.shape for parameter in parameters(spec)}

    def shape(name: str) -> tuple[int, ...]:
        path = name.split("/", 1)[1]
        return shapes.get(path, shapes.get(path.rsplit("/", 1)[0], ()))

    return {name: shape(name) for name in snapshot_names(spec)}


def swap_layout(framework: str, name: str, array: np.ndarray) -> np.ndarray:
    """Turn a parameter (or its gradient or slot) from canonical to framework layout, or back.

    The only change of layout is a transposition, which is its own inverse.

    Args:
      framework: name of the framework; its entry says which parameters are transposed there.
      name: the parameter's canonical name.
      array: of the parameter's shape in either layout.
    """
    if name.rsplit("/", 1)[-1] in FRAMEWORKS[framework].transposed:
        return array.T
    return array
