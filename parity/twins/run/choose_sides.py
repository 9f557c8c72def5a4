"""Lists the trainings that a run compares, by framework, strategy, kernels and replicas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from parity.base.errors import UsageError
from parity.twins.cli.options import RunOptions
from parity.twins.processes.hosts import read_hosts
from parity.twins.spec.frameworks import FRAMEWORKS, framework_of, strategies_named
from parity.twins.spec.gpus import gpu_count
from parity.twins.spec.strategies import StrategyEntry, StrategySettings, check_accepted
from parity.twins.trace.side import TrainedSide, labels_of

_REPLICAS = (1, 2, 3)  # the numbers of replicas that a run compares by default, at most
_SCHEDULE = "1"  # the seed of the schedule that asynchronous sides keep to


def frameworks_of(options: RunOptions) -> tuple[str, ...]:
    """Return the frameworks that take part in a run, in the order of the registry.

    Raises:
      UsageError: for an unknown framework, or one that does not train the network.
    """
    network = options.network
    able = [name for name, each in FRAMEWORKS.items() if each.trains(network)]
    for name in options.frameworks:
        if not framework_of(name, "--frameworks").trains(network):
            raise UsageError(
                f"--frameworks is {','.join(options.frameworks)}; allowed for the network "
                f"{network}: {', '.join(able)}"
            )
    return tuple(name for name in able if name in (options.frameworks or able))


def sides_of(options: RunOptions) -> dict[str, TrainedSide]:
    """Return the sides that a run compares, label -> side, in the order of the report.

    Each framework takes part with the strategies that `--strategy` names for it or else with
    its default strategy.

    Raises:
      UsageError: for an unknown framework, a strategy that the framework lacks, or a setting
        that none of the strategies takes.
    """
    chosen = frameworks_of(options)
    strategies = parse_strategies(options.strategy, options.settings, chosen)
    sides = []
    for kernels in options.kernels:
        for replicas in options.replicas:
            for framework, entries in strategies.items():
                for entry in entries:
                    settings = compared_settings(entry, options.settings)
                    sides.append(
                        TrainedSide(
                            framework,
                            entry.name,
                            replicas,
                            kernels,
                            entry.processes(settings, replicas),
                            entry.traits.synchronous,
                            settings,
                        )
                    )
    return dict(zip(labels_of(sides), sides, strict=True))


def compared_settings(entry: StrategyEntry, given: StrategySettings) -> StrategySettings:
    """Return a strategy's settings in a comparison, as given or else by default.

    Asynchronous sides keep to one schedule unless --schedule says otherwise: those that run
    freely could be compared with the oracle alone.

    Args:
      entry: the strategy.
      given: the settings that were given.
    """
    if "schedule" in entry.accepted_settings and given.schedule is None:
        given = replace(given, schedule=_SCHEDULE)
    return entry.settings(given)


def of_hosts(options: RunOptions) -> RunOptions:
    """Return the options with as many processes, and replicas, as the hosts of --hosts take.

    What is given is kept; without --hosts, the default numbers of replicas are filled in.

    Raises:
      UsageError: for a file that cannot be used, or if no strategy runs in several processes.
    """
    if options.hosts is None:
        processes = options.settings.processes
        most = max(1, gpu_count()) if options.device == "gpu" else max(_REPLICAS)
        default = (processes,) if processes else _REPLICAS[:most]
        return replace(options, replicas=options.replicas or default)
    hosts = read_hosts(options.hosts)
    named = parse_strategies(options.strategy, StrategySettings(), frameworks_of(options))
    entries = [entry for each in named.values() for entry in each]
    if not any(entry.traits.processes for entry in entries):
        names = " or ".join(entry.name for entry in entries)
        raise UsageError(
            f"--hosts is {options.hosts}; not allowed for the strategy {names}, which runs in "
            "one process"
        )
    size = options.settings.processes or hosts.ranks
    hosts.check(size)
    settings = replace(options.settings, processes=size)
    return replace(options, settings=settings, replicas=options.replicas or (size,))


def resolved(options: RunOptions) -> RunOptions:
    """Return the options with the defaults filled in that choose the sides, as `of_hosts`.

    Raises:
      UsageError: as `sides_of` and `of_hosts`.
    """
    options = of_hosts(options)
    chosen = frameworks_of(options)
    named = parse_strategies(options.strategy, options.settings, chosen)
    words = [f"{framework}={each.name}" for framework in named for each in named[framework]]
    # the names say what --sync does
    return replace(options, frameworks=chosen, strategy=tuple(words), sync=False)


def leading_sides(
    sides: Mapping[str, TrainedSide], *, most_replicas: bool = True
) -> dict[str, TrainedSide]:
    """Return one side of each framework, label -> side, to stand for its others.

    It is of the framework's first synchronous strategy, with the first kernels.

    Args:
      sides: label -> side, in the order of the report.
      most_replicas: whether to take the largest number of replicas, or the smallest.
    """
    each = sides_of_strategies(sides, most_replicas=most_replicas)
    first: dict[str, str] = {}
    for label, side in each.items():
        first.setdefault(side.framework, label)
    return {label: each[label] for label in first.values()}


def sides_of_strategies(
    sides: Mapping[str, TrainedSide], *, most_replicas: bool = True
) -> dict[str, TrainedSide]:
    """Return one side of each framework's synchronous strategies and kernels, label -> side.

    Args:
      sides, most_replicas: as for `leading_sides`.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for label, side in sides.items():
        if side.synchronous:
            found.setdefault(_kind(side), []).append(label)
    choose = max if most_replicas else min
    chosen = (choose(alike, key=lambda each: sides[each].replicas) for alike in found.values())
    return {label: sides[label] for label in chosen}


def without_leader(sides: Mapping[str, TrainedSide]) -> list[str]:
    """Return the labels of the sides that none of `sides_of_strategies` stands for."""
    led = {_kind(side) for side in sides_of_strategies(sides).values()}
    return [label for label, side in sides.items() if _kind(side) not in led]


def _kind(side: TrainedSide) -> tuple[str, str, str]:
    return side.framework, side.strategy, side.kernels


def parse_strategies(
    words: Sequence[str], settings: StrategySettings, frameworks: Sequence[str] = ()
) -> dict[str, list[StrategyEntry]]:
    """Return the strategies of every framework, its default if none is given.

    Args:
      words: as for `strategies_named`.
      settings: the settings that were given, which one of the strategies must take.
      frameworks: the frameworks that take part; by default all.

    Returns:
      Framework -> entries of its registry.

    Raises:
      UsageError: for an unknown framework, a strategy that it or every framework lacks, or a
        setting that none of the strategies takes.
    """
    frameworks = frameworks or tuple(FRAMEWORKS)
    named = strategies_named(words, among=frameworks)
    chosen = {
        name: named.get(name, [FRAMEWORKS[name].strategies.entry(None)]) for name in frameworks
    }
    check_accepted(settings, [entry for entries in chosen.values() for entry in entries])
    return chosen
