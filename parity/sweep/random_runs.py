"""Random valid runs: a spec, its text, replicas and steps, drawn by hypothesis from a number.

A run is a pure function of a seed and a number: the bytes that hypothesis makes its choices of
come from them alone, so that run 17 is the same in a sweep of 20 and of 500.
"""

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole
from parity.spec.presets import preset
from parity.spec.spec import Spec

_BYTES = 8192  # more than any run's choices need
# Words of a sentence: at least and at most.
_LENGTHS = {"one word": (1, 1), "short": (1, 3), "mixed": (1, 12), "long": (7, 16)}


@dataclass(frozen=True)
class DrawnText:
    """A small generated text.

    Attributes:
      lengths: kind of its sentences, by their number of words.
      words: how many different ones, at most; the first half is the commoner one.
      batches: of an epoch, about.
      more: rows or tokens beyond whole batches.
      seed: of its words.
    """

    lengths: str
    words: int
    batches: int
    more: int
    seed: int


@dataclass(frozen=True)
class DrawnRun:
    """A run to try.

    Attributes:
      number, seed: what it was drawn from.
      spec: what is trained.
      text: what is read.
      replicas, steps: how many.
      options: of TrainOptions, by name: how to decode.
    """

    number: int
    seed: int
    spec: Spec
    text: DrawnText
    replicas: int
    steps: int
    options: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def write_text(self, folder: Path) -> Path:
        """Write the text; return what --data takes."""
        make_folder(folder)
        for name, lines in _text(self.spec, self.text).items():
            write_whole(folder / name, "".join(line + "\n" for line in lines).encode())
        return folder

    def __str__(self) -> str:
        values = self.spec.values()
        on_one_line = " ".join(f"{name}={value}" for name, value in values.items())
        return (
            f"run {self.number}: {self.spec.network} {on_one_line}; {self.replicas} replicas, "
            f"{self.steps} steps; text: {self.text}; {self.options}"
        )


def draw(seed: int, number: int) -> DrawnRun:
    """Draw the run of a number.

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
    @given(_choices())
    def take(values: dict[str, Any]) -> None:
        found.append(values)

    # not hypothesis's own random choices: those depend on what it has tried before
    content = np.random.Generator(np.random.PCG64([seed, number])).bytes(_BYTES)
    take.hypothesis.fuzz_one_input(content)
    (values,) = found
    text = DrawnText(**values["text"])
    spec = preset(values["network"], "tiny").replace(**values["spec"])
    replicas = min(values["replicas"], _smallest_batch(spec, text))
    return DrawnRun(number, seed, spec, text, replicas, values["steps"], values["options"])


def _choices() -> Any:
    """Return the strategy that a run's values are drawn with."""
    from hypothesis import strategies as st

    def one_of(*values: Any) -> Any:
        return st.sampled_from(values)

    @st.composite
    def choices(pick: Callable[[Any], Any]) -> dict[str, Any]:
        def size(most: int) -> int:
            return int(pick(st.integers(1, most)))

        network = pick(one_of("language-model", "seq2seq"))
        optimizer = pick(one_of("sgd", "adam"))
        rates = {"sgd": (0.01, 0.1, 0.5, 1.0, 2.0), "adam": (1e-4, 1e-3, 0.01, 0.05)}
        limit = size(12)
        spec = {
            "optimizer": optimizer,
            "learning_rate": pick(one_of(*rates[optimizer])),
            "batch_size": size(9),
            "decay": pick(one_of(1.0, 0.9, 0.5, 0.01)),
            "decay_after": size(2),
            "beta1": pick(one_of(0.9, 0.0, 0.5, 0.99)),
            "beta2": pick(one_of(0.999, 0.0, 0.9, 0.98)),
            "epsilon": pick(one_of(1e-8, 1e-10, 1e-5, 1e-2)),
            "clip_norm": pick(one_of(5.0, 1e-3, 0.1, 1.0, 1e3)),
            "seed": pick(st.integers(0, 2**31 - 1)),
            "dtype": pick(one_of("float64", "float32")),
            "epochs": 9,
            "embedding_size": size(24),
            "hidden_size": size(24),
            "num_layers": pick(one_of(1, 2, 3)),
            "keep": pick(one_of(1.0, 0.9, 0.5, 0.1)),
            "initial_scale": pick(one_of(0.1, 0.01, 0.5, 1.0, 3.0)),
        }
        if spec["beta2"] < spec["beta1"] ** 2:
            # Kingma & Ba 2015: Adam's steps know no bound then, and weights jump to millions
            spec["beta2"] = 0.999
        options = {}
        if network == "language-model":
            spec |= {
                "vocabulary_size": pick(st.integers(5, 60)),
                "batching": pick(one_of("stream", "sentences")),
                "time": limit,
            }
        else:
            shared = pick(st.booleans())
            source = pick(st.integers(6, 60))
            spec |= {
                "source_vocabulary_size": source,
                "target_vocabulary_size": source if shared else pick(st.integers(6, 60)),
                "share_vocabulary": shared,
                "source_segmenter": "spaces",
                "target_segmenter": "spaces",
                "source_limit": limit,
                "target_limit": size(11),
                "cell": pick(one_of("lstm", "gru")),
                "attention": pick(one_of("dot", "general", "scaled", "bahdanau")),
                "input_feeding": pick(st.booleans()),
                "bidirectional": pick(st.booleans()),
            }
            if spec["cell"] == "gru":
                # Paddle's op divides by the reset gate on its way back: in float32 that is 0/0
                # where what the gate is made of is below -88, as weights up to 3 can make it
                spec["initial_scale"] = min(spec["initial_scale"], 1.0)
            if spec["bidirectional"]:
                spec["hidden_size"] += spec["hidden_size"] % 2
            options = {
                "decode": pick(one_of(0, 0, 3)),
                "beam": size(4),
                "length_penalty": pick(one_of(0.6, 0.0, 1.0)),
            }
        text = {
            "lengths": pick(one_of(*_LENGTHS)),
            "words": pick(st.integers(2, 60)),
            "batches": pick(st.integers(1, 3)),
            "more": pick(st.integers(0, 8)),
            "seed": pick(st.integers(0, 2**31 - 1)),
        }
        return {
            "network": network,
            "spec": spec,
            "options": options,
            "text": text,
            "replicas": pick(st.integers(1, 4)),
            "steps": pick(st.integers(3, 5)),
        }

    return choices()


