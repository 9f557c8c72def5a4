"""Hosts on one machine: network namespaces at a switch, each with a link of a given kind.

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
from typing import IO

from parity.twins.links.namespaces import command_inside, remove, run_inside
from parity.twins.links.relay import DEVICE

_BURST = 131_072  # bytes: a packet before it is divided into segments has up to 65,536
_CHECKOUT = Path(__file__).resolve().parents[3]
_SECONDS = 60.0  # in which the switch removes the hosts


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
                command_inside(name, ["tc", "qdisc", "del", "dev", DEVICE, "root"]),
                check=False,
                capture_output=True,
            )
            if rate is not None:
                shape = f"tbf rate {rate:.0f}bit burst {_BURST} latency 400ms"
                run_inside(name, f"tc qdisc add dev {DEVICE} root {shape}".split())
        self._commands.write(f"{delay}\n")
        self._commands.flush()

    def sent_bytes(self, host: int) -> int:
        """Return how many bytes a host has sent so far."""
        path = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
        return int(run_inside(self.names[host], ["cat", path]))

    def cut(self, host: int) -> None:
        """Cut the link of a host."""
        run_inside(self.names[host], ["ip", "link", "set", DEVICE, "down"])


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Yield some hosts, joined by links without a limit or a delay; remove them at the end.

    The processes that still run on them are killed then. All of it comes to its end even if
    this process is killed: the switch notices and removes the hosts.

    Raises:
      OSError: where this is not possible.
    """
    tag = uuid.uuid4().hex[:8]
    names = tuple(f"host{i}-{tag}" for i in range(count))
    addresses = tuple(f"10.78.0.{i + 1}" for i in range(count))
    words = [f"{name}={address}" for name, address in zip(names, addresses, strict=True)]
    switch = None
    try:
        switch = subprocess.Popen(
            [sys.executable, "-m", "parity.twins.links.relay", *words],
            cwd=_CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not end it before those that use the hosts
        )
        assert switch.stdin is not None
        assert switch.stdout is not None
        answer = switch.stdout.readline().strip()
        if answer != "ready":
            raise OSError(f"no hosts can be made: {answer or 'the switch has ended'}")
        yield Hosts(names, addresses, switch.stdin)
    finally:
        if switch is not None:
            _end(switch)
        for name in names:
            remove(name)  # if the switch was killed


def _end(switch: "subprocess.Popen[str]") -> None:
    for stream in (switch.stdin, switch.stdout):
        assert stream is not None
        with suppress(OSError):  # what it was told last is not written yet
            stream.close()
    try:
        switch.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        switch.kill()
        switch.wait()


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
