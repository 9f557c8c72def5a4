"""Two hosts on one machine: network namespaces, joined by links of a given rate and delay.

Needs root, Linux and iproute2. The hosts share the machine's cores, memory and disk.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from namespaces import DEVICE, remove, run_inside

REQUIRED = "PARITY_REQUIRE_HOSTS"
HOW_TO_GET = (
    "no network namespaces: as root, and with iproute2 and /dev/net/tun, trainings on two "
    "hosts run too"
)
ADDRESSES = ("10.78.0.1", "10.78.0.2")

_RELAY = Path(__file__).with_name("relay.py")
_SECONDS = 60.0  # in which the switch removes the hosts


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
        return int(run_inside(self.names[host], ["cat", path]))

    def cut(self, host: int) -> None:
        """Cut the link of a host."""
        run_inside(self.names[host], ["ip", "link", "set", DEVICE, "down"])


@contextmanager
def hosts(delay: float = 0.0, rate: float = 100e6) -> Iterator[NamespaceHosts]:
    """Yield two hosts, and remove them at the end.

    The processes that still run on them are killed then. All of it comes to its end even if
    this process is killed: the switch notices and removes the hosts.

    Args:
      delay: seconds that a packet takes from one host to the other, at least.
      rate: bits per second that each host can send.

    Raises:
      OSError: where this is not possible.
    """
    tag = uuid.uuid4().hex[:8]
    names = tuple(f"host{i}-{tag}" for i in range(len(ADDRESSES)))
    words = [f"{name}={address}" for name, address in zip(names, ADDRESSES, strict=True)]
    switch = None
    try:
        switch = subprocess.Popen(
            [sys.executable, str(_RELAY), str(delay), f"{rate:.0f}", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not end it before those that use the hosts
        )
        answer = switch.stdout.readline().strip()
        if answer != "ready":
            raise OSError(f"no hosts can be made: {answer or 'the switch has ended'}")
        yield NamespaceHosts(names)
    finally:
        if switch is not None:
            switch.stdin.close()
            switch.stdout.close()
            try:
                switch.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                switch.kill()
                switch.wait()
        for name in names:
            remove(name)  # if the switch was killed


def possible() -> bool:
    """Return whether this process may make such hosts."""
    if os.geteuid() != 0:
        return False
    with suppress(OSError, subprocess.CalledProcessError), hosts():
        return True
    return False
