"""The strategies of a random run, and their settings.

They are drawn apart from the rest of the run: run 17 trains the same network on the same text
whatever strategies are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.stages import most_stages
from parity.twins.spec.strategies import StrategyEntry, StrategySettings

_APART = 1  # told from the stream of numbers that the rest of the run is drawn from


@dataclass(frozen=True)
class DrawnStrategy:
    """The strategy of one side of a run.

    Attributes:
      name: its name.
      settings: its settings, by the names of the fields of StrategySettings.
    """

    name: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name} {StrategySettings(**self.settings).text}".rstrip()


def comparable_choices(
    strategies: Mapping[str, Sequence[StrategyEntry]],
) -> list[dict[str, StrategyEntry]]:
    """Return every choice of one strategy for each framework whose steps can be compared.

    Args:
      strategies: framework -> its strategies to choose from.

    Returns:
      For each choice, framework -> strategy. An asynchronous one makes an update where a
      synchronous one makes a step: all of a choice are one or the other.

    Raises:
      UsageError: if there is none, or for a strategy with an environment of its own.
    """
    for entry in (
        each for of_one in strategies.values() for each in of_one if each.environment
    ):
        raise UsageError(
            f"--strategy is {entry.name!r}, which runs in {entry.environment}; allowed in a "
            "sweep: strategies that run in the environment of their framework"
        )
    found = [
        dict(zip(strategies, choice, strict=True))
        for choice in product(*strategies.values())
        if len({entry.traits.synchronous for entry in choice}) == 1
    ]
    if not found:
        words = ",".join(
            f"{each}={one.name}" for each in strategies for one in strategies[each]
        )
        raise UsageError(
            f"--strategy is {words}; allowed: a synchronous strategy of each framework, or an "
            "asynchronous one of each"
        )
    return found


def trainable(spec: Spec, choices: Sequence[Mapping[str, StrategyEntry]]) -> Spec:
    """Return a spec that one of the choices can train: as given, if one can.

    Args:
      spec: what was drawn.
      choices: what `comparable_choices` returns.
    """
    if any(_can_train(choice, spec) for choice in choices):
        return spec
    for traits in [entry.traits for entry in choices[0].values()]:
        if not traits.can_train(spec.training):
            spec = spec.replace(dtype=traits.dtypes[0], optimizer=traits.optimizers[0])
    return spec


def _can_train(choice: Mapping[str, StrategyEntry], spec: Spec) -> bool:
    return all(entry.traits.can_train(spec.training) for entry in choice.values())


def draw_strategies(
    seed: int,
    number: int,
    spec: Spec,
    replicas: int,
    choices: Sequence[Mapping[str, StrategyEntry]],
) -> dict[str, DrawnStrategy]:
    """Draw the strategy of each side of a run, and its settings.

    Args:
      seed, number: those of the run.
      spec: what it trains.
      replicas: the number of replicas.
      choices: what `comparable_choices` returns; one at least can train the spec.
    """
    choices = [choice for choice in choices if _can_train(choice, spec)]
    draw = np.random.Generator(np.random.PCG64([seed, number, _APART]))
    # strategy by strategy: a pair in each draw would hardly ever be the only asynchronous one
    left = list(choices)
    for framework in FRAMEWORKS:
        names = list(dict.fromkeys(choice[framework].name for choice in left))
        name = names[int(draw.integers(len(names)))]
        left = [choice for choice in left if choice[framework].name == name]
    (choice,) = left
    values: dict[str, Any] = {
        "stages": int(draw.integers(1, most_stages(spec), endpoint=True)),
        "micro_batches": int(draw.integers(1, 4, endpoint=True)),
        "shard_weights": str(draw.choice(["tokens", "equal"])),
        "schedule": str(draw.integers(2**31)),  # both sides keep to the same one
        "staleness": int(draw.choice([0, 1, 3, 8])),
        "servers": int(draw.integers(1, 3, endpoint=True)),
    }
    shares = [each for each in range(1, replicas + 1) if replicas % each == 0]
    processes = {"paddle": int(draw.choice(shares)), "tensorflow": replicas}
    for framework, entry in choice.items():
        if entry.traits.serves:  # a worker is one replica, as on CPUs all of TensorFlow's are
            processes[framework] = replicas
    return {
        framework: DrawnStrategy(
            entry.name,
            {
                name: value
                for name, value in (values | {"processes": processes[framework]}).items()
                if name in entry.accepted_settings
            },
        )
        for framework, entry in choice.items()
    }
