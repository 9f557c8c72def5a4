"""The small runs that faults are planted in; together they run every line of a side.

A batch has seven rows, so that neither two nor three replicas get equal shares; an epoch has
three steps, so that the run reaches its end; the clipping norm is small enough to take effect.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from parity.base.files import make_folder, write_whole
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import PAIRS, RUNNING_TEXT
from parity.twins.spec.spec import Spec, preset
from parity.twins.spec.strategies import StrategySettings

STEPS = 5
_ROWS = 7
_WORDS = 24
_BATCHES = 3  # per epoch


@dataclass(frozen=True)
class Setting:
    """A run to plant faults in.

    Attributes:
      spec: what to train, in float64.
      replicas: how many replicas share each batch.
      strategies: framework -> the strategy that faults are planted in; a framework that is
        missing here trains with its default one.
      settings: the settings of these strategies.
      steps: how many steps are recorded; of an asynchronous training, how many updates.
    """

    spec: Spec
    replicas: int = 2
    strategies: Mapping[str, str] = field(default_factory=dict)
    settings: StrategySettings = field(default_factory=StrategySettings)
    steps: int = STEPS

    def strategy(self, side: str) -> str:
        """Return the name of the strategy that a framework trains with."""
        return self.strategies.get(side, FRAMEWORKS[side].strategies.default)

    def has_own_strategy(self, side: str) -> bool:
        """Return whether a framework trains with another strategy than its default one."""
        return self.strategy(side) != FRAMEWORKS[side].strategies.default

    def can_train(self, side: str, dtype: str) -> bool:
        """Return whether a framework's strategy has a precision."""
        training = replace(self.spec.training, dtype=dtype)
        return FRAMEWORKS[side].strategies.entry(self.strategy(side)).traits.can_train(training)

    def options(self, side: str, strategy: str | None = None) -> dict[str, Any]:
        """Return the values of TrainOptions that the setting decides for a framework.

        Args:
          side: the framework.
          strategy: the strategy to train with; that of the setting if not given.
        """
        entry = FRAMEWORKS[side].strategies.entry(strategy or self.strategy(side))
        taken = entry.settings(self.settings)
        values = {each.name: getattr(taken, each.name) for each in fields(taken)}
        return {"replicas": self.replicas, "strategy": entry.name, **values}


_GIVEN = {  # of both networks
    "embedding_size": 6,
    "hidden_size": 8,
    "batch_size": _ROWS,
    "keep": 0.7,
    "clip_norm": 0.1,
    "learning_rate": 0.05,
    "decay": 0.5,
    "decay_after": 1,
    "epochs": 3,
    "dtype": "float64",
    # larger than usual: with small weights every gate would be close to one half
    "initial_scale": 0.5,
}


def _language_model(**changes: Any) -> Spec:
    given = _GIVEN | {"vocabulary_size": 40, "time": 6}
    return preset("language-model", "tiny").replace(**given | changes)


def _seq2seq(**changes: Any) -> Spec:
    given = _GIVEN | {
        "source_vocabulary_size": 40,
        "target_vocabulary_size": 40,
        "source_segmenter": "spaces",
        "target_segmenter": "spaces",
        "bidirectional": False,
        "num_layers": 2,
    }
    return preset("seq2seq", "tiny").replace(**given | changes)


_LAYERS = {"paddle": "layers", "tensorflow": "layers"}
_TWO_BY_TWO = StrategySettings(stages=2, micro_batches=2)
_AVERAGED = {"tensorflow": "average-gradients"}
_PROCESSES = {name: each.collective.name for name, each in FRAMEWORKS.items()}
_SERVERS = {"tensorflow": "parameter-server-sync"}
_WORKERS_AND_SERVERS = {"tensorflow": "parameter-server"}
_ASYNCHRONOUS = {"paddle": "asynchronous", "tensorflow": "asynchronous"}
_SERVED = {"paddle": "parameter-server"}
_DRAWN = StrategySettings(schedule="1", staleness=2)
_UPDATES = 8  # of all workers together: within two epochs each

