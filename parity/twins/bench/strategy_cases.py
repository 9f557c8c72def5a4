"""Lists the configurations that `bench --strategies` times: strategies, and their counterparts.

The counterpart of a strategy is the way in which PyTorch or Keras does the same:
DistributedDataParallel and MirroredStrategy for data parallelism, Hogwild for asynchronous
training, torch.distributed.pipelining for layers on devices.
"""

from collections.abc import Iterable, Mapping, Sequence

from parity.twins.bench.cases import Case
from parity.twins.cli.options import BenchOptions
from parity.twins.launch.peer_strategies import counterpart
from parity.twins.spec.frameworks import FRAMEWORKS, strategies_named
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategyEntry, check_accepted


def strategy_cases(
    spec: Spec, options: BenchOptions, cores: int, peers: Iterable[str]
) -> list[Case]:
    """Return the configurations of all strategies that are chosen, and their counterparts.

    Each strategy has the numbers of replicas that were asked for. The layers of a replica are
    spread over several devices only while there is a core for each, or for one replica. The
    default strategy of each framework is always there, also with one replica if a strategy
    spreads layers: it is what the others are compared with.

    Args:
      spec: the network, its text and its training.
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
    counterparts: dict[Case, None] = {}
    for peer in peers:
        for case in cases:
            for other in _counterparts(peer, spec, case):
                counterparts[other] = None
    return list(dict.fromkeys([*cases, *sorted(counterparts, key=_peers_order)]))


def _peers_order(case: Case) -> tuple[str, str, int]:
    return case.name, case.strategy, case.replicas


def peers_left_out(spec: Spec) -> dict[str, str]:
    """Return the peers that do not train a network as both sides do, each with the reason."""
    seen = spec.network, spec.model.keep, spec.training.optimizer
    if seen == ("language-model", 1.0, "sgd"):
        return {}
    return {"keras": "it trains the language model with SGD and without dropout only"}


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
) -> list[Case]:
    cases: list[Case] = []
    for entry in entries:
        stages = entry.settings(options.settings).stages or 1
        all_replicas = list(options.replicas)
        if stages > 1:
            all_replicas = [n for n in all_replicas if n * stages <= cores] or [1]
            one_device = FRAMEWORKS[framework].strategies.default
            cases.insert(0, Case(framework, 1, options.threads, one_device, kernels))
        cases += [
            Case(framework, replicas, options.threads, entry.name, kernels, stages)
            for replicas in all_replicas
        ]
    return cases


def _counterparts(peer: str, spec: Spec, case: Case) -> list[Case]:
    """Return a peer's configuration that does what a side's does, in a list, or []."""
    entry = counterpart(peer, case.entry.traits)
    if entry is None or (case.stages > 1 and not _has_pipeline(spec, case)):
        return []
    return [Case(peer, case.replicas, case.threads, entry.name, stages=case.stages)]


def _has_pipeline(spec: Spec, case: Case) -> bool:
    return case.replicas == 1 and spec.network == "language-model"


def counterpart_cases(case: Case, cases: Iterable[Case]) -> Mapping[str, Case]:
    """Return peer -> the configuration of that peer that does what a side's does.

    Args:
      case: a side's.
      cases: all that were timed.
    """
    return {
        each.name: each
        for each in cases
        if each.is_peer
        and (each.replicas, each.threads, each.stages)
        == (case.replicas, case.threads, case.stages)
        and counterpart(each.name, case.entry.traits) == each.entry
    }
