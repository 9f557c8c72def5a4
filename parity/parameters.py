"""The canonical table of parameters: names, shapes, and the layout each framework keeps.

Gates are ordered i, f, g, o along the last axis of every LSTM kernel and bias. There is one
trainable bias per layer; where a framework's kernel wants two, the second is a constant zero.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from parity.spec import Spec

GATES = ("i", "f", "g", "o")

# The two optimisers' slots per parameter, in the order in which they are computed.
SLOTS = {"sgd": (), "adam": ("m", "v")}

# Running products of Adam's decay rates, one each for the whole network: after t updates
# beta**t, multiplied up in the run's own precision. They start at beta, as the first update
# needs them.
POWERS = {"sgd": (), "adam": ("beta1_power", "beta2_power")}

# Kernels that Paddle's `rnn` op keeps transposed, [4 * hidden, inputs].
_TRANSPOSED = {"paddle": ("input_kernel", "recurrent_kernel"), "tensorflow": ()}


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor.

    Attributes:
      name: path of the parameter, which the frameworks' own variables carry too.
      shape: canonical shape.
    """

    name: str
    shape: tuple[int, ...]


def parameters(spec: Spec) -> tuple[Parameter, ...]:
    """Return the parameters of a network along its path of computation, lower layers first."""
    model = spec.model
    table = [Parameter("embed/table", (model.vocabulary_size, model.embedding_size))]
    inputs = model.embedding_size
    for layer in range(model.num_layers):
        gates = len(GATES) * model.hidden_size
        table += [
            Parameter(f"lstm_{layer}/input_kernel", (inputs, gates)),
            Parameter(f"lstm_{layer}/recurrent_kernel", (model.hidden_size, gates)),
            Parameter(f"lstm_{layer}/bias", (gates,)),
        ]
        inputs = model.hidden_size
    table += [
        Parameter("softmax/kernel", (model.hidden_size, model.vocabulary_size)),
        Parameter("softmax/bias", (model.vocabulary_size,)),
    ]
    return tuple(table)


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
      framework: "paddle" or "tensorflow".
      name: the parameter's canonical name.
      array: of the parameter's shape in either layout.
    """
    if name.rsplit("/", 1)[-1] in _TRANSPOSED[framework]:
        return array.T
    return array
