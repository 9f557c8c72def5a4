"""Starts a side's `train.py` with the options of a run."""

from collections.abc import Mapping
from typing import Any

from parity.cli.options import RunOptions
from parity.launch.fork_server import ForkServer
from parity.launch.processes import SideProcess
from parity.spec.networks import NETWORKS
from parity.spec.spec import Spec
from parity.trace.side import Side

Servers = Mapping[str, ForkServer]  # by framework; empty where each side is started anew

_OF_ANSWERS = ("user_dictionary", "on_empty", "beam", "length_penalty")


class Starter:
    """Starts sides as a run's options say.

    Args:
      options: of the run.
      servers: framework -> fork server that starts its trainings; empty to start each anew.
    """

    def __init__(self, options: RunOptions, servers: Servers):
        self._options, self._servers = options, servers

    def start(self, side: Side, spec: Spec, log: str, **more: Any) -> SideProcess:
        """Start a side's `train.py`.

        Args:
          side: which.
          spec: what to train.
          log: name of the file under --out that gets what it prints.
          **more: further options of TrainOptions, by name.
        """
        options = self._options
        servers = self._servers
        decodes = NETWORKS[spec.network].decodes
        of_answers = {name: getattr(options, name) for name in _OF_ANSWERS} if decodes else {}
        return SideProcess(
            side.framework,
            spec,
            options.out / "logs" / log,
            servers[side.framework].side if servers else None,
            preset=options.preset,
            data=options.data,
            cache=options.cache,
            replicas=side.replicas,
            strategy=side.strategy,
            kernels=side.kernels,
            device=options.device,
            threads=options.threads,
            debug=options.debug,
            **of_answers,
            **more,
        )


def file_name(label: str) -> str:
    """Return a label as the name of a file or folder."""
    return label.replace(" ", "-")
