"""Hosts on one machine: their links have the delay and the rate that is set, and measured."""

import socket
import threading
import time

import pytest

from parity.links.hosts import hosts
from parity.links.measure import measure, serve
from parity.links.namespaces import inside

PORT = 5_000


@pytest.fixture(scope="module")
def two():
    """Return two hosts."""
    with hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def channel(two):
    """Return a connection between two hosts; what one sends, the other sends back."""
    with inside(two.names[1]):
        listener = socket.create_server((two.addresses[1], PORT))

    def echo():
        answering, _ = listener.accept()
        while words := answering.recv(1 << 16):
            answering.sendall(words)

    threading.Thread(target=echo, daemon=True).start()
    with inside(two.names[0]), socket.create_connection((two.addresses[1], PORT)) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield made
    listener.close()


@pytest.mark.hosts
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.05])
def test_a_round_trip_takes_twice_the_delay_at_least(two, channel, delay):
    two.shape(None, delay)
    time.sleep(0.1)  # until the switch knows
    start = time.perf_counter()
    channel.sendall(b"x")
    assert channel.recv(1) == b"x"
    assert time.perf_counter() - start >= 2 * delay


@pytest.mark.hosts
def test_what_is_sent_arrives_unchanged_and_no_faster_than_the_rate(two, channel):
    two.shape(1e7)
    words = bytes(range(256)) * 4096  # 1 MiB
    before, start, back = two.sent_bytes(0), time.perf_counter(), bytearray()
    sending = threading.Thread(target=channel.sendall, args=(words,))
    sending.start()
    while len(back) < len(words):
        back += channel.recv(1 << 16)
    sending.join()
    assert bytes(back) == words
    assert two.sent_bytes(0) - before >= len(words)
    # but for the bucket of 128 KiB
    assert time.perf_counter() - start >= (len(words) - (1 << 17)) * 8 / 1e7


@pytest.mark.hosts
def test_a_link_is_measured_as_slow_as_it_was_made(two):
    two.shape(1e8, 0.02)
    with inside(two.names[1]):
        listener = socket.create_server((two.addresses[1], PORT + 1))
    with listener:
        threading.Thread(target=serve, args=(listener, 1), daemon=True).start()
        with inside(two.names[0]):
            latency, bandwidth = measure(two.addresses[1], PORT + 1)
    assert latency >= 0.02
    assert bandwidth <= 1.1e8 / 8  # the bucket is full at first


@pytest.mark.hosts
def test_hosts_leave_nothing_behind(two):
    with hosts(3) as three:
        assert len(set(three.names) | set(two.names)) == 5
        with inside(three.names[2]):
            assert "link0" in [name for _, name in socket.if_nameindex()]
    with pytest.raises(FileNotFoundError), inside(three.names[2]):
        pass


def test_a_link_is_measured_between_any_two_programs():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener, 1), daemon=True).start()
        latency, bandwidth = measure("127.0.0.1", listener.getsockname()[1])
    assert latency > 0
    assert bandwidth > 0
