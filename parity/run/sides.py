"""Which trainings a run compares: frameworks, strategies, kernels and numbers of replicas."""

from collections.abc import Mapping, Sequence

from parity.base.errors import UsageError
from parity.cli.options import RunOptions
from parity.spec.frameworks import FRAMEWORKS, framework_of
from parity.trace.side import Side, labels_of


def sides_of(options: RunOptions) -> dict[str, Side]:
    """Return label -> side of all that a run compares, in the order of its report.

    Every framework takes part, with the strategies that `--strategy` gives it, or else with its
    default.

    Raises:
      UsageError: for an unknown framework, or a strategy that the framework lacks.
    """
    strategies = parse_strategies(options.strategy)
    sides = []
    for kernels in options.kernels:
        for replicas in options.replicas:
            for framework, names in strategies.items():
                registry = FRAMEWORKS[framework].strategies
                for name in names:
                    traits = registry.entry(name).traits
                    sides.append(
                        Side(
                            framework,
                            name,
                            replicas,
                            kernels,
                            traits.processes,
                            traits.synchronous,
                        )
                    )
    return dict(zip(labels_of(sides), sides, strict=True))


def parse_strategies(words: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return framework -> names of its strategies; where none is given, its default.

    Args:
      words: each "framework=strategy"; a framework may come several times.

    Raises:
      UsageError: for a word of another form, an unknown framework, or a strategy that the
        framework lacks.
    """
    found: dict[str, list[str]] = {name: [] for name in FRAMEWORKS}
    for word in words:
        framework, equals, name = word.partition("=")
        if not equals:
            example = ",".join(
                f"{each.name}={each.strategies.default}" for each in FRAMEWORKS.values()
            )
            raise UsageError(f"--strategy is {word!r}; allowed: such as {example}")
        entry = framework_of(framework).strategies.entry(name)
        found[framework].append(entry.name)
    return {
        framework: names or [FRAMEWORKS[framework].strategies.default]
        for framework, names in found.items()
    }
