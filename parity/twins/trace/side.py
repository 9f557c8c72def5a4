"""The sides of a run: how each trains, what reports call it, and which are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from parity.base.errors import UsageError
from parity.trace.header import check_least, check_types, check_versions
from parity.trace.side import Side
from parity.twins.spec.asynchronous_schedule import FREE, greatest_staleness
from parity.twins.spec.fields import in_words
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategySettings


@dataclass(frozen=True)
class TrainedSide(Side):
    """One training of this project's networks.

    Attributes:
      framework: a name of `FRAMEWORKS`, such as "paddle".
      strategy: how its replicas run, such as "parallel-executor" or "towers".
      replicas: how many share each batch.
      kernels: "plain" (the textbook's layers) or "fast" (the replacements).
      processes: how many the replicas are spread over.
      synchronous: whether the number of replicas changes no result.
      settings: the settings of its strategy; of an asynchronous one among them the schedule of
        its updates, "free" if it has none.
    """

    strategy: str = ""
    replicas: int = 1
    kernels: str = ""
    processes: int = 1
    synchronous: bool = True
    settings: StrategySettings = StrategySettings()  # noqa: RUF009 - it is immutable

    @property
    def runs_freely(self) -> bool:
        """Return whether the order of its updates is another in every run."""
        return not self.synchronous and self.settings.schedule == FREE and self.replicas > 1

    @property
    def greatest_staleness(self) -> int | None:
        """Return the greatest staleness that its settings allow; None if there is no limit."""
        return greatest_staleness(self.settings.schedule, self.settings.staleness)

    def takes_steps_of(self, other: "TrainedSide") -> bool:
        """Return whether another side has the same rows and the same weights in each step.

        Of an asynchronous side, each update is a step: another one takes the same steps if it
        keeps to the same schedule.
        """
        if self.synchronous and other.synchronous:
            return True
        if self.replicas != other.replicas:
            return False
        if self.replicas == 1:  # updates by a single worker have but one order
            return True
        of_one_kind = self.synchronous == other.synchronous
        return of_one_kind and self.settings == other.settings and not self.runs_freely

    @property
    def averages_replicas_alike(self) -> bool:
        """Return whether replicas count alike in its gradient, whatever tokens they have."""
        return self.settings.shard_weights == "equal"

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of each replica."""
        return self.settings.micro_batches or 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"settings": self.settings.given}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrainedSide":
        """Return what `to_json` gave; other keys are left alone.

        Raises:
          UsageError: for a value that is missing or of another type.
        """
        kinds = {field.name: field.type for field in fields(cls)}
        for name, kind in kinds.items():
            if name not in values:
                raise UsageError(f"a side lacks {name}")
            if kind is not StrategySettings and type(values[name]) is not kind:
                raise UsageError(f"{name} is {values[name]!r}; allowed: {in_words(kind)}")
        found = {name: values[name] for name in kinds}
        return cls(**found | {"settings": StrategySettings.from_json(values["settings"])})


def labels_of(sides: Sequence[TrainedSide], folders: Sequence[Path] = ()) -> list[str]:
    """Return what reports call the sides: the shortest names that tell them apart.

    A label is for people alone: whoever needs to know the framework or the number of replicas
    asks the `Side`.

    Args:
      folders: where each side's trace lies; added to labels that would otherwise be alike.

    Raises:
      UsageError: for sides that are alike where no folders are given.
    """
    kernels = len({side.kernels for side in sides if side.kernels}) > 1
    labels = []
    for side in sides:
        alike = [other for other in sides if other.framework == side.framework]
        words = [f"{side.framework}-{side.replicas}" if side.replicas else side.framework]
        if len({other.strategy for other in alike}) > 1:
            words.append(side.strategy)
        if len({each.settings for each in alike if each.strategy == side.strategy}) > 1:
            words.append(side.settings.text)
        if kernels:
            words.append(side.kernels)
        same = [each for each in alike if _but_for_processes(each) == _but_for_processes(side)]
        if len({each.processes for each in same}) > 1:
            words.append(f"{side.processes} processes" if side.processes > 1 else "1 process")
        labels.append(" ".join(word for word in words if word))
    if len(set(labels)) == len(labels):
        return labels
    if not folders:
        raise UsageError(f"the sides are {', '.join(labels)}; allowed: sides that differ")
    return [f"{label} ({folder})" for label, folder in zip(labels, folders, strict=True)]


def _but_for_processes(side: TrainedSide) -> TrainedSide:
    return replace(side, processes=1, settings=replace(side.settings, processes=None))


def pairs_of(sides: Mapping[str, TrainedSide]) -> list[tuple[str, str]]:
    """Return which sides are compared with each other, as labels.

    Sides of different frameworks are compared at the same number of replicas, each framework
    with its first strategy; a further strategy, with the first one of its own framework. Plain
    kernels are compared with fast ones, and each number of replicas with the first: replica
    invariance, which an asynchronous side does not promise. An asynchronous side is compared
    with those alone that keep to the same schedule; one that runs freely, with the oracle
    alone. Where there are but two sides, they are compared if their steps can be.

    Args:
      sides: label -> side, in the order in which the report names them.
    """
    labels = list(sides)
    first: dict[str, str] = {}
    for side in sides.values():
        first.setdefault(side.framework, side.strategy)
    pairs = []
    for place, a in enumerate(labels):
        for b in labels[place + 1 :]:
            comparable = sides[a].takes_steps_of(sides[b])
            if comparable and (len(labels) == 2 or _compared(sides, first, a, b)):
                pairs.append((a, b))
    return pairs


def _compared(
    sides: Mapping[str, TrainedSide], first: Mapping[str, str], label: str, other: str
) -> bool:
    a, b = sides[label], sides[other]
    leads = [side.strategy == first[side.framework] for side in (a, b)]
    same_replicas, same_kernels = a.replicas == b.replicas, a.kernels == b.kernels
    if a.framework != b.framework:
        asynchronous = not a.synchronous and not b.synchronous
        return same_replicas and same_kernels and (all(leads) or asynchronous)
    if a.strategy != b.strategy:
        return same_replicas and same_kernels and any(leads)
    if not same_kernels:
        return same_replicas and a.processes == b.processes
    alike = (
        name
        for name, side in sides.items()
        if side.synchronous
        and (side.framework, side.strategy) == (a.framework, a.strategy)
        and side.kernels == a.kernels
    )
    return a.synchronous and b.synchronous and label == next(alike)


# What the header of a trace must hold if one of this project's trainings wrote it.
_TYPES: dict[str, type] = {
    **dict.fromkeys(("framework", "strategy", "kernels", "corpus"), str),
    **dict.fromkeys(("replicas", "processes", "batches_per_epoch"), int),
    **dict.fromkeys(("settings", "spec", "versions"), dict),
    "synchronous": bool,
}
_OPTIONAL: dict[str, type] = {"preset": str}
_LEAST = {"replicas": 1, "processes": 1, "batches_per_epoch": 1}


def check_trained(header: Mapping[str, Any]) -> TrainedSide:
    """Check the values of trace.json that only a training of this project writes.

    Raises:
      UsageError: for a key or a value that is not allowed.
    """
    check_types(header, _TYPES, _OPTIONAL)
    check_least(header, _LEAST)
    check_versions(header["versions"])
    Spec.from_json(header["spec"])
    return TrainedSide.from_json(header)
