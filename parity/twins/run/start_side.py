"""Starts the `train.py` of a side with the options of a run."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from parity.twins.cli.options import RunOptions
from parity.twins.launch.edited_source import Edit
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.processes import SideProcess, has_own_environment
from parity.twins.run.choose_sides import compared_settings
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide

# Framework -> the fork server that starts its trainings; empty if each training is to start in
# a new interpreter.
Servers = Mapping[str, ForkServer]

_DECODING_OPTIONS = ("user_dictionary", "on_empty", "beam", "length_penalty")


class Starter:
    """Starts sides with the options of a run.

    Args:
      options: the options of the run.
      servers: the fork servers to use.
      planted: framework -> edits of the source that its processes run.
    """

    def __init__(
        self,
        options: RunOptions,
        servers: Servers,
        planted: Mapping[str, Sequence[Edit]] | None = None,
    ):
        self._options, self._servers, self._planted = options, servers, planted or {}

    def start(self, side: TrainedSide, spec: Spec, log: str, **more: Any) -> SideProcess:
        """Start the `train.py` of a side.

        Args:
          side: the side to train.
          spec: the network, its text and its training.
          log: the name of the file in the folder of logs that receives its output.
          **more: values of further fields of TrainOptions, by name.
        """
        options = self._options
        servers, edits = self._servers, self._planted.get(side.framework, ())
        if has_own_environment(side.framework, side.strategy):
            servers = {}  # which have loaded another environment's framework
        decodes = NETWORKS[spec.network].decodes
        decoding = {name: getattr(options, name) for name in _DECODING_OPTIONS if decodes}
        return SideProcess(
            side.framework,
            spec,
            options.out / "logs" / log,
            partial(servers[side.framework].side, edits=edits) if servers else None,
            **{
                "preset": options.preset,
                "data": options.data,
                # each framework encodes the text itself: with one cache for both, the second
                # would read what the first has encoded, whatever it would have read itself
                "cache": options.cache / side.framework,
                "replicas": side.replicas,
                "strategy": side.strategy,
                **self._settings(side),
                "kernels": side.kernels,
                "device": options.device,
                "threads": options.threads,
                "debug": options.debug,
                **decoding,
                **more,
            },
        )

    def _settings(self, side: TrainedSide) -> dict[str, Any]:
        entry = FRAMEWORKS[side.framework].strategies.entry(side.strategy)
        hosts = {"hosts": self._options.hosts} if entry.traits.processes else {}
        return compared_settings(entry, self._options.settings).given | hosts


def file_name(label: str) -> str:
    """Return a side's label in a form that can name a file or folder."""
    return label.replace(" ", "-")
