"""Two hosts on one machine: network namespaces, joined by a cable.

Needs root, Linux and iproute2. The hosts share the machine's cores, memory and disk.

`python tests/two_hosts.py NAMESPACE ...` removes namespaces once its input has ended,
which also comes with the death of whoever holds it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

REQUIRED = "PARITY_REQUIRE_HOSTS"
HOW_TO_GET = (
    "no network namespaces: as root, and with iproute2 and veth devices, trainings on two "
    "hosts run too"
)
ADDRESSES = ("10.78.0.1", "10.78.0.2")
# `ip netns exec` shows a namespace the files of the folder with its name instead of /etc's own.
FILES = Path("/etc/netns")
DEVICE = "link0"  # of each host

_SECONDS = 60.0  # in which the hosts are removed


def command_inside(namespace: str, command: Sequence[str]) -> list[str]:
    """Return a command that runs another one in a namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def processes_inside(namespace: str) -> list[int]:
    """Return the processes that run in a namespace; none if it does not exist."""
    try:
        return [int(each) for each in run(["ip", "netns", "pids", namespace]).split()]
    except (OSError, subprocess.CalledProcessError):
        return []


def remove(namespace: str) -> None:
    """Remove a namespace, its files and the processes that run in it, if it exists.

    Its devices end with it. This process and its parent are spared, which may be inside.
    """
    while found := set(processes_inside(namespace)) - {os.getpid(), os.getppid()}:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)  # in which they end
    with suppress(OSError, subprocess.CalledProcessError):
        run(["ip", "netns", "del", namespace])
    shutil.rmtree(FILES / namespace, ignore_errors=True)


def run(command: Sequence[str]) -> str:
    """Run a command and return what it prints.

    Raises:
      subprocess.CalledProcessError: if it fails.
    """
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass
class NamespaceHosts:
    """Two hosts; made by `hosts`.

    Attributes:
      names: the namespace of each host.
    """

    names: tuple[str, ...]

    def sent_bytes(self, host: int) -> int:
        """Return how many bytes a host has sent so far."""
        path = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
        return int(run(command_inside(self.names[host], ["cat", path])))

    def cut(self, host: int) -> None:
        """Cut the link of a host."""
        run(command_inside(self.names[host], ["ip", "link", "set", DEVICE, "down"]))


@contextmanager
def hosts() -> Iterator[NamespaceHosts]:
    """Yield two hosts, and remove them at the end, with the processes that still run on them.

    They are removed even if this process is killed: another one notices.

    Raises:
      OSError: where this is not possible.
    """
    tag = uuid.uuid4().hex[:8]
    names = tuple(f"host{i}-{tag}" for i in range(len(ADDRESSES)))
    remover = subprocess.Popen(
        [sys.executable, __file__, *names],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C must not end it before those that use the hosts
    )
    try:
        try:
            for name in names:
                run(["ip", "netns", "add", name])
            ends = [word for name in names for word in ("netns", name, "name", DEVICE)]
            run(["ip", "link", "add", *ends[:4], "type", "veth", "peer", *ends[4:]])
            for name, address in zip(names, ADDRESSES, strict=True):
                run(["ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE])
                for device in ("lo", DEVICE):
                    run(["ip", "-n", name, "link", "set", device, "up"])
        except (OSError, subprocess.CalledProcessError) as error:
            raise OSError(f"no hosts can be made: {error}") from None
        yield NamespaceHosts(names)
    finally:
        remover.stdin.close()
        remover.wait(_SECONDS)


def possible() -> bool:
    """Return whether this process may make such hosts."""
    if os.geteuid() != 0:
        return False
    with suppress(OSError), hosts():
        return True
    return False


if __name__ == "__main__":
    sys.stdin.read()
    for each in sys.argv[1:]:
        remove(each)
