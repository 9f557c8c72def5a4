"""The canonical names and shapes of all parameters, and each framework's layout of them.

Gates are ordered i, f, g, o along the last axis of every LSTM kernel and bias, and r, z, c
along the last axis of every GRU kernel and bias. A layer has one trainable bias; where a
framework's kernel takes two, the second is a constant zero. parity/twins/spec/networks lists
the parameters of each network.
"""

from collections.abc import Iterable

import numpy as np

from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Parameter
from parity.twins.spec.spec import Spec

# Each optimiser's slots per parameter, in the order in which they are computed.
SLOTS = {"sgd": (), "adam": ("m", "v")}

# Running products of Adam's two decay rates, one of each for the whole network. The update of
# step t (from 0) reads beta**(t + 1), a product taken in the precision of the run; hence each
# starts at beta.
POWERS = {"sgd": (), "adam": ("beta1_power", "beta2_power")}


def parameters(spec: Spec) -> tuple[Parameter, ...]:
    """Return a network's parameters in the order of computation, lower layers first."""
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
    """Convert a parameter, or its gradient or slot, between canonical and framework layout.

    The only change of layout is a transposition, which is its own inverse: one function
    converts both ways.

    Args:
      framework: the framework's name; its entry says which parameters it stores transposed.
      name: the parameter's canonical name.
      array: the values, in either layout.
    """
    if name.rsplit("/", 1)[-1] in FRAMEWORKS[framework].transposed:
        return array.T
    return array
