"""How the processes of a training find each other at rank 0, and prove that they belong to it.

All know one secret, of which neither side tells the other: each proves that it has it by a
keyed hash of two fresh random numbers, one of either side (RFC 2104, with SHA-256). Nothing
about the run is said, and nothing that is said is read, before both proofs have passed:

  rank 0 -> the other   its number, 32 bytes
  the other -> rank 0   its number and its proof, 64 bytes
  rank 0 -> the other   its own proof, 32 bytes; zeros if it refuses

Whoever launches the processes draws a secret for them. By hand, PARITY_SECRET_FILE names a file
that has one, the same for all; without it the secret is empty, and anyone has it.
"""

import hmac
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from parity.base.errors import RankLost, UsageError
from parity.twins.processes.connection import HEADER, HELLO, LONGEST_WORDS, checked

SECRET, SECRET_FILE = "PARITY_SECRET", "PARITY_SECRET_FILE"

_SHORTEST_SECRET, _LONGEST_SECRET = 16, 4096  # bytes
_NUMBER = _PROOF = 32  # bytes
_CONNECT_SECONDS = 1.0
_RETRY_SECONDS = 0.1
_GREETING_SECONDS = 5.0  # until a process that has come has proved who it is
_MOST_GUESTS = 64  # that may greet at the same time
_MOST_LINES = 5  # about strangers


def run_secret(environment: Mapping[str, str]) -> bytes:
    """Return the secret of this process's run; empty if it has none.

    Raises:
      UsageError: for a file that cannot be read, or holds too little or too much.
    """
    path = environment.get(SECRET_FILE)
    if environment.get(SECRET) or not path:
        return environment.get(SECRET, "").encode(errors="surrogateescape")
    try:
        # a pipe that nobody writes to is empty, and not waited for
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        secret = os.read(opened, _LONGEST_SECRET + 1).strip()
        os.close(opened)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{SECRET_FILE} is {path!r}: cannot be read: {reason}") from None
    if not _SHORTEST_SECRET <= len(secret) <= _LONGEST_SECRET:
        raise UsageError(
            f"{SECRET_FILE} is {path!r}, which has {len(secret)} bytes; allowed: a secret of "
            f"{_SHORTEST_SECRET} to {_LONGEST_SECRET}, such as `openssl rand -hex 32` prints"
        )
    return secret


class Reception:
    """Receives the other processes at rank 0, however many strangers come as well.

    Args:
      meeting: "host:port" to listen at.
      secret: the run's secret.
      seconds: how long all of it may take.
      note: called with a line about each of the first strangers.

    Raises:
      UsageError: if the port is in use, or of another host.
    """

    def __init__(
        self, meeting: str, secret: bytes, seconds: float, note: Callable[[str], None]
    ):
        self._secret, self._note, self._noted = secret, note, 0
        self._deadline = time.monotonic() + seconds
        self._guests: dict[_Guest, None] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        host, port = meeting.rsplit(":", 1)
        try:
            self._listener = socket.create_server((_interface(host), int(port)))
        except OSError as error:
            raise UsageError(
                f"rank 0 cannot listen at {meeting}: {error.strerror}; allowed: a free "
                "port of this host, by the variable PARITY_MEETING"
            ) from None
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def next(self) -> tuple[socket.socket, Mapping[str, Any]] | int | None:
        """Return the connection of the next process of the run, and what it says of itself.

        Returns:
          The same; the number of a process that had come and is gone; None if the time is up.
        """
        while True:
            now = time.monotonic()
            for guest in [each for each in self._guests if now > each.deadline]:
                self._turn_away(guest, "it has not proved within 5 s that it is of this run")
            if now > self._deadline:
                return None
            wait = min([self._deadline, *(each.deadline for each in self._guests)]) - now
            for key, _ in self._selector.select(max(0.0, wait)):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, int):
                    self._selector.unregister(key.fileobj)
                    return key.data
                elif key.data in self._guests:
                    hello = self._hear(key.data)
                    if hello is not None:
                        return key.data.channel, hello

    def watch(self, number: int, channel: socket.socket) -> None:
        """Let `next` return a number if the process at the other end of a connection is gone.

        It says nothing before all have come.
        """
        self._selector.register(channel, selectors.EVENT_READ, number)

    def close(self) -> None:
        """Receive nobody any more."""
        for guest in self._guests:
            guest.channel.close()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            channel, address = self._listener.accept()
        except OSError:  # it has gone again
            return
        if len(self._guests) == _MOST_GUESTS:
            self._turn_away(next(iter(self._guests)), "too many came at once")
        guest = _Guest(channel, f"{address[0]}:{address[1]}")
        self._guests[guest] = None
        self._selector.register(channel, selectors.EVENT_READ, guest)

    def _hear(self, guest: "_Guest") -> Mapping[str, Any] | None:
        """Return what a guest says of itself, once all of it is here."""
        try:
            hello = guest.hear(self._secret)
        except (OSError, ValueError) as error:
            self._turn_away(guest, str(getattr(error, "strerror", None) or error))
            return None
        if hello is not None:
            self._selector.unregister(guest.channel)
            del self._guests[guest]
            guest.channel.setblocking(True)
        return hello

    def _turn_away(self, guest: "_Guest", reason: str) -> None:
        self._selector.unregister(guest.channel)
        del self._guests[guest]
        guest.channel.close()
        self._noted += 1
        if self._noted <= _MOST_LINES:
            self._note(f"turned away {guest.address}, which came to rank 0: {reason}")
        if self._noted == _MOST_LINES:
            self._note("others that are turned away get no line")