SETTINGS = {
    "stream": Setting(_language_model(optimizer="sgd")),
    "three layers": Setting(_language_model(optimizer="sgd", num_layers=3), replicas=3),
    "unknown words": Setting(_language_model(optimizer="sgd", vocabulary_size=_WORDS // 2)),
    "sentences": Setting(_language_model(optimizer="adam", batching="sentences"), replicas=3),
    "general": Setting(
        _seq2seq(cell="lstm", attention="general", bidirectional=True, optimizer="adam")
    ),
    "scaled, fed": Setting(
        _seq2seq(cell="lstm", attention="scaled", input_feeding=True, optimizer="sgd")
    ),
    "bahdanau, fed": Setting(
        _seq2seq(cell="gru", attention="bahdanau", input_feeding=True, optimizer="sgd"),
    ),
    "bahdanau": Setting(
        _seq2seq(cell="gru", attention="bahdanau", bidirectional=True, optimizer="sgd")
    ),
    # each replica's layers on two devices: one cut, between the two recurrent layers
    "stages": Setting(_language_model(optimizer="sgd"), 1, _LAYERS, _TWO_BY_TWO),
    "replicas of stages": Setting(_language_model(optimizer="adam"), 2, _LAYERS, _TWO_BY_TWO),
    "mirrored": Setting(_language_model(optimizer="sgd"), 2, {"tensorflow": "mirrored"}),
    "mirrored, adam": Setting(_language_model(optimizer="adam"), 3, {"tensorflow": "mirrored"}),
    "by tokens": Setting(_language_model(batching="sentences", optimizer="sgd"), 3, _AVERAGED),
    "equal shards": Setting(
        _language_model(batching="sentences", optimizer="sgd"),
        2,
        _AVERAGED,
        StrategySettings(shard_weights="equal"),
    ),
    "parallel do": Setting(
        _language_model(batching="sentences", optimizer="sgd"), 3, {"paddle": "parallel-do"}
    ),
    "two processes": Setting(_language_model(optimizer="sgd"), 2, _PROCESSES),
    "processes of replicas": Setting(
        _language_model(optimizer="adam"),
        4,
        {"paddle": _PROCESSES["paddle"]},
        StrategySettings(processes=2),
    ),
    "two servers": Setting(
        _language_model(optimizer="sgd"), 2, _SERVERS, StrategySettings(servers=2)
    ),
    "workers with two servers": Setting(
        _language_model(optimizer="sgd"),
        2,
        _WORKERS_AND_SERVERS,
        StrategySettings(schedule="1", staleness=2, servers=2),
        steps=_UPDATES,
    ),
    "two workers": Setting(
        _language_model(optimizer="sgd"), 2, _ASYNCHRONOUS, _DRAWN, steps=_UPDATES
    ),
    "served workers": Setting(
        _language_model(optimizer="sgd", dtype="float32"), 2, _SERVED, _DRAWN, steps=_UPDATES
    ),
    "three workers, adam": Setting(
        _language_model(optimizer="adam"), 3, _ASYNCHRONOUS, _DRAWN, steps=_UPDATES
    ),
}


def write_texts(folder: Path) -> dict[str, Path]:
    """Write a text for each network; return network -> what --data takes.

    Sentences have 1 to 8 words; words of the first half of the vocabulary are more frequent.
    """
    draw = random.Random(5)

    def sentence() -> list[str]:
        words = draw.randint(1, 8)
        return [f"w{draw.randrange(draw.randint(2, _WORDS))}" for _ in range(words)]

    # enough sentences, and enough tokens, for three batches of either kind
    lines = {"train": [sentence() for _ in range(_ROWS * _BATCHES)]}

    def pair() -> str:
        question = sentence()
        # the answer repeats the question backwards, so that there is something to learn
        answer = [word.replace("w", "v") for word in reversed(question)]
        return f"{' '.join(question)}\t{' '.join(answer)}\n"

    rows = {"train": _ROWS * _BATCHES, "valid": _ROWS, "test": _ROWS}
    pairs = {split: [pair() for _ in range(count)] for split, count in rows.items()}
    # a last batch with fewer rows than the others, in what is only evaluated
    pairs["valid"] += [pair() for _ in range(_ROWS + 4)]
    pairs["test"] += [pair() for _ in range(4)]
    # other sentences than those trained on, and a last batch with fewer rows than the others
    lines |= {"valid": [sentence() for _ in range(_ROWS * 2 + 3)]}
    lines |= {"test": [sentence() for _ in range(_ROWS * 3 + 4)]}
    running = {
        split: [" ".join(line) + "\n" for line in sentences]
        for split, sentences in lines.items()
    }
    for form, content in ((RUNNING_TEXT, running), (PAIRS, pairs)):
        make_folder(folder / form.suffix)
        for split, written in content.items():
            text = "".join(written).encode()
            write_whole(folder / form.suffix / f"{split}.{form.suffix}", text)
    return {name: folder / each.text_format.suffix for name, each in NETWORKS.items()}
