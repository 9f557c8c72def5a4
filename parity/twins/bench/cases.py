"""Lists the configurations that a benchmark times: framework or peer, strategy and layout."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from parity.twins.cli.options import BenchOptions
from parity.twins.launch.peer_strategies import PEER_STRATEGIES, has_counterpart
from parity.twins.launch.processes import PEERS
from parity.twins.run.choose_sides import parse_strategies
from parity.twins.spec.frameworks import FRAMEWORKS, strategies_named
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategyEntry, StrategyRegistry, check_accepted


@dataclass(frozen=True)
class BenchCase:
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


def cases_of(spec: Spec, options: BenchOptions, cores: int) -> list[BenchCase]:
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
        peers = [name for name in PEERS if name in NETWORKS[spec.network].builders]
        for replicas, threads in ((cores, 1), (1, cores)):
            cases += [replace(kind, replicas=replicas, threads=threads) for kind in kinds]
            cases += [BenchCase(name, replicas, threads) for name in peers]
    return list(dict.fromkeys(cases))


def _kinds(options: BenchOptions) -> list[BenchCase]:
    """Return every side with one replica."""
    kinds = []
    for kernels in options.kernels:
        for name, entries in parse_strategies(options.strategy, options.settings).items():
            for entry in entries:
                stages = entry.settings(options.settings).stages or 1
                named = "" if entry.name == FRAMEWORKS[name].strategies.default else entry.name
                kinds.append(BenchCase(name, 1, options.threads, named, kernels, stages))
    return kinds


def strategy_cases(options: BenchOptions, cores: int, peers: Iterable[str]) -> list[BenchCase]:
    """Return the configurations of all strategies that are chosen, and their counterparts.

    The counterpart of a synchronous data-parallel strategy is DistributedDataParallel in
    PyTorch and MirroredStrategy in Keras.

    Each strategy has the numbers of replicas that were asked for. The layers of a replica are
    spread over several devices only while there is a core for each, or for one replica. The
    default strategy of each framework is always there, also with one replica if a strategy
    spreads layers: it is what the others are compared with.

    Args:
      options: what to time.
      cores: the number of CPU cores.
      peers: the names of the peers to time.

    Raises:
      UsageError: for an unknown strategy, or a setting that none takes.
    """
    cases = []
    chosen = chosen_strategies(options)
    for kernels in options.kernels:
        for name, entries in chosen.items():
            cases += _cases_of_framework(name, entries, options, cores, kernels)
    counterparts = {
        BenchCase(peer, case.replicas, case.threads, PEER_STRATEGIES[peer].default)
        for peer in peers
        for case in cases
        if has_counterpart(case.entry.traits)
    }
    in_order = sorted(counterparts, key=lambda case: (case.name, case.replicas))
    return list(dict.fromkeys([*cases, *in_order]))


def peers_left_out(spec: Spec) -> dict[str, str]:
    """Return the peers that do not train a network as both sides do, each with the reason."""
    builders = NETWORKS[spec.network].builders
    found = {
        name: f"it does not train {spec.network}" for name in PEERS if name not in builders
    }
    if (spec.model.keep, spec.training.optimizer) != (1.0, "sgd"):
        found.setdefault("keras", "it trains with SGD and without dropout only")
    return found


def chosen_strategies(options: BenchOptions) -> dict[str, list[StrategyEntry]]:
    """Return the strategies that `--strategies` names, by framework, the default one first.

    Raises:
      UsageError: for an unknown strategy or framework, a strategy that its framework lacks, or
        a setting that none of the strategies takes.
    """
    found = {}
    for name, entries in strategies_named(options.strategies, "--strategies").items():
        default = FRAMEWORKS[name].strategies.entry(None)
        found[name] = list(dict.fromkeys([default, *entries]))
    check_accepted(options.settings, [entry for each in found.values() for entry in each])
    return found


def _cases_of_framework(
    framework: str,
    entries: Sequence[StrategyEntry],
    options: BenchOptions,
    cores: int,
    kernels: str,
) -> list[BenchCase]:
    cases: list[BenchCase] = []
    for entry in entries:
        stages = entry.settings(options.settings).stages or 1
        all_replicas = list(options.replicas)
        if stages > 1:
            all_replicas = [n for n in all_replicas if n * stages <= cores] or [1]
            one_device = FRAMEWORKS[framework].strategies.default
            cases.insert(0, BenchCase(framework, 1, options.threads, one_device, kernels))
        cases += [
            BenchCase(framework, replicas, options.threads, entry.name, kernels, stages)
            for replicas in all_replicas
        ]
    return cases


def counterpart_cases(case: BenchCase, cases: Iterable[BenchCase]) -> Mapping[str, BenchCase]:
    """Return peer -> the configuration of that peer that does what a side's does.

    Args:
      case: a side's.
      cases: all that were timed.
    """
    return {
        each.name: each
        for each in cases
        if each.is_peer
        and has_counterpart(case.entry.traits)
        and (each.replicas, each.threads) == (case.replicas, case.threads)
    }
