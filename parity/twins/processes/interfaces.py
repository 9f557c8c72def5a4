"""The network interfaces of this machine."""

import socket

import psutil

from parity.base.errors import UsageError


def interface_of(host: str) -> str:
    """Return the name of the network interface that has the IPv4 address of a host name.

    Args:
      host: a name or an address of this machine.

    Raises:
      UsageError: if no interface has it.
    """
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise UsageError(
            f"the host {host!r} has no address ({error.strerror}); allowed: one of this machine"
        ) from None
    found: dict[str, str] = {
        each.address: name
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET
    }
    if address.startswith("127."):  # a machine's own name may have another one of these
        address = "127.0.0.1"
    if address not in found:
        listed = ", ".join(f"{each} ({name})" for each, name in found.items())
        raise UsageError(f"the host {host!r} is {address}; allowed on this machine: {listed}")
    return found[address]


def require_reachable_name() -> None:
    """Refuse a machine whose own name means only itself.

    Raises:
      UsageError: if the name of this machine has no IPv4 address, or one of the loopback
        interface.
    """
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        address = f"without an address ({error.strerror})"
    if address.startswith(("127.", "without")):
        raise UsageError(
            f"the name of this host, {name!r}, is {address}; allowed: an address at which the "
            "other hosts reach it, as a line of /etc/hosts gives it"
        )
