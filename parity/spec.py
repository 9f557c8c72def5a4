"""Every number that changes a result: the network, its training, and the named presets.

Frameworks' defaults are never relied on; both sides and the oracle read these values.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.errors import UsageError
from parity.fields import check_fields, option

NETWORKS = ("language-model",)


# fmt: off
@dataclass(frozen=True)
class ModelSpec:
    """The network: an embedding, LSTM layers with dropout between, and a projection.

    Source: Zaremba et al. 2014, arXiv:1409.2329.
    """

    vocabulary_size: int = option(10_000, "most tokens kept in the vocabulary, <unk> and <eos> included", at_least=3)
    embedding_size: int = option(200, "width of the embedding", at_least=1)
    hidden_size: int = option(200, "units of each LSTM layer", at_least=1)
    num_layers: int = option(2, "LSTM layers", at_least=1)
    keep: float = option(1.0, "probability that dropout keeps a unit; 1 is no dropout", above=0, at_most=1)
    initial_scale: float = option(0.1, "every parameter starts uniform in [-scale, scale)", above=0)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TrainSpec:
    """How the network is trained; replicas are no part of it, since they change no result."""

    batching: str = option("stream", "stream: contiguous text, state carried on; sentences: one a row, padded", choices=("stream", "sentences"))
    batch_size: int = option(20, "rows of the global batch, over all replicas", at_least=1)
    time: int = option(20, "steps of back-propagation in time; for sentences the longest row", at_least=1)
    optimizer: str = option("sgd", "update rule", choices=("sgd", "adam"))
    learning_rate: float = option(1.0, "learning rate of the first epochs", above=0)
    decay: float = option(1.0, "factor on the learning rate for each epoch after --decay-after", above=0, at_most=1)
    decay_after: int = option(1, "epochs at the full learning rate", at_least=1)
    beta1: float = option(0.9, "Adam: decay of the first moment", at_least=0, below=1)
    beta2: float = option(0.999, "Adam: decay of the second moment", at_least=0, below=1)
    epsilon: float = option(1e-8, "Adam: added to the bias-corrected root, m' / (sqrt(v') + epsilon)", above=0)
    clip_norm: float = option(5.0, "largest global norm of the aggregated gradient", above=0)
    epochs: int = option(1, "passes over the training text", at_least=1)
    seed: int = option(1, "of initial weights, batch order and dropout masks", at_least=0)
    dtype: str = option("float32", "precision of weights and arithmetic", choices=("float32", "float64"))

    def __post_init__(self) -> None:
        check_fields(self)
# fmt: on


@dataclass(frozen=True)
class Spec:
    """A network and its training: all that decides the numbers of a run, but for the text."""

    network: str
    model: ModelSpec
    training: TrainSpec

    def replace(self, **values: Any) -> "Spec":
        """Return a spec with some fields of the model or the training replaced, by name.

        Raises:
          UsageError: for a name that neither has, or a value out of range.
        """
        names = {
            part: {f.name for f in dataclasses.fields(getattr(self, part))}
            for part in ("model", "training")
        }
        for name in values:
            if not any(name in fields for fields in names.values()):
                known = ", ".join(sorted(names["model"] | names["training"]))
                raise UsageError(f"no field {name!r} in a spec; allowed: {known}")
        return Spec(
            self.network,
            *(
                dataclasses.replace(
                    getattr(self, part), **{k: v for k, v in values.items() if k in names[part]}
                )
                for part in ("model", "training")
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, as stored in traces and checkpoints."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Spec":
        """Rebuild a spec from `to_json`.

        Raises:
          UsageError: if a part or field is missing or unknown.
        """
        try:
            return Spec(
                values["network"], ModelSpec(**values["model"]), TrainSpec(**values["training"])
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"a stored spec does not fit this version: {error}") from None


def learning_rate(training: TrainSpec, epoch: int) -> float:
    """Return the learning rate of an epoch (from 0).

    Source: the schedule of Zaremba et al. 2014: constant, then multiplied by `decay` an epoch.
    """
    return training.learning_rate * training.decay ** max(epoch + 1 - training.decay_after, 0)


def _zaremba(
    hidden: int, time: int, keep: float, clip: float, scale: float, **schedule: Any
) -> Spec:
    return Spec(
        "language-model",
        ModelSpec(
            embedding_size=hidden,
            hidden_size=hidden,
            num_layers=2,
            keep=keep,
            initial_scale=scale,
        ),
        TrainSpec(batch_size=20, time=time, clip_norm=clip, learning_rate=1.0, **schedule),
    )


PRESETS: dict[str, dict[str, Spec]] = {
    "language-model": {
        # small enough to come near the embedded grammar's optimum in seconds
        "tiny": Spec(
            "language-model",
            ModelSpec(vocabulary_size=1_000, embedding_size=32, hidden_size=64, keep=0.95),
            TrainSpec(
                batch_size=20,
                time=20,
                optimizer="adam",
                learning_rate=0.02,
                decay=0.4,
                decay_after=3,
                epochs=5,
            ),
        ),
        # the sizes both sides of the 2018 twin example claimed to have
        "tf2fluid": Spec(
            "language-model",
            ModelSpec(embedding_size=64, hidden_size=128, num_layers=2),
            TrainSpec(
                batching="sentences",
                batch_size=60,
                time=50,
                optimizer="adam",
                learning_rate=1e-3,
                epochs=5,
            ),
        ),
        # zaremba-small's network on the batches that throughput is quoted for
        "bench": Spec(
            "language-model",
            ModelSpec(embedding_size=200, hidden_size=200, num_layers=2),
            TrainSpec(batch_size=64, time=35, learning_rate=1.0, clip_norm=5.0),
        ),
        # Zaremba et al. 2014, section 4.1 and its published code
        "zaremba-small": _zaremba(200, 20, 1.0, 5.0, 0.1, decay=0.5, decay_after=4, epochs=13),
        "zaremba-medium": _zaremba(
            650, 35, 0.5, 5.0, 0.05, decay=0.8, decay_after=6, epochs=39
        ),
        "zaremba-large": _zaremba(
            1500, 35, 0.35, 10.0, 0.04, decay=1 / 1.15, decay_after=14, epochs=55
        ),
    }
}


def preset(network: str, name: str) -> Spec:
    """Return a named preset.

    Raises:
      UsageError: for an unknown network or preset, listing the known ones.
    """
    if network not in PRESETS:
        raise UsageError(f"--network is {network!r}; allowed: {', '.join(PRESETS)}")
    if name not in PRESETS[network]:
        raise UsageError(f"--preset is {name!r}; allowed: {', '.join(PRESETS[network])}")
    return PRESETS[network][name]
