"""Measures a TCP link between two hosts: its latency by pings, its bandwidth by streams."""

import socket
import statistics
import struct
import time
from contextlib import suppress

from parity.base.errors import UsageError

_HEADER = struct.Struct(">cQ")
_PING, _STREAM = b"P", b"S"
_CHUNK = 1 << 20
_PINGS = 50
_SMALL, _SECONDS = 1 << 18, 1.0  # the first stream's bytes; about how long the last one takes
_TIMEOUT = 30.0


def serve(listener: socket.socket, callers: int | None = None) -> None:
    """Answer those that measure, one after another, for ever or for a number of callers."""
    while callers is None or callers > 0:
        channel, _ = listener.accept()
        with channel, suppress(OSError):
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _answer(channel)
        callers = None if callers is None else callers - 1


def listen(port: int) -> None:
    """Answer those that measure the link to this host, until interrupted.

    Raises:
      UsageError: for a port that cannot be used.
    """
    try:
        listener = socket.create_server(("", port))
    except OSError as error:
        raise UsageError(
            f"--listen is {port}: {error.strerror}; allowed: a free port of this host"
        ) from None
    print(f"listening at port {port}", flush=True)
    with listener:
        serve(listener)


def measure(host: str, port: int) -> tuple[float, float]:
    """Return (latency in seconds, bytes per second) of the link to a host that serves.

    The latency is half of the median round trip of a small message; the bandwidth that of a
    stream of about a second, after one of the same size has opened the window.

    Raises:
      UsageError: if nobody answers there.
    """
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT) as channel:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = [_ask(channel, _PING, 0) for _ in range(_PINGS)]
            latency = statistics.median(trips) / 2
            size, seconds = _SMALL, 0.0
            while seconds < _SECONDS / 2:
                seconds = max(_ask(channel, _STREAM, size) - 2 * latency, 1e-6)
                rate = size / seconds
                size = int(min(8 * size, max(size, rate * _SECONDS)))
            return latency, rate
    except OSError as error:
        raise UsageError(
            f"{host}:{port}: no link can be measured: {error.strerror or error}; allowed: a "
            "host on which `parity scale --listen PORT` runs"
        ) from None


def _ask(channel: socket.socket, kind: bytes, size: int) -> float:
    """Send some bytes; return the seconds until the other side has said that it has them."""
    start = time.perf_counter()
    channel.sendall(_HEADER.pack(kind, size))
    block = bytes(min(size, _CHUNK))
    while size:
        sent = channel.send(block[: min(size, len(block))])
        size -= sent
    if not channel.recv(1):
        raise ConnectionResetError("the connection is closed")
    return time.perf_counter() - start


def _answer(channel: socket.socket) -> None:
    while True:
        header = channel.recv(_HEADER.size, socket.MSG_WAITALL)
        if len(header) < _HEADER.size:
            return
        _, size = _HEADER.unpack(header)
        while size:
            size -= len(channel.recv(min(size, _CHUNK))) or size
        channel.sendall(b"!")
