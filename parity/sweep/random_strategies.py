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
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.spec import Spec
from parity.spec.stages import most_stages
from parity.spec.strategies import StrategyEntry, StrategySettings

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
    strategies: Mapping[str, Sequence[str]],
) -> list[dict[str, StrategyEntry]]:
    """Return every choice of one strategy for each framework whose steps can be compared.

    Args:
      strategies: framework -> names of its strategies, to choose from.

    Returns:
      For each choice, framework -> strategy. An asynchronous one makes an update where a
      synchronous one makes a step: all of a choice are one or the other.

    Raises:
      UsageError: if there is none.
    """
    entries = [
        [FRAMEWORKS[each].strategies.entry(n) for n in strategies[each]] for each in strategies
    ]
    found = [
        dict(zip(strategies, choice, strict=True))
        for choice in product(*entries)
        if len({entry.traits.synchronous for entry in choice}) == 1
    ]
    if not found:
        words = ",".join(f"{each}={name}" for each in strategies for name in strategies[each])
        raise UsageError(
            f"--strategy is {words}; allowed: a synchronous strategy of each framework, or an "
            "asynchronous one of each"
        )
    return found


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
      choices: what `comparable_choices` returns.
    """
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
    }
    shares = [each for each in range(1, replicas + 1) if replicas % each == 0]
    # on CPUs a process of TensorFlow's has but one replica
    processes = {"paddle": int(draw.choice(shares)), "tensorflow": replicas}
    values["servers"] = int(draw.integers(1, 2, endpoint=True))
    return {
        framework: DrawnStrategy(
            entry.name,
            {
                name: value
                for name, value in (values | {"processes": processes[framework]}).items()
                if name in entry.taken
            },
        )
        for framework, entry in choice.items()
    }
