"""The frameworks that a network can be trained in: each has a folder and an entry here."""

from dataclasses import dataclass

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.spec.strategies import StrategyRegistry


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
      name: the framework's name in flags, in traces and in the keys of reports.
      title: the framework's name as people write it.
      short: its name in the headings of narrow columns.
      folder: the package that trains with it, beside `parity`; it has the same files as the
        packages of the other frameworks: train.py, chat.py, strategies/ and so on.
      colour: the colour of its curves in figures.
      transposed: the last part of the name of every parameter that it stores transposed.
      huge_pages: whether its processes ask glibc for huge pages; see parity/base/allocator.py.
    """

    name: str
    title: str
    short: str
    folder: str
    colour: str
    transposed: tuple[str, ...] = ()
    huge_pages: bool = False

    @property
    def strategies(self) -> StrategyRegistry:
        """Return the framework's strategies, without loading the framework."""
        registry: StrategyRegistry = load_object(f"{self.folder}.strategies:STRATEGIES")
        return registry


FRAMEWORKS: dict[str, Framework] = {
    each.name: each
    for each in (
        Framework(
            "paddle",
            "Paddle",
            "Paddle",
            "paddle_impl",
            "#2f7fe0",
            # its `rnn` operator stores kernels as [gates * hidden, inputs]
            transposed=("input_kernel", "recurrent_kernel"),
            huge_pages=True,
        ),
        Framework("tensorflow", "TensorFlow", "TF", "tf_impl", "#d9660a"),
    )
}


def framework_of(name: str) -> Framework:
    """Return a framework by name.

    Raises:
      UsageError: for an unknown name; the message lists the known ones.
    """
    if name not in FRAMEWORKS:
        raise UsageError(f"framework is {name!r}; allowed: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
