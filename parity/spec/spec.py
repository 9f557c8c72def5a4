"""A network, its text and its training: every number that changes a result.

Frameworks' defaults are never relied on; both sides and the oracle read these values.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.base.errors import UsageError
from parity.spec.networks import NETWORKS
from parity.spec.training import TrainSpec as TrainSpec
from parity.spec.training import learning_rate as learning_rate


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
            network = NETWORKS[values["network"]]
            return Spec(
                network.name,
                network.model(**values["model"]),
                network.text(**values["text"]),
                TrainSpec(**values["training"]),
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"a stored spec does not fit this version: {error}") from None
