"""The sides of a comparison of whole trainings: frameworks, strategies and peers."""

from dataclasses import dataclass, field

from parity.twins.cli.options import ConvergeOptions
from parity.twins.run.choose_sides import parse_strategies
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.strategies import StrategySettings


@dataclass(frozen=True)
class WholeSide:
    """One way of training, from every seed.

    Attributes:
      name: what tables and files call it: the framework, and its strategy if it has several.
      framework: the framework, or the peer.
      strategy: the name of its strategy; None for a peer.
      settings: the settings of the strategy.
      synchronous: whether the strategy is.
    """

    name: str
    framework: str
    strategy: str | None = None
    settings: StrategySettings = field(default_factory=StrategySettings)
    synchronous: bool = True

    def trains_as(self, other: "WholeSide") -> bool:
        """Return whether another side is meant to train in the same way.

        All synchronous strategies are, unless their replicas count differently; asynchronous
        ones, if they keep to schedules of the same kind.
        """
        if self.synchronous and other.synchronous:
            return self._counts_alike == other._counts_alike
        return self.synchronous == other.synchronous and self.settings == other.settings

    @property
    def _counts_alike(self) -> bool:
        return self.settings.shard_weights == "equal"


def whole_sides(options: ConvergeOptions) -> list[WholeSide]:
    """Return the sides that the options ask for, the peers last.

    Raises:
      UsageError: for an unknown strategy, or a setting that none of them takes.
    """
    found = []
    for framework, names in parse_strategies(options.strategy, options.settings).items():
        for name in names:
            entry = FRAMEWORKS[framework].strategies.entry(name)
            found.append(
                WholeSide(
                    f"{framework} {name}" if len(names) > 1 else framework,
                    framework,
                    name,
                    entry.settings(options.settings),
                    entry.traits.synchronous,
                )
            )
    return [*found, *(WholeSide(peer, peer) for peer in options.peers)]
