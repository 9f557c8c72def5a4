"""Lists the configurations that a benchmark times: framework or peer, strategy and layout."""

import itertools
from dataclasses import dataclass

from parity.cli.options import BenchOptions
from parity.launch.processes import PEERS
from parity.run.choose_sides import parse_strategies
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.spec import Spec


@dataclass(frozen=True)
class Case:
    """One configuration that is timed.

    Attributes:
      name: the name of the framework or peer.
      replicas: the number of replicas that share each batch.
      threads: the number of CPU threads of each replica.
      strategy: the strategy that runs the replicas; empty for the framework's default, and for
        a peer.
      kernels: "plain" or "fast"; always "fast" for a peer, which has only one kind.
    """

    name: str
    replicas: int
    threads: int
    strategy: str = ""
    kernels: str = "fast"

    @property
    def layout(self) -> str:
        """Return the numbers of replicas and threads, such as "2 x 1"."""
        return f"{self.replicas} x {self.threads}"

    @property
    def title(self) -> str:
        """Return the name, and the strategy and kernels if they are not the default."""
        plain = "plain" if self.kernels == "plain" else ""
        return " ".join(filter(None, (self.name, self.strategy, plain)))

    @property
    def label(self) -> str:
        """Return the configuration's name in folders and in bench.json."""
        return f"{self.title.replace(' ', '-')}-{self.replicas}x{self.threads}"


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
        Case(name, replicas, options.threads, strategy, kernels)
        for replicas, (name, strategy, kernels) in itertools.product(options.replicas, kinds)
    ]
    if options.peers:
        peers = [name for name in PEERS if name != "keras" or spec.network == "language-model"]
        for layout in ((cores, 1), (1, cores)):
            cases += [Case(name, *layout, strategy, kind) for name, strategy, kind in kinds]
            cases += [Case(name, *layout) for name in peers]
    return list(dict.fromkeys(cases))


def _kinds(options: BenchOptions) -> list[tuple[str, str, str]]:
    """Return (framework, strategy or "" for its default, kernels) for every side."""
    return [
        (name, "" if strategy == FRAMEWORKS[name].strategies.default else strategy, kernels)
        for kernels in options.kernels
        for name, strategies in parse_strategies(options.strategy, options.settings).items()
        for strategy in strategies
    ]
