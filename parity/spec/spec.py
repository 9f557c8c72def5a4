"""Every number that changes a result: the network, its text and its training.

Frameworks' defaults are never relied on; both sides and the oracle read these values.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.base.errors import UsageError
from parity.base.fields import check_fields, option
from parity.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.spec.networks.seq2seq import PairText, Seq2seqSpec


# fmt: off
@dataclass(frozen=True)
class TrainSpec:
    """How the network is trained; replicas are no part of it, since they change no result."""

    batch_size: int = option(20, "rows of the global batch at most, over all replicas", at_least=1)
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


# network -> the classes of its model and of its text.
PARTS: dict[str, tuple[type, type]] = {
    "language-model": (LanguageModelSpec, LanguageModelText),
    "seq2seq": (Seq2seqSpec, PairText),
}


@dataclass(frozen=True)
class Spec:
    """A network, its text and its training: all that decides a run's numbers, but the text.

    Attributes:
      network: name of the network.
      model: its sizes, LanguageModelSpec or Seq2seqSpec.
      text: how text becomes batches, LanguageModelText or PairText.
      training: how it is trained.
    """

    network: str
    model: Any
    text: Any
    training: TrainSpec

    def replace(self, **values: Any) -> "Spec":
        """Return a spec with some fields of its parts replaced, by name.

        Raises:
          UsageError: for a name that no part has, or a value out of range.
        """
        parts = {name: getattr(self, name) for name in ("model", "text", "training")}
        fields = {
            name: {field.name for field in dataclasses.fields(part)}
            for name, part in parts.items()
        }
        for name in values:
            if not any(name in names for names in fields.values()):
                known = ", ".join(sorted(set().union(*fields.values())))
                raise UsageError(
                    f"no field {name!r} in a {self.network} spec; allowed: {known}"
                )
        replaced = {
            name: dataclasses.replace(
                part, **{key: value for key, value in values.items() if key in fields[name]}
            )
            for name, part in parts.items()
        }
        return Spec(self.network, **replaced)

    def values(self) -> dict[str, Any]:
        """Return the values of all fields by name, of model, text and training together."""
        parts = (self.model, self.text, self.training)
        return {
            name: value for part in parts for name, value in dataclasses.asdict(part).items()
        }

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
            model, text = PARTS[values["network"]]
            return Spec(
                values["network"],
                model(**values["model"]),
                text(**values["text"]),
                TrainSpec(**values["training"]),
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"a stored spec does not fit this version: {error}") from None


def learning_rate(training: TrainSpec, epoch: int) -> float:
    """Return the learning rate of an epoch (from 0).

    Source: the schedule of Zaremba et al. 2014: constant, then multiplied by `decay` an epoch.
    """
    return training.learning_rate * training.decay ** max(epoch + 1 - training.decay_after, 0)
