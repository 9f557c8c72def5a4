"""Strategies, which are ways of running replicas: their names, traits and registries.

Nothing here loads a framework. Each framework's folder has a registry, `STRATEGIES` in its
`strategies/__init__.py`; a new strategy is one module in that folder and one entry in the
registry.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.twins.spec.asynchronous_schedule import is_seed
from parity.twins.spec.fields import check_fields, flag, in_words, option
from parity.twins.spec.training import TrainSpec

_STAGES = (
    "strategy layers: number of stages that a replica's layers are spread over, each on a "
    "device of its own"
)
_MICRO_BATCHES = (
    "strategy layers: number of micro-batches that a replica's rows are split into, so that "
    "its stages work at the same time"
)
_SHARD_WEIGHTS = (
    "strategy average-gradients: what a tower's gradient counts by, its real tokens or every "
    "tower alike"
)
_SCHEDULE = (
    "strategies asynchronous and parameter-server: the order in which replicas read and update "
    "the weights; free lets them come as they are ready, a seed draws an order, and a file "
    "lists one, such as the schedule.jsonl of another run"
)
_STALENESS = (
    "strategies asynchronous and parameter-server, with a drawn schedule: the largest number "
    "of other updates between a replica's reading of the weights and its update"
)
_PROCESSES = (
    "strategies of several processes, such as data-parallel and multi-worker: number of "
    "processes that share the replicas evenly [default: one per replica]"
)
_SERVERS = "strategies with parameter servers: number of servers"


@dataclass(frozen=True)
class StrategySettings:
    """The settings of some strategies; None for one that is not given, or not accepted.

    Each field is a flag of `train.py`, `parity run` and `parity bench`.
    """

    stages: int | None = option(None, _STAGES, at_least=1, at_most=1024)
    micro_batches: int | None = option(None, _MICRO_BATCHES, at_least=1, at_most=65_536)
    shard_weights: str | None = option(None, _SHARD_WEIGHTS, choices=("tokens", "equal"))
    schedule: str | None = option(None, _SCHEDULE)
    staleness: int | None = option(None, _STALENESS, at_least=0)
    processes: int | None = option(None, _PROCESSES, at_least=1, at_most=1024)
    servers: int | None = option(None, _SERVERS, at_least=1, at_most=1024)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.staleness is not None and self.schedule and not is_seed(self.schedule):
            raise UsageError(
                f"--staleness is {self.staleness} and --schedule is {self.schedule!r}; "
                "allowed: --staleness with the seed of a schedule to draw"
            )

    @property
    def given(self) -> dict[str, Any]:
        """Return the settings that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, values: Any) -> "StrategySettings":
        """Return settings from plain values, as `given` returns them.

        Raises:
          UsageError: for a setting that there is none of, or a value of another type.
        """
        if not isinstance(values, dict):
            raise UsageError(f"settings is {values!r}; allowed: an object")
        kinds = {name: get_args(kind)[0] for name, kind in get_type_hints(cls).items()}
        for name, value in values.items():
            if name not in kinds:
                raise UsageError(f"settings has {name!r}; allowed: {', '.join(kinds)}")
            if type(value) is not kinds[name]:
                raise UsageError(f"{name} is {value!r}; allowed: {in_words(kinds[name])}")
        return cls(**values)

    @property
    def text(self) -> str:
        """Return the settings as labels show them, such as "stages=2 micro-batches=4"."""
        return " ".join(f"{flag(name)[2:]}={value}" for name, value in self.given.items())


@dataclass(frozen=True)
class Traits:
    """The properties of a strategy that the harness needs in order to judge its numbers.

    Attributes:
      synchronous: whether every update uses gradients taken at the weights just before it. The
        number of replicas then changes no result, and runs with different numbers are compared
        with each other.
      processes: whether one training runs in several processes: as many as the setting
        `processes` says, or one per replica.
      devices: how replicas use devices: "one per replica", or "layers" if the layers of one
        replica are spread over several devices.
      launcher: whose variables make a process a rank; by default the framework's own.
      serves: the jobs of processes that only serve: "ps" for parameter servers, and "worker" if
        rank 0 drives all others.
      dtypes: the precisions that it can train in.
      optimizers: the update rules that it can train with.
      limit: why it has no other precision and no other update rule, for the message to users.
    """

    synchronous: bool = True
    processes: bool = False
    devices: str = "one per replica"
    launcher: str = ""
    serves: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    optimizers: tuple[str, ...] = ("sgd", "adam")
    limit: str = ""

    def can_train(self, training: TrainSpec) -> bool:
        """Return whether the strategy has this precision and this update rule."""
        return training.dtype in self.dtypes and training.optimizer in self.optimizers


