"""Addresses: free ports of this host, and what can be the name of one."""

import random
import socket
from contextlib import ExitStack

from parity.base.errors import UsageError

LAST_PORT = 65_535


def free_ports(address: str, count: int, ports: tuple[int, int] | None = None) -> list[int]:
    """Return ports of an address of this host that nothing listens at.

    Args:
      address: a name or an address of this host.
      count: how many ports to return.
      ports: the first and the last port to choose from; None for any that the system has free.

    Raises:
      UsageError: if the address is of another host, or there are not as many free ports.
    """
    try:
        socket.create_server((address, 0)).close()
    except OSError as error:
        raise UsageError(
            f"{address!r} is no address of this host ({error.strerror}); allowed: one by which "
            "the other hosts reach it"
        ) from None
    if ports is None:
        tried = [0] * count
    else:  # drawn, so that trainings that start at the same time seldom choose the same
        tried = random.sample(range(ports[0], ports[1] + 1), ports[1] + 1 - ports[0])
    found: list[int] = []
    with ExitStack() as stack:
        for port in tried:
            if len(found) == count:
                break
            try:
                listener = stack.enter_context(socket.create_server((address, port)))
            except OSError:  # in use
                continue
            found.append(listener.getsockname()[1])
    if len(found) < count:
        assert ports is not None
        raise UsageError(
            f"{len(found)} of {count} ports from {ports[0]} to {ports[1]} are free at "
            f"{address}; allowed: a range with more"
        )
    return found


def is_host_name(text: str) -> bool:
    """Return whether a text can be looked up: none of its parts is empty or too long."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True
