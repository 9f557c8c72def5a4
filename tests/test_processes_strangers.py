"""Whoever comes to the ports of a training, it ends as it would have.

On one machine nobody reaches them. Between machines the engines let anybody in, as a warning
says that names their ports, and docs/security.md what they do for him.
"""

import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import two_hosts
from conftest import FOLDERS, chosen, flags, processes_in
from two_hosts import command_inside

from parity.twins.launch.processes import ROOT, interpreter

pytestmark = [pytest.mark.hosts, pytest.mark.thorough]
# gloo and Paddle's store can be kept from connecting the ranks, as docs/security.md says
OF_GLOO = ("data-parallel", "horovod")


def listening(process: int) -> set[int]:
    """Return the ports that something listens at in the network of a process."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]:
            _, address, _, state, *_ = line.split()
            if state == "0A":
                found.add(int(address.rpartition(":")[2], 16))
    return found


class Strangers:
    """Users without rights, each on a host, who come to every port as soon as it is known."""

    def __init__(self, places: list[tuple[str, str]]):
        """Args: places: the host that each is on, and the address that he comes to."""
        script = str(ROOT / "tests" / "stranger.py")
        self.known: set[int] = set()
        self.refused: list[str] = []  # why connections failed
        self._started = [
            subprocess.Popen(
                command_inside(host, [sys.executable, script, address]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for host, address in places
        ]

    def come(self, ports: set[int]) -> None:
        """Let them come to ports."""
        for port in sorted(ports - self.known):
            self.known.add(port)
            for each in self._started:
                print(port, file=each.stdin, flush=True)

    def leave(self) -> dict[int, int]:
        """Let them go; return port -> number of connections that it took."""
        found: dict[int, int] = defaultdict(int)
        for each in self._started:
            for line in each.communicate(timeout=120)[0].splitlines():
                port, count, *why = line.split(maxsplit=2)
                found[int(port)] += int(count)
                self.refused += why
            assert each.returncode == 0
        return found


@pytest.mark.parametrize(("framework", "entry"), chosen(lambda entry: entry.traits.processes))
def test_strangers_do_not_change_a_training(framework, entry, text, cache, tmp_path):
    strategy = entry.name
    given = flags(
        **{"strategy": strategy, "data": text, "cache": cache, "steps": 15},
        optimizer="sgd" if "sgd" in entry.traits.optimizers else "adam",
        schedule=None if entry.traits.synchronous else 1,
    )
    named = [sys.executable, str(ROOT / "tests" / "named_host.py"), two_hosts.ADDRESSES[0]]
    words = [
        *(interpreter(framework, strategy), str(ROOT / FOLDERS[framework] / "train.py")),
        *given,
    ]

    def train(
        kind: str, host: str, come: Callable[[set[int]], None], *more: str
    ) -> tuple[str, bytes | None]:
        """Train; return what is printed on stderr, and the losses; None if it was ended."""
        folder = (tmp_path / kind).resolve()
        folder.mkdir()
        # between hosts it has a name that the other one finds
        program = [*(named if kind == "open" else []), *words]
        with (folder / "said").open("w") as file:
            training = subprocess.Popen(
                command_inside(host, [*program, f"--out={folder / 'out'}", *more]),
                cwd=folder,
                stderr=file,
                stdout=subprocess.DEVNULL,
            )
        last = time.monotonic() + 300
        while training.poll() is None:
            for process in processes_in(folder):
                try:
                    come(listening(process))
                except OSError:  # it has ended
                    continue
            if time.monotonic() > last:
                for process in processes_in(folder):
                    os.kill(process, 9)
            time.sleep(0.02)
        said = (folder / "said").read_text()
        if training.returncode == 4 and kind == "open" and strategy in OF_GLOO:
            return said, None
        assert training.returncode == 0, said
        return said, (folder / "out" / "losses.csv").read_bytes()

    with two_hosts.hosts() as two:
        here = Strangers(
            [(two.names[0], each) for each in ("127.0.0.1", two_hosts.ADDRESSES[0])]
        )
        again = [] if strategy in OF_GLOO else ["--max-restarts=1"]
        unheard, alone = train("closed", two.names[0], here.come, *again)
        reached = here.leave()
        assert reached
        assert not any(reached.values()), reached
        assert "warning" not in unheard
        file = tmp_path / "hosts.toml"
        file.write_text(f'[[host]]\naddress = "{two_hosts.ADDRESSES[0]}"\nranks = 2\n')
        there = Strangers([(two.names[1], two_hosts.ADDRESSES[0])])
        more = again or ["--stall-seconds=6"]
        said, visited = train("open", two.names[0], there.come, f"--hosts={file}", *more)
        reached = there.leave()
    for each in (unheard, said):
        # what TensorFlow's engine does to itself, once in many trainings, no stranger does
        assert "starting again" not in each or '"Unable to parse request"' in each
    assert any(reached.values()), (reached, there.refused)
    (line,) = [each for each in said.splitlines() if each.startswith("warning: ")]
    at = {int(port) for port in re.findall(r":(\d+)", line)}
    assert at <= {*reached}, (line, reached)
    assert at or strategy == "horovod"
    assert visited in (alone, None)
