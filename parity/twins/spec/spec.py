"""The spec of a run: every number that changes its result.

Both sides and the oracle read these values; no default of a framework is relied on.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any

from parity.base.errors import UsageError
from parity.twins.spec.fields import check_types
from parity.twins.spec.networks import NETWORKS, network_of
from parity.twins.spec.training import TrainSpec as TrainSpec
from parity.twins.spec.training import learning_rate as learning_rate


@dataclass(frozen=True)
class Spec:
    """Everything that decides the numbers of a run, except the content of its text.

    Attributes:
      network: the network's name, a key of `NETWORKS`.
      model: the network's sizes, such as LanguageModelSpec or Seq2seqSpec.
      text: how text becomes batches, such as LanguageModelText or PairText.
      training: how the network is trained.
    """

    network: str
    model: Any
    text: Any
    training: TrainSpec

    def replace(self, **values: Any) -> "Spec":
        """Return a copy with some fields changed.

        Args:
          **values: new values of fields of `model`, `text` or `training`, by field name.

        Raises:
          UsageError: for a name that is no field of these, or a value out of range.
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
        """Return the fields of model, text and training in one dictionary, name -> value."""
        parts = (self.model, self.text, self.training)
        return {
            name: value for part in parts for name, value in dataclasses.asdict(part).items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the spec as nested dictionaries, as stored in traces and checkpoints."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Spec":
        """Return the spec that `to_json` described.

        Raises:
          UsageError: if a field is missing, unknown, of another type or out of range.
        """
        misfit = "a stored spec does not fit this version: its"
        if values.get("network") not in list(NETWORKS):
            seen = shortened(values.get("network"))
            raise UsageError(f"{misfit} network is {seen}; allowed: {', '.join(NETWORKS)}")
        network = NETWORKS[values["network"]]
        parts = {"model": network.model, "text": network.text, "training": TrainSpec}
        for name, cls in parts.items():
            if not isinstance(values.get(name), Mapping):
                seen = shortened(values.get(name))
                raise UsageError(f"{misfit} {name} is {seen}; allowed: a mapping")
            fields = {field.name: field for field in dataclasses.fields(cls)}
            for other in set(values[name]) - set(fields):
                raise UsageError(
                    f"{misfit} {name} has {shortened(other)}; allowed: {', '.join(fields)}"
                )
            check_types(cls, values[name])
        try:
            return Spec(
                network.name,
                network.model(**values["model"]),
                network.text(**values["text"]),
                TrainSpec(**values["training"]),
            )
        except TypeError as error:  # a plug-in's field without a default
            raise UsageError(f"{misfit} fields: {error}") from None


def preset(network: str, name: str) -> Spec:
    """Return the spec of a network's preset.

    Raises:
      UsageError: for an unknown network or preset, listing the known ones.
    """
    presets = network_of(network).presets
    if name not in presets:
        others = [other for other, each in NETWORKS.items() if name in each.presets]
        of = f", which is one of --network {others[0]}" if others else ""
        raise UsageError(f"--preset is {name!r}{of}; allowed: {', '.join(presets)}")
    found = presets[name]
    return Spec(network, found.model, found.text, found.training)
