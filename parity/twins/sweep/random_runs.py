"""Random valid runs: a spec, its text, replicas and steps, drawn by hypothesis from a number.

A run depends on a seed and its number alone, because the bytes from which hypothesis makes its
choices do: run 17 is the same in a sweep of 20 runs and in one of 500.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, preset
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.sweep.random_strategies import DrawnStrategy, draw_strategies, trainable
from parity.twins.sweep.random_text import LENGTHS, DrawnText

_BYTES = 8192  # more than the choices of any run need


@dataclass(frozen=True)
class DrawnRun:
    """A run to try.

    Attributes:
      number, seed: what the run was drawn from.
      spec: what to train.
      text: what to train it on.
      replicas: how many replicas share each batch.
      steps: how many steps to train; with asynchronous strategies, how many updates.
      options: fields of TrainOptions, by name: how to decode, and how much to evaluate.
      strategies: framework -> its strategy, and the settings of that.
    """

    number: int
    seed: int
    spec: Spec
    text: DrawnText
    replicas: int
    steps: int
    options: dict[str, Any]
    strategies: dict[str, DrawnStrategy]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def write_text(self, folder: Path) -> Path:
        """Write the text; return what --data takes."""
        return self.text.write(self.spec, folder)


def draw(
    seed: int, number: int, choices: Sequence[Mapping[str, StrategyEntry]] | None = None
) -> DrawnRun:
    """Draw the run with this number.

    Args:
      seed: the seed of the sweep.
      number: the number of the run.
      choices: the strategies to choose from, as `comparable_choices` returns them; None for
        the default strategy of each framework.

    Raises:
      UsageError: if hypothesis is not installed.
    """
    try:
        from hypothesis import given, settings
    except ImportError:
        raise UsageError(
            "hypothesis is not installed; allowed: a sweep where `make setup` has installed "
            "what requirements.lock pins"
        ) from None
    found: list[dict[str, Any]] = []

    @settings(database=None, deadline=None)
    @given(_run_values())
    def take(values: dict[str, Any]) -> None:
        found.append(values)

    # not by hypothesis's own search, whose choices depend on what it has tried before
    content = np.random.Generator(np.random.PCG64([seed, number])).bytes(_BYTES)
    take.hypothesis.fuzz_one_input(content)
    (values,) = found
    text = DrawnText(**values["text"])
    spec = preset(values["network"], "tiny").replace(**values["spec"])
    replicas = min(values["replicas"], text.smallest_batch(spec))
    defaults = {name: each.strategies.entry(None) for name, each in FRAMEWORKS.items()}
    spec = trainable(spec, choices or [defaults])
    strategies = draw_strategies(seed, number, spec, replicas, choices or [defaults])
    steps = values["steps"]
    if not all(
        FRAMEWORKS[each].strategies.entry(drawn.name).traits.synchronous
        for each, drawn in strategies.items()
    ):
        steps *= replicas  # each of which makes an update of its own for a step
    return DrawnRun(number, seed, spec, text, replicas, steps, values["options"], strategies)


def _run_values() -> Any:
    """Return the hypothesis strategy that draws a run's values."""
    from hypothesis import strategies as st

    @st.composite
    def values(draw_from: Callable[[Any], Any]) -> dict[str, Any]:
        return _Choices(draw_from).run()

    return values()


class _Choices:
    """Draws the values of one run. A run's number stands for the order of the draws: keep it.

    Args:
      draw_from: draws a value from a hypothesis strategy.
    """

    def __init__(self, draw_from: Callable[[Any], Any]):
        from hypothesis import strategies

        self._draw_from, self._strategies = draw_from, strategies

    def run(self) -> dict[str, Any]:
        drawn = {name: each.draw for name, each in NETWORKS.items() if each.draw is not None}
        network = self.one_of(*drawn)
        optimizer = self.one_of("sgd", "adam")
        limit = self.integer(1, 12)
        spec = self.training(optimizer)
        spec |= drawn[network](self, spec, limit)
        options = self.decoding() if NETWORKS[network].decodes else {}
        run: dict[str, Any] = {
            "network": network,
            "spec": spec,
            "options": options,
            "text": self.text(),
            "replicas": self.integer(1, 4),
            "steps": self.integer(3, 5),
        }
        spec["loss_per"] = self.one_of("token", "token", "row")
        options["evaluate"] = self.one_of(0, 1, 4)
        return run

    def training(self, optimizer: str) -> dict[str, Any]:
        rates = {"sgd": (0.01, 0.1, 0.5, 1.0, 2.0), "adam": (1e-4, 1e-3, 0.01, 0.05)}
        values = {
            "optimizer": optimizer,
            "learning_rate": self.one_of(*rates[optimizer]),
            "batch_size": self.integer(1, 9),
            "decay": self.one_of(1.0, 0.9, 0.5, 0.01),
            "decay_after": self.integer(1, 2),
            "beta1": self.one_of(0.9, 0.0, 0.5, 0.99),
            "beta2": self.one_of(0.999, 0.0, 0.9, 0.98),
            "epsilon": self.one_of(1e-8, 1e-10, 1e-5, 1e-2),
            "clip_norm": self.one_of(5.0, 1e-3, 0.1, 1.0, 1e3),
            "seed": self.integer(0, 2**31 - 1),
            "dtype": self.one_of("float64", "float32"),
            "epochs": 9,
            "embedding_size": self.integer(1, 24),
            "hidden_size": self.integer(1, 24),
            "num_layers": self.one_of(1, 2, 3),
            "keep": self.one_of(1.0, 0.9, 0.5, 0.1),
            "initial_scale": self.one_of(0.1, 0.01, 0.5, 1.0, 3.0),
        }
        if values["beta2"] < values["beta1"] ** 2:
            # Kingma & Ba 2015: Adam's steps have no bound then, and weights jump to millions
            values["beta2"] = 0.999
        return values

    def decoding(self) -> dict[str, Any]:
        return {
            "decode": self.one_of(0, 0, 3),
            "beam": self.integer(1, 4),
            "length_penalty": self.one_of(0.6, 0.0, 1.0),
        }

    def text(self) -> dict[str, Any]:
        return {
            "lengths": self.one_of(*LENGTHS),
            "words": self.integer(2, 60),
            "batches": self.integer(1, 3),
            "more": self.integer(0, 8),
            "seed": self.integer(0, 2**31 - 1),
        }

    def one_of(self, *values: Any) -> Any:
        return self._draw_from(self._strategies.sampled_from(values))

    def integer(self, lowest: int, highest: int) -> int:
        return int(self._draw_from(self._strategies.integers(lowest, highest)))

    def boolean(self) -> bool:
        return bool(self._draw_from(self._strategies.booleans()))
