"""Trainings on hosts of this machine, whose steps are timed for the model's comparison."""

import json
import shutil
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import SideFailed
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.processes import FOLDERS, ROOT, option_flags, spec_flags
from parity.twins.links.hosts import Hosts
from parity.twins.links.namespaces import inside
from parity.twins.processes.membership import Members, variables
from parity.twins.scale.engines import RINGS
from parity.twins.spec.spec import Spec

_PORT, _MEETING_PORT = 6_170, 6_270


@dataclass(frozen=True)
class Timed:
    """What was measured of a training.

    Attributes:
      seconds: the median time of a step, after the warm-up.
      sent: bytes that the busiest host sent for each step, with the headers of its packets.
    """

    seconds: float
    sent: float = 0.0


class Trials:
    """Trains with one framework, on one rank per host.

    Args:
      framework: "paddle" or "tensorflow".
      hosts: where ranks run; rank i on host i.
      data: the folder of the text.
      out: a folder for what the trainings write.
    """

    def __init__(self, framework: str, hosts: Hosts, data: Path, out: Path):
        self._framework, self._hosts = framework, hosts
        self._data, self._out = data.resolve(), out.resolve()
        self._stack = ExitStack()
        self._servers: list[ForkServer] = []

    def __enter__(self) -> "Trials":
        for rank, name in enumerate(self._hosts.names):
            folder = self._out / f"{self._framework}{rank}"
            with inside(name):
                server = ForkServer(self._framework, folder)
            self._servers.append(self._stack.enter_context(server))
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def together(self, spec: Spec, ranks: int, steps: int) -> Timed:
        """Time one training on several ranks.

        Raises:
          SideFailed: if it fails.
        """
        addresses = self._hosts.addresses[:ranks]
        members = Members(tuple(f"{address}:{_PORT}" for address in addresses))
        meeting = f"{self._hosts.addresses[0]}:{_MEETING_PORT}"
        given = [variables(self._framework, i, members, meeting) for i in range(ranks)]
        if ranks == 1:
            given = [{}]
        before = [self._hosts.sent_bytes(host) for host in range(ranks)]
        (seconds,) = self._train([spec], given, steps, processes=ranks)
        sent = max(self._hosts.sent_bytes(host) - first for host, first in enumerate(before))
        return Timed(seconds, sent / steps)

    def side_by_side(self, spec: Spec, count: int, steps: int) -> Timed:
        """Time trainings of one rank each that run at the same time, without each other.

        Raises:
          SideFailed: if one fails.
        """
        seconds = self._train([spec] * count, [{}] * count, steps, processes=1)
        return Timed(statistics.fmean(seconds))

    def _train(
        self,
        specs: Sequence[Spec],
        environments: Sequence[dict[str, str]],
        steps: int,
        processes: int,
    ) -> list[float]:
        """Run ranks on the first hosts; return the median step of each of the trainings."""
        jobs = []
        script = str(ROOT / FOLDERS[self._framework] / "train.py")
        folders = [self._out / f"{self._framework}-run{i}" for i in range(len(environments))]
        for rank, environment in enumerate(environments):
            shutil.rmtree(folders[rank], ignore_errors=True)
            options = {
                "data": self._data,
                "cache": self._out / "cache",
                "out": folders[rank],
                "strategy": RINGS[self._framework],
                "processes": processes,
                "replicas": processes,
                "threads": 1,
                "steps": steps,
            }
            flags = [*spec_flags(specs[min(rank, len(specs) - 1)]), *option_flags(options)]
            request = {"argv": [script, *flags], "environment": environment, "bound": True}
            jobs.append(self._servers[rank].start(request))
        for rank, job in enumerate(jobs):
            status, _, printed = job.wait()
            if status:
                last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
                raise SideFailed(f"{self._framework}, rank {rank}: {last}", status)
        return [
            json.loads((folder / "summary.json").read_text())["seconds_per_step"]
            for folder in folders[: len(specs)]
        ]