@dataclass(frozen=True)
class StrategyEntry:
    """One strategy in a registry.

    Attributes:
      name: the name that `--strategy` takes.
      path: where its class is, as "package.module:Class"; see
        parity/twins/training/strategy.py. The class is loaded only when a training is built,
        because that loads the framework.
      summary: one line that describes the strategy to people.
      traits: the properties that the harness needs to know.
      setting_defaults: the settings that it accepts, with their defaults; None for any other.
      optional_settings: the names of settings that it accepts and that have no default.
      environment: the folder in the checkout of the Python environment that it needs, if that
        is not the framework's; `make NAME` makes it, where NAME is the strategy's. Commands
        that are asked for all strategies leave it out.
      serve: "package.module:function" that a process calls which only serves, once all have
        met, with the spec and the Build; it runs until the process ends.
    """

    name: str
    path: str
    summary: str
    traits: Traits = Traits()
    setting_defaults: StrategySettings = StrategySettings()
    optional_settings: tuple[str, ...] = ()
    environment: str = ""
    serve: str = ""

    def processes(self, settings: StrategySettings, replicas: int) -> int:
        """Return how many processes a training with this strategy runs in."""
        return settings.processes or replicas if self.traits.processes else 1

    @property
    def accepted_settings(self) -> tuple[str, ...]:
        """Return the names of the settings that it accepts."""
        return (*self.setting_defaults.given, *self.optional_settings)

    def settings(self, given: StrategySettings) -> StrategySettings:
        """Return the settings that the strategy accepts, as given or else by default.

        Raises:
          UsageError: for settings that exclude each other.
        """
        accepted = {
            name: value for name, value in given.given.items() if name in self.accepted_settings
        }
        return StrategySettings(**self.setting_defaults.given | accepted)


class StrategyRegistry:
    """The strategies of one framework, the default one first.

    Args:
      framework: the framework's name, for messages.
      *entries: the strategies.
      lacking: name -> why the framework has no such strategy, where people would look for it.
    """

    def __init__(
        self,
        framework: str,
        *entries: StrategyEntry,
        lacking: Mapping[str, str] = MappingProxyType({}),
    ):
        self.framework, self._lacking = framework, lacking
        self._entries = {entry.name: entry for entry in entries}

    def register(self, entry: StrategyEntry) -> None:
        """Add a strategy, as a plug-in does; see parity/base/plugins.py.

        Raises:
          ValueError: if the name is taken.
        """
        if entry.name in self._entries:
            raise ValueError(f"{self.framework} already has a strategy {entry.name!r}")
        self._entries[entry.name] = entry

    @property
    def default(self) -> str:
        """Return the name of the default strategy, the first one registered."""
        return next(iter(self._entries))

    def entry(self, name: str | None) -> StrategyEntry:
        """Return the strategy with a given name, or the default strategy for None.

        Raises:
          UsageError: for an unknown name; the message lists the known ones.
        """
        found = self._entries.get(self.default if name is None else name)
        if found is None:
            raise UsageError(
                f"--strategy is {name!r}{self.reason(str(name))}; allowed for "
                f"{self.framework}: {', '.join(self._entries)}"
            )
        return found

    def reason(self, name: str) -> str:
        """Return why there is no strategy of a name, to follow the name; empty if unknown."""
        return f", but {self._lacking[name]}" if name in self._lacking else ""

    def settings(self, name: str | None, given: StrategySettings) -> StrategySettings:
        """Return the settings of a strategy, as given or else by default.

        Raises:
          UsageError: for an unknown strategy, or a setting that it does not accept.
        """
        entry = self.entry(name)
        check_accepted(given, [entry])
        return entry.settings(given)

    def check_training(self, name: str | None, training: TrainSpec) -> None:
        """Check that a strategy has the precision and the update rule of a training.

        Raises:
          UsageError: for an unknown strategy, or one that lacks either.
        """
        entry = self.entry(name)
        because = f", because {entry.traits.limit}" if entry.traits.limit else ""
        for given, value, allowed in (
            ("--dtype", training.dtype, entry.traits.dtypes),
            ("--optimizer", training.optimizer, entry.traits.optimizers),
        ):
            if value not in allowed:
                raise UsageError(
                    f"{given} is {value!r}; allowed for {entry.name} of {self.framework}: "
                    f"{', '.join(allowed)}{because}"
                )

    def make(self, name: str | None, spec: Any, build: Any) -> Any:
        """Load the framework and build a training that uses a strategy.

        Args:
          name: the strategy's name; None for the default strategy.
          spec: a Spec whose vocabulary sizes are those of the text.
          build: a Build; see parity/twins/training/strategy.py.

        Returns:
          A Strategy; see parity/twins/training/strategy.py.

        Raises:
          UsageError: for an unknown strategy, or a device that this machine lacks.
        """
        entry = self.entry(name)
        return load_object(entry.path)(spec, build, entry)

    def __iter__(self) -> Iterator[StrategyEntry]:
        return iter(self._entries.values())


def check_accepted(given: StrategySettings, entries: Iterable[StrategyEntry]) -> None:
    """Check that one of the strategies that run accepts each setting that was given.

    Raises:
      UsageError: for a setting that none of them accepts.
    """
    entries = list(entries)
    for name, value in given.given.items():
        if not any(name in entry.accepted_settings for entry in entries):
            names = " or ".join(dict.fromkeys(entry.name for entry in entries))
            raise UsageError(f"{flag(name)} is {value!r}; not allowed for the strategy {names}")
