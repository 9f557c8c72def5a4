"""The interface that has an address is found by the address, or by a name for it."""

import pytest

from parity.base.errors import UsageError
from parity.base.interfaces import interface_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.1.1"])
def test_the_loopback_interface_has_its_addresses(host):
    assert interface_of(host) == "lo"


def test_an_address_of_another_machine_is_refused():
    # set aside for documentation, so that no machine has it
    message = r"the host '192.0.2.1' is 192.0.2.1; allowed on this machine: .*127.0.0.1 \(lo\)"
    with pytest.raises(UsageError, match=message):
        interface_of("192.0.2.1")
