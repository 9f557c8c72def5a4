"""The frameworks that a network can be trained in: each has a folder and an entry here."""

from collections.abc import Iterable
from dataclasses import dataclass

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.report.frameworks import title_of
from parity.twins.spec.strategies import StrategyEntry, StrategyRegistry


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
      name: the framework's name in flags, in traces and in the keys of reports.
      folder: the package that trains with it, beside `parity`; it has the same files as the
        packages of the other frameworks: train.py, chat.py, strategies/ and so on.
      transposed: the last part of the name of every parameter that it stores transposed.
      huge_pages: whether its processes ask glibc for huge pages; see parity/base/allocator.py.
    """

    name: str
    folder: str
    transposed: tuple[str, ...] = ()
    huge_pages: bool = False

    @property
    def title(self) -> str:
        """Return the framework's name as people write it."""
        return title_of(self.name)

    @property
    def strategies(self) -> StrategyRegistry:
        """Return the framework's strategies, without loading the framework."""
        registry: StrategyRegistry = load_object(f"{self.folder}.strategies:STRATEGIES")
        return registry


ALL = "all"  # in place of a strategy's name, every one

FRAMEWORKS: dict[str, Framework] = {
    each.name: each
    for each in (
        Framework(
            "paddle",
            "paddle_impl",
            # its `rnn` operator stores kernels as [gates * hidden, inputs]
            transposed=("input_kernel", "recurrent_kernel"),
            huge_pages=True,
        ),
        Framework("tensorflow", "tf_impl"),
    )
}


def strategies_named(
    words: Iterable[str], option: str = "--strategy"
) -> dict[str, list[StrategyEntry]]:
    """Return the strategies that a user names, by framework, in the order of the frameworks.

    Args:
      words: names of strategies, each of every framework that has it, or of one framework as
        "framework=strategy"; "all" in place of a name, for every one that runs in the
        framework's own environment. A strategy may be named several times.
      option: the name of the flag that was given, for messages.

    Returns:
      Framework -> its strategies, in the order in which they were named; a framework that no
      word names is left out.

    Raises:
      UsageError: for an unknown framework, or a strategy that it or every framework lacks.
    """
    found: dict[str, dict[str, StrategyEntry]] = {}
    for word in words:
        framework, of_one, name = word.rpartition("=")
        frameworks = [framework_of(framework)] if of_one else list(FRAMEWORKS.values())
        chosen = [
            (each.name, entry)
            for each in frameworks
            for entry in each.strategies
            if name == entry.name or (name == ALL and not entry.environment)
        ]
        if not chosen:
            lacking = f" for {framework}" if of_one else ""
            names = dict.fromkeys(e.name for each in frameworks for e in each.strategies)
            reason = "".join(each.strategies.reason(name) for each in frameworks)
            raise UsageError(
                f"{option} is {word!r}{reason}; allowed{lacking}: {', '.join([ALL, *names])}"
            )
        for each, entry in chosen:
            found.setdefault(each, {})[entry.name] = entry
    return {name: list(found[name].values()) for name in FRAMEWORKS if name in found}


def framework_of(name: str) -> Framework:
    """Return a framework by name.

    Raises:
      UsageError: for an unknown name; the message lists the known ones.
    """
    if name not in FRAMEWORKS:
        raise UsageError(f"framework is {name!r}; allowed: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
