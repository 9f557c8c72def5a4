"""What `parity run` trains, and how each side of it is started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from parity.twins.cli.options import RunOptions
from parity.twins.launch.edited_source import Edit
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.processes import SideProcess, has_own_environment
from parity.twins.run.choose_sides import (
    compared_settings,
    leading_sides,
    sides_of,
    sides_of_strategies,
)
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide

_DECODING_OPTIONS = ("user_dictionary", "on_empty", "beam", "length_penalty")


@dataclass(frozen=True)
class PlannedRun:
    """The network of a run, its sides, and how they are started.

    Attributes:
      spec: the network, its text and its training, in one precision of the options.
      options: the options of the run.
      servers: framework -> the fork server that starts its trainings; empty if each training is
        to start in a new interpreter.
      planted: framework -> edits of the source that its processes run.
    """

    spec: Spec
    options: RunOptions
    servers: Mapping[str, ForkServer] = field(default_factory=dict)
    planted: Mapping[str, Sequence[Edit]] = field(default_factory=dict)

    @cached_property
    def sides(self) -> dict[str, TrainedSide]:
        """Return label -> side, in the order of the report."""
        return sides_of(self.options)

    @property
    def leading(self) -> dict[str, TrainedSide]:
        """Return one side of each framework that stands for its others, label -> side."""
        return leading_sides(self.sides)

    @property
    def of_strategies(self) -> dict[str, TrainedSide]:
        """Return one side of each synchronous strategy that takes part, label -> side."""
        return sides_of_strategies(self.sides)

    @property
    def dtype(self) -> str:
        """Return the precision."""
        return self.spec.training.dtype

    @property
    def decodes(self) -> bool:
        """Return whether the network writes answers."""
        return NETWORKS[self.spec.network].decodes

    def in_precision(self, dtype: str) -> "PlannedRun":
        """Return the same run in another precision."""
        return replace(self, spec=self.spec.replace(dtype=dtype))

    def start(self, side: TrainedSide, log: str, **more: Any) -> SideProcess:
        """Start the `train.py` of a side.

        Args:
          side: the side to train.
          log: the name of the file in the folder of logs that receives its output.
          **more: values of further fields of TrainOptions, by name.
        """
        options, server = self.options, self.servers.get(side.framework)
        if has_own_environment(side.framework, side.strategy):
            server = None  # of another environment
        edits = self.planted.get(side.framework, ())
        return SideProcess(
            side.framework,
            self.spec,
            options.out / "logs" / log,
            partial(server.side, edits=edits) if server else None,
            **{
                **self._of_text(side.framework),
                "replicas": side.replicas,
                "strategy": side.strategy,
                **self._settings(side),
                "kernels": side.kernels,
                "device": options.device,
                "threads": options.threads,
                **more,
            },
        )

    def start_witness(self, log: str, trace: Path, pending: int | None) -> SideProcess:
        """Start the recorded training of the witness of --witness.

        Args:
          log: as for `start`.
          trace, pending: the values of `--trace` and `--trace-pending`.
        """
        options, name = self.options, self.options.witness
        assert name is not None
        recorded = {"steps": options.steps, "trace": trace, "trace_pending": pending}
        given = self._of_text(name) | recorded
        return SideProcess(name, self.spec, options.out / "logs" / log, **given)

    def _of_text(self, framework: str) -> dict[str, Any]:
        """Return the options that each framework has alike, which say what it reads."""
        options = self.options
        decoding = {name: getattr(options, name) for name in _DECODING_OPTIONS if self.decodes}
        return decoding | {
            "preset": options.preset,
            "data": options.data,
            # each framework encodes the text itself: with one cache for both, the second
            # would read what the first has encoded, whatever it would have read itself
            "cache": options.cache / framework,
            "debug": options.debug,
        }

    def _settings(self, side: TrainedSide) -> dict[str, Any]:
        entry = FRAMEWORKS[side.framework].strategies.entry(side.strategy)
        hosts = {"hosts": self.options.hosts} if entry.traits.processes else {}
        return compared_settings(entry, self.options.settings).given | hosts


def file_name(label: str) -> str:
    """Return a side's label in a form that can name a file or folder."""
    return label.replace(" ", "-")