def _text(spec: Spec, text: DrawnText) -> dict[str, list[str]]:
    """Return the lines of each file."""
    source = random.Random(text.seed)
    pairs = spec.network == "seq2seq"
    lines: list[str] = []

    def sentence(most: int) -> list[str]:
        lowest, highest = (min(each, most) for each in _LENGTHS[text.lengths])
        words = [
            source.randrange(source.randint(1, text.words))
            for _ in range(source.randint(lowest, highest))
        ]
        words[0] = len(lines) % text.words  # two different ones, or there is no vocabulary
        return [f"w{word}" for word in words]

    def line() -> str:
        if not pairs:
            return " ".join(sentence(99))
        question = sentence(spec.text.source_limit)
        return "\t".join((" ".join(question), " ".join(sentence(spec.text.target_limit))))

    rows = spec.training.batch_size
    files = {}
    for split, batches in (("train", text.batches), ("valid", 1), ("test", 1)):
        lines.clear()
        needed = rows * batches + text.more * (split == "train")
        if not pairs and spec.text.batching == "stream":
            tokens = 1 + spec.text.time * rows * batches + text.more * (split == "train")
            while sum(len(each.split()) + 1 for each in lines) < tokens:
                lines.append(line())
        else:
            while len(lines) < needed:
                lines.append(line())
        # with one word alone there is nothing to predict
        while len(lines) < 2:
            lines.append(line())
        files[f"{split}.{'tsv' if pairs else 'txt'}"] = list(lines)
    return files


def _smallest_batch(spec: Spec, text: DrawnText) -> int:
    """Return the fewest rows that a batch of any split has."""
    most = int(spec.training.batch_size)
    if spec.network == "language-model" and spec.text.batching == "stream":
        return most
    fewest = most
    for lines in _text(spec, text).values():
        rows = len(lines)
        if spec.network == "language-model":
            # a row ends with <eos>, and a longer one is cut
            rows = sum(-(-(len(each.split()) + 1) // spec.text.time) for each in lines)
        fewest = min(fewest, rows // -(-rows // most))
    return fewest
