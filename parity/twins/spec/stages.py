"""Stages: how the layers of a network are divided among devices, for model parallelism.

Both frameworks read the division from here, so that a stage means the same layers in both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from parity.base.errors import UsageError
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters
from parity.twins.spec.spec import Spec

# How much longer a multiplication takes in a product of one time step's rows than in one of all
# time steps at once, the rest of the loop's step included. Measured with `parity profile
# --preset four-layers`: 2.9 in Paddle.
_IN_LOOP = 3


def layers_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """Return the layers of a network in the order of computation, name -> its parameters.

    A layer's name is the path that the names of its parameters begin with: `embed`, `lstm_0`,
    `encoder/lstm_0`, which has both directions of a bidirectional layer, `attention`,
    `softmax`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for parameter in parameters(spec):
        layer = parameter.name.rsplit("/", 1)[0]
        for direction in ("/forward", "/backward"):
            layer = layer.removesuffix(direction)
        found[layer] = (*found.get(layer, ()), parameter.name)
    return found


def most_stages(spec: Spec) -> int:
    """Return the largest number of stages that the layers of a network can be divided into."""
    return len(_pieces(spec))


def stages_of(spec: Spec, stages: int) -> list[list[str]]:
    """Divide the layers of a network into consecutive stages that take about as long.

    The greatest cost of a stage is as small as possible, because the slowest stage decides how
    fast a pipeline is. The cost counts the multiplications of a token with the weights; those
    within a loop over time count more.

    Args:
      spec: the network.
      stages: the number of stages.

    Returns:
      For each stage the names of its layers, in the order of computation; none is empty.

    Raises:
      UsageError: for more stages than there are layers.
    """
    pieces = _pieces(spec)
    if not 1 <= stages <= len(pieces):
        raise UsageError(
            f"--stages is {stages}; allowed: 1 to {len(pieces)}, the layers of this network"
        )
    costs = _costs(spec)
    piece_costs = [sum(costs[layer] for layer in piece) for piece in pieces]

    @cache
    def best(first: int, count: int) -> tuple[int, int, tuple[int, ...]]:
        """Return the greatest cost, the sum of squares and the ends of `count` stages that
        hold the pieces from `first` on."""
        if count == 1:
            cost = sum(piece_costs[first:])
            return cost, cost**2, (len(pieces),)
        divisions = []
        for end in range(first + 1, len(pieces) - count + 2):
            cost, (greatest, squares, ends) = sum(piece_costs[first:end]), best(end, count - 1)
            divisions.append((max(cost, greatest), squares + cost**2, (end, *ends)))
        return min(divisions)

    _, _, ends = best(0, stages)
    starts = (0, *ends[:-1])
    return [
        [layer for piece in pieces[start:end] for layer in piece]
        for start, end in zip(starts, ends, strict=True)
    ]


def _pieces(spec: Spec) -> list[tuple[str, ...]]:
    """Return the layers in order, as tuples of those that no cut can separate.

    A decoder that is fed the attention of each step is a single loop over time, in which every
    layer waits for all others at each step: its cells and the attention are one piece.
    """
    looped = NETWORKS[spec.network].loop(spec.model)
    pieces: list[tuple[str, ...]] = []
    in_loop: list[str] = []
    for layer in layers_of(spec):
        if any(activation.startswith(f"{layer}/") for activation in looped):
            in_loop.append(layer)
            if len(in_loop) > 1:
                pieces.pop()
            pieces.append(tuple(in_loop))
        else:
            pieces.append((layer,))
    return pieces


def _costs(spec: Spec) -> dict[str, int]:
    """Return the multiplications of each layer: a table is looked up, not multiplied by."""
    shapes = {parameter.name: parameter.shape for parameter in parameters(spec)}
    return {
        layer: sum(
            shapes[name][0] * shapes[name][1] * (_IN_LOOP if "recurrent" in name else 1)
            for name in names
            if name.endswith("kernel") and len(shapes[name]) == 2
        )
        for layer, names in layers_of(spec).items()
    }


_begin: ContextVar[Callable[[str], None] | None] = ContextVar("begin", default=None)


def begin_layer(name: str) -> None:
    """Declare that whatever a network builds from here on belongs to a layer.

    It lasts until the next call. A strategy that spreads layers over devices uses it; for any
    other it does nothing.

    Args:
      name: the layer's name, as of `layers_of`.
    """
    begin = _begin.get()
    if begin is not None:
        begin(name)


@contextmanager
def placing_layers(begin: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of each layer that begins within this context."""
    token = _begin.set(begin)
    try:
        yield
    finally:
        _begin.reset(token)