class _Guest:
    """A connection to rank 0 of which it is not known yet who has made it."""

    def __init__(self, channel: socket.socket, address: str):
        self.channel, self.address = channel, address
        self.deadline = time.monotonic() + _GREETING_SECONDS
        self._number, self._received = secrets.token_bytes(_NUMBER), bytearray()
        self._is_proved = False
        channel.setblocking(False)
        with suppress(OSError):  # whoever hears it finds out
            channel.send(self._number)

    def hear(self, secret: bytes) -> Mapping[str, Any] | None:
        """Take in what has come; return what it says of itself, once all of it is here.

        Raises:
          OSError: if it is gone.
          ValueError: if it does not know the secret, or says what is no greeting.
        """
        most = HEADER.size + LONGEST_WORDS if self._is_proved else _NUMBER + _PROOF
        try:
            chunk = self.channel.recv(most - len(self._received))
        except BlockingIOError:
            return None
        if not chunk:
            raise ValueError("it left without a proof that it is of this run")
        self._received += chunk
        if not self._is_proved:
            if len(self._received) == most:
                self._check(secret)
            return None
        if len(self._received) < HEADER.size:
            return None
        kind, length = HEADER.unpack_from(self._received)
        if kind != HELLO or length > LONGEST_WORDS:
            raise ValueError(f"it sends {kind!r} of {length:,} bytes in place of a greeting")
        content = bytes(self._received[HEADER.size :])
        found: Mapping[str, Any] | None = None
        if len(content) >= length:
            found = checked(HELLO, content)
        return found

    def _check(self, secret: bytes) -> None:
        number, proof = bytes(self._received[:_NUMBER]), bytes(self._received[_NUMBER:])
        self._received.clear()
        if not hmac.compare_digest(proof, _proof(secret, b"a rank", self._number, number)):
            self.channel.send(bytes(_PROOF))
            raise ValueError("it does not know the secret of this run")
        self.channel.send(_proof(secret, b"rank 0", self._number, number))
        self._is_proved = True


def visit(meeting: str, secret: bytes, seconds: float) -> socket.socket:
    """Return a connection to rank 0, once each end has proved to the other that it belongs.

    Args:
      meeting: "host:port" where rank 0 listens.
      secret: the run's secret.
      seconds: how long to try.

    Raises:
      UsageError: if it has another secret.
      RankLost: if it is not to be reached.
    """
    host, port = meeting.rsplit(":", 1)
    deadline = time.monotonic() + seconds
    while True:
        try:
            channel = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
            channel.settimeout(_GREETING_SECONDS)
            theirs, own = _exactly(channel, _NUMBER), secrets.token_bytes(_NUMBER)
            channel.sendall(own + _proof(secret, b"a rank", theirs, own))
            answer = _exactly(channel, _PROOF)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RankLost(
                    f"rank 0 is not to be reached at {meeting} within {seconds:.0f} s: "
                    f"{error.strerror or error}"
                ) from None
            time.sleep(_RETRY_SECONDS)
    if not hmac.compare_digest(answer, _proof(secret, b"rank 0", theirs, own)):
        channel.close()
        raise UsageError(
            f"whoever listens at {meeting} has another secret than this rank; allowed: rank 0, "
            f"and the same secret, by {SECRET_FILE}, on every rank"
        )
    channel.settimeout(None)
    return channel


def _proof(secret: bytes, role: bytes, of_rank_0: bytes, of_other: bytes) -> bytes:
    return hmac.digest(secret, role + of_rank_0 + of_other, "sha256")


def _exactly(channel: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        chunk = channel.recv(length - len(content))
        if not chunk:
            raise ConnectionResetError("it closes the connection")
        content += chunk
    return content


def _interface(host: str) -> str:
    """Return what to listen at, for the host of a meeting point; empty for every interface.

    By its name a host may know itself under a loopback address, where nobody else reaches it,
    and a cluster may make a name known only when the process is running.
    """
    if host == "localhost":
        return host
    try:
        return str(ip_address(host))
    except ValueError:
        return ""
