"""Two hosts on one machine: network namespaces, joined by a shaped link."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.77.0.1", "10.77.0.2")
REQUIRED = "PARITY_REQUIRE_HOSTS"
HOW_TO_GET = "no network namespaces: as root, and with iproute2, trainings on two hosts run too"

_SHAPE = "root tbf rate 100mbit burst 32k latency 50ms"


def possible() -> bool:
    """Return whether this process may make network namespaces and shape a link."""
    if os.geteuid() != 0:
        return False
    try:
        with hosts():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def hosts() -> Iterator[tuple[str, str]]:
    """Yield the names of two namespaces with a link of 100 Mbit/s; remove them at the end."""
    tag = uuid.uuid4().hex[:8]
    names = f"first-{tag}", f"second-{tag}"
    try:
        for name in names:
            _ip(f"netns add {name}")
        first, second = names
        _ip(f"link add a{tag} netns {first} type veth peer name a{tag} netns {second}")
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip(f"-n {name} address add {address}/24 dev a{tag}")
            _ip(f"-n {name} link set a{tag} up")
            _ip(f"-n {name} link set lo up")
            on(name, f"tc qdisc add dev a{tag} {_SHAPE}".split())
        yield names
    finally:
        for name in names:
            subprocess.run(f"ip netns del {name}".split(), check=False, capture_output=True)


def cut(name: str) -> None:
    """Cut the link of a host."""
    _ip(f"-n {name} link set a{name.rpartition('-')[2]} down")


def sent_bytes(name: str) -> int:
    """Return how many bytes a host has sent over its link."""
    device = f"a{name.rpartition('-')[2]}"
    return int(on(name, ["cat", f"/sys/class/net/{device}/statistics/tx_bytes"]))


def inside(name: str, command: list[str]) -> list[str]:
    """Return a command that runs another one on a host."""
    return ["ip", "netns", "exec", name, *command]


def processes(name: str) -> list[int]:
    """Return the processes that run on a host."""
    found = subprocess.run(
        f"ip netns pids {name}".split(), check=True, capture_output=True, text=True
    )
    return [int(each) for each in found.stdout.split()]


def on(name: str, command: list[str]) -> str:
    """Run a command on a host and return what it prints."""
    return subprocess.run(
        inside(name, command), check=True, capture_output=True, text=True
    ).stdout


def _ip(arguments: str) -> None:
    subprocess.run(f"ip {arguments}".split(), check=True, capture_output=True)
