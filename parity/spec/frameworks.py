"""The frameworks that a network can be trained in: a folder each, and an entry here."""

from dataclasses import dataclass

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.spec.strategies import StrategyRegistry


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
      name: the name in flags, traces and reports' keys.
      title: what people call it.
      folder: the package of its side, beside `parity`: train.py, chat.py, strategies/ and the
        rest, as in the folders that are there.
      colour: of its curves.
      transposed: the last part of the names of those parameters that it keeps transposed.
      huge_pages: whether its processes ask glibc for huge pages; see parity/base/allocator.py.
    """

    name: str
    title: str
    folder: str
    colour: str
    transposed: tuple[str, ...] = ()
    huge_pages: bool = False

    @property
    def strategies(self) -> StrategyRegistry:
        """Return its ways of running replicas; this loads no framework."""
        found: StrategyRegistry = load_object(f"{self.folder}.strategies:STRATEGIES")
        return found


FRAMEWORKS: dict[str, Framework] = {
    each.name: each
    for each in (
        Framework(
            "paddle",
            "Paddle",
            "paddle_impl",
            "#2f7fe0",
            # its `rnn` op keeps kernels as [gates * hidden, inputs]
            transposed=("input_kernel", "recurrent_kernel"),
            huge_pages=True,
        ),
        Framework("tensorflow", "TensorFlow", "tf_impl", "#d9660a"),
    )
}


def framework_of(name: str) -> Framework:
    """Return a framework by name.

    Raises:
      UsageError: for an unknown one, listing those there are.
    """
    if name not in FRAMEWORKS:
        raise UsageError(f"framework is {name!r}; allowed: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
