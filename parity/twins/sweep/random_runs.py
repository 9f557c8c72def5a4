"""Random valid runs: a spec, its text, replicas and steps, drawn by hypothesis from a number.

A run depends on a seed and its number alone, because the bytes from which hypothesis makes its
choices do: run 17 is the same in a sweep of 20 runs and in one of 500.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, preset
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.sweep.random_strategies import DrawnStrategy, draw_strategies, trainable

# The fewest and the most words of a sentence.
LENGTHS = {"one word": (1, 1), "short": (1, 3), "mixed": (1, 12), "long": (7, 16)}

_MOST_WORDS = 99  # of a sentence of a language model; longer rows are cut


@dataclass(frozen=True)
class DrawnText:
    """A small generated text.

    Attributes:
      lengths: key of `LENGTHS`, how long its sentences are.
      words: the most different words; those of the first half are the more frequent ones.
      batches: about how many batches an epoch has.
      more: rows or tokens beyond whole batches.
      seed: the seed of its words.
    """

    lengths: str
    words: int
    batches: int
    more: int
    seed: int

    def write(self, spec: Spec, folder: Path) -> Path:
        """Write the text for a network; return what --data takes."""
        make_folder(folder)
        for name, lines in self.lines(spec).items():
            write_whole(folder / name, "".join(line + "\n" for line in lines).encode())
        return folder

    def lines(self, spec: Spec) -> dict[str, list[str]]:
        """Return the lines of each file."""
        source = random.Random(self.seed)
        form = NETWORKS[spec.network].text_format
        limits = [getattr(spec.text, name) for name in form.limits] or [_MOST_WORDS]
        files = {}
        for split, batches in (("train", self.batches), ("valid", 1), ("test", 1)):
            lines: list[str] = []
            more = self.more * (split == "train")
            while self._too_few(spec, lines, batches, more):
                sentences = [self._sentence(source, len(lines), most) for most in limits]
                lines.append("\t".join(sentences))
            files[f"{split}.{form.suffix}"] = lines
        return files

    def smallest_batch(self, spec: Spec) -> int:
        """Return the fewest rows that a batch of any split has."""
        most = int(spec.training.batch_size)
        if NETWORKS[spec.network].contiguous(spec.text):
            return most
        fewest = most
        for lines in self.lines(spec).values():
            rows = len(lines)
            if not NETWORKS[spec.network].text_format.pairs:
                # a row ends with <eos>, and a longer one is cut
                rows = sum(-(-(len(each.split()) + 1) // spec.text.time) for each in lines)
            fewest = min(fewest, rows // -(-rows // most))
        return fewest

    def _too_few(self, spec: Spec, lines: list[str], batches: int, more: int) -> bool:
        """Return whether the lines are fewer than a split needs."""
        if len(lines) < 2:  # with one word alone there is nothing to predict
            return True
        rows = spec.training.batch_size * batches
        if NETWORKS[spec.network].contiguous(spec.text):
            tokens = sum(len(each.split()) + 1 for each in lines)
            return bool(tokens < 1 + spec.text.time * rows + more)
        return bool(len(lines) < rows + more)

    def _sentence(self, source: random.Random, number: int, most: int) -> str:
        """Return one sentence of at most so many words."""
        lowest, highest = (min(each, most) for each in LENGTHS[self.lengths])
        words = [
            source.randrange(source.randint(1, self.words))
            for _ in range(source.randint(lowest, highest))
        ]
        words[0] = number % self.words  # at least two different words, for a vocabulary
        return " ".join(f"w{word}" for word in words)


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
