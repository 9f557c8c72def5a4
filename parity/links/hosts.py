"""Hosts on one machine: network namespaces at a switch, each with a link of a given kind.

Needs root, Linux and iproute2. The hosts share the machine's cores, memory and disk.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from parity.links.namespaces import command_inside, run, run_inside

_BURST = 131_072  # bytes: a packet before it is divided into segments has up to 65,536
_DEVICE = "link0"
# A flow that rests while its ranks compute would begin anew slowly, and a host's own default
# may be an algorithm that paces itself by delays which a loaded machine makes up.
_SETTINGS = (
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_wmem=4096 16777216 33554432",
    "net.ipv4.tcp_rmem=4096 16777216 33554432",
)


@dataclass
class Hosts:
    """Some hosts; made by `hosts`.

    Attributes:
      names: the namespace of each host.
      addresses: the IPv4 address of each host.
    """

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    _commands: IO[str]

    def shape(self, rate: float | None, delay: float = 0.0) -> None:
        """Set what all links do from now on.

        Args:
          rate: bits per second that each host can send; None for no limit.
          delay: seconds that every packet takes, at least, from one host to another.
        """
        for name in self.names:
            subprocess.run(
                command_inside(name, ["tc", "qdisc", "del", "dev", _DEVICE, "root"]),
                check=False,
                capture_output=True,
            )
            if rate is not None:
                shape = f"tbf rate {rate:.0f}bit burst {_BURST} latency 400ms"
                run_inside(name, f"tc qdisc add dev {_DEVICE} root {shape}".split())
        self._commands.write(f"{delay}\n")
        self._commands.flush()

    def sent_bytes(self, host: int) -> int:
        """Return how many bytes a host has sent so far."""
        path = f"/sys/class/net/{_DEVICE}/statistics/tx_bytes"
        return int(run_inside(self.names[host], ["cat", path]))

    def cut(self, host: int) -> None:
        """Cut the link of a host."""
        run_inside(self.names[host], ["ip", "link", "set", _DEVICE, "down"])


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Yield some hosts, joined by links without a limit or a delay; remove them at the end.

    Raises:
      OSError, subprocess.CalledProcessError: where this is not possible.
    """
    tag = uuid.uuid4().hex[:8]
    names = tuple(f"host{i}-{tag}" for i in range(count))
    addresses = tuple(f"10.78.0.{i + 1}" for i in range(count))
    words = [
        f"{name}={_DEVICE}={address}" for name, address in zip(names, addresses, strict=True)
    ]
    switch = None
    try:
        for name in names:
            run(["ip", "netns", "add", name])
            run_inside(name, ["sysctl", "-q", *_SETTINGS])
        switch = subprocess.Popen(
            [sys.executable, "-m", "parity.links.relay", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert switch.stdin is not None
        assert switch.stdout is not None
        if switch.stdout.readline() != "ready\n":
            raise OSError("the switch between the hosts did not start")
        for name, address in zip(names, addresses, strict=True):
            run(["ip", "-n", name, "address", "add", f"{address}/24", "dev", _DEVICE])
            run(["ip", "-n", name, "link", "set", "lo", "up"])
            run(["ip", "-n", name, "link", "set", _DEVICE, "up"])
        yield Hosts(names, addresses, switch.stdin)
    finally:
        if switch is not None:
            switch.kill()
            switch.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def possible() -> bool:
    """Return whether this process may make such hosts."""
    if os.geteuid() != 0:
        return False
    try:
        with hosts(2) as two:
            two.shape(1e9, 0.001)
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
