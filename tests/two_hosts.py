"""Two hosts on one machine, whose links have 100 Mbit/s; parity/twins/links makes them."""

from collections.abc import Iterator
from contextlib import contextmanager

from parity.twins.links import hosts as links
from parity.twins.links.hosts import Hosts

REQUIRED = "PARITY_REQUIRE_HOSTS"
HOW_TO_GET = (
    "no network namespaces: as root, and with iproute2 and /dev/net/tun, trainings on two "
    "hosts run too"
)
ADDRESSES = ("10.78.0.1", "10.78.0.2")  # that parity/twins/links gives the first two hosts


@contextmanager
def hosts(delay: float = 0.0) -> Iterator[Hosts]:
    """Yield two hosts; a packet takes the delay, in seconds, from one to the other."""
    with links.hosts(2) as two:
        assert two.addresses == ADDRESSES
        two.shape(100e6, delay)
        yield two
