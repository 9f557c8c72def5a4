"""Ways of running replicas, as known without loading a framework: names, traits, registries.

Each impl folder has one registry, `STRATEGIES` in its `strategies/__init__.py`. A new strategy
is one module beside it and one entry in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parity.base.errors import UsageError
from parity.base.plugins import load_object


@dataclass(frozen=True)
class Traits:
    """What the harness has to know about a strategy in order to judge its numbers.

    Attributes:
      synchronous: every update uses gradients at the weights just before it, so that the number
        of replicas changes no result; runs with several counts are then compared.
      processes: how many processes one training runs in.
      devices: what each replica runs on: "one a replica", or "layers" where the layers of one
        replica are spread over several.
    """

    synchronous: bool = True
    processes: int = 1
    devices: str = "one a replica"


@dataclass(frozen=True)
class StrategyEntry:
    """One way of running replicas.

    Attributes:
      name: the name that `--strategy` takes.
      path: "package.module:Class" of its implementation; see parity/training/strategy.py. It is
        loaded only when a training is built, since loading it loads the framework.
      summary: one line for people.
      traits: what the harness has to know.
    """

    name: str
    path: str
    summary: str
    traits: Traits = Traits()


class StrategyRegistry:
    """The strategies of one framework, the default one first.

    Args:
      framework: its name, for messages.
      *entries: the strategies.
    """

    def __init__(self, framework: str, *entries: StrategyEntry):
        self.framework = framework
        self._entries = {entry.name: entry for entry in entries}

    def register(self, entry: StrategyEntry) -> None:
        """Add a strategy, as a plug-in does; see parity/base/plugins.py.

        Raises:
          ValueError: if the name is taken.
        """
        if entry.name in self._entries:
            raise ValueError(f"{self.framework} has a strategy {entry.name!r} already")
        self._entries[entry.name] = entry

    @property
    def default(self) -> str:
        """Return the name of the strategy that runs unless another is asked for."""
        return next(iter(self._entries))

    def entry(self, name: str | None) -> StrategyEntry:
        """Return the strategy of a name, or the default for None.

        Raises:
          UsageError: if the framework has none of that name; the message lists what it has.
        """
        found = self._entries.get(self.default if name is None else name)
        if found is None:
            raise UsageError(
                f"--strategy is {name!r}; allowed for {self.framework}: "
                f"{', '.join(self._entries)}"
            )
        return found

    def make(self, name: str | None, spec: Any, build: Any) -> Any:
        """Build a training that runs its replicas by a strategy; this loads the framework.

        Args:
          name: of the strategy; None for the default.
          spec: Spec, with the size of the real vocabulary.
          build: Build; see parity/training/strategy.py.

        Returns:
          A Strategy; see parity/training/strategy.py.

        Raises:
          UsageError: for an unknown strategy, or a device that is not there.
        """
        entry = self.entry(name)
        return load_object(entry.path)(spec, build, entry)

    def __iter__(self) -> Iterator[StrategyEntry]:
        return iter(self._entries.values())
