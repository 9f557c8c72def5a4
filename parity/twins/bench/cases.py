"""Lists the configurations that a benchmark times: framework or peer, strategy and layout."""

import itertools
from dataclasses import dataclass, replace

from parity.twins.cli.options import BenchOptions
from parity.twins.launch.peer_strategies import PEER_STRATEGIES
from parity.twins.launch.processes import PEERS
from parity.twins.run.choose_sides import parse_strategies
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategyEntry, StrategyRegistry


@dataclass(frozen=True)
class Case:
    """One configuration that is timed.

    Attributes:
      name: the name of the framework or peer.
      replicas: the number of replicas that share each batch.
      threads: the number of CPU threads of each replica, or of each of its stages.
      strategy: the strategy that runs the replicas; empty for the default of the framework or
        peer.
      kernels: "plain" or "fast"; always "fast" for a peer, which has only one kind.
      stages: the number of devices that the layers of a replica are spread over.
    """

    name: str
    replicas: int
    threads: int
    strategy: str = ""
    kernels: str = "fast"
    stages: int = 1

    @property
    def layout(self) -> str:
        """Return the numbers of replicas, threads and stages, such as "2 x 1, 2 stages"."""
        stages = f", {self.stages} stages" if self.stages > 1 else ""
        return f"{self.replicas} x {self.threads}{stages}"

    @property
    def is_peer(self) -> bool:
        """Return whether it is a peer's, not a side's."""
        return self.name not in FRAMEWORKS

    @property
    def entry(self) -> StrategyEntry:
        """Return the entry of its strategy in the registry of the framework or peer."""
        return self._strategies.entry(self.strategy or None)

    @property
    def default_entry(self) -> StrategyEntry:
        """Return the entry of the default strategy of the framework or peer."""
        return self._strategies.entry(None)

    @property
    def _strategies(self) -> StrategyRegistry:
        return PEER_STRATEGIES[self.name] if self.is_peer else FRAMEWORKS[self.name].strategies

    @property
    def all_threads(self) -> int:
        """Return the number of threads of all stages of all replicas."""
        return self.replicas * self.stages * self.threads

    @property
    def title(self) -> str:
        """Return the name, and the strategy and kernels if they are not the default."""
        plain = "plain" if self.kernels == "plain" else ""
        return " ".join(filter(None, (self.name, self.strategy, plain)))

    @property
    def label(self) -> str:
        """Return the configuration's name in folders and in bench.json."""
        stages = f"-{self.stages}-stages" if self.stages > 1 else ""
        return f"{self.title.replace(' ', '-')}-{self.replicas}x{self.threads}{stages}"


def cases_of(spec: Spec, options: BenchOptions, cores: int) -> list[Case]:
    """Return the configurations to time: the sides, and with --peers also the peers.

    With --peers all are also timed in the two layouts that use every core: one replica per
    core, and one replica with a thread per core.

    Args:
      spec: the network, its text and its training.
      options: what to time.
      cores: the number of CPU cores.

    Raises:
      UsageError: for a strategy that its framework lacks, or a setting that none takes.
    """
    kinds = _kinds(options)
    cases = [
        replace(kind, replicas=replicas)
        for replicas, kind in itertools.product(options.replicas, kinds)
    ]
    if options.peers:
        peers = [name for name in PEERS if name != "keras" or spec.network == "language-model"]
        for replicas, threads in ((cores, 1), (1, cores)):
            cases += [replace(kind, replicas=replicas, threads=threads) for kind in kinds]
            cases += [Case(name, replicas, threads) for name in peers]
    return list(dict.fromkeys(cases))


def _kinds(options: BenchOptions) -> list[Case]:
    """Return every side with one replica."""
    kinds = []
    for kernels in options.kernels:
        for name, strategies in parse_strategies(options.strategy, options.settings).items():
            registry = FRAMEWORKS[name].strategies
            for strategy in strategies:
                stages = registry.entry(strategy).settings(options.settings).stages or 1
                named = "" if strategy == registry.default else strategy
                kinds.append(Case(name, 1, options.threads, named, kernels, stages))
    return kinds
