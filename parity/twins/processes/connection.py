"""A connection between two processes of a training, and the messages that pass over it.

A message is its kind (1 byte), the length of its content (8 bytes, big-endian) and its content:
a NumPy archive (`.npz`) for tensors, JSON for anything else. Nothing is unpickled, so that a
stranger who reaches the port cannot run code.
"""

import io
import json
import queue
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

import numpy as np

TENSORS, BEAT, FAILED, BYE, HELLO = b"T", b"B", b"F", b"Q", b"H"

_HEADER = struct.Struct(">cQ")
_CHUNK = 1 << 20  # bytes
_LONGEST_GREETING = 1 << 20  # bytes; what is said of a run has some thousands


class Connection:
    """Sends messages to one other process, and receives its messages in a thread.

    Attributes:
      heard: when the last bytes came in, in seconds of `time.monotonic`.

    Args:
      channel: the connected socket.
    """

    def __init__(self, channel: socket.socket):
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel, self._lock = channel, Lock()
        self._received: queue.Queue[dict[str, np.ndarray]] = queue.Queue()
        self.heard = time.monotonic()

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a message.

        Raises:
          OSError: if the connection is closed.
        """
        with self._lock:
            self._channel.sendall(_HEADER.pack(kind, len(content)))
            self._channel.sendall(content)

    def send_tensors(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Send arrays by name, for the other process's `tensors`.

        Raises:
          OSError: if the connection is closed.
        """
        archive = io.BytesIO()
        # the slash keeps names apart from the function's own arguments
        arrays: dict[str, Any] = {f"/{name}": array for name, array in tensors.items()}
        np.savez(archive, **arrays)
        self.send(TENSORS, archive.getvalue())

    def send_json(self, kind: bytes, values: Any) -> None:
        """Send plain values.

        Raises:
          OSError: if the connection is closed.
        """
        self.send(kind, json.dumps(values).encode())

    def beat(self) -> None:
        """Tell the other process that this one lives, unless a message is on its way."""
        if self._lock.acquire(blocking=False):
            try:
                with suppress(OSError):  # the thread that receives finds out
                    self._channel.sendall(_HEADER.pack(BEAT, 0))
            finally:
                self._lock.release()

    def receive(self) -> tuple[bytes, bytes]:
        """Return the kind and the content of the next message.

        Raises:
          OSError: if the connection is closed.
        """
        kind, length = _HEADER.unpack(self._read(_HEADER.size))
        return kind, self._read(length)

    def receive_greeting(self, seconds: float) -> tuple[bytes, bytes]:
        """Return the kind and the content of the first message, before `listen`.

        Whoever has connected may be a stranger: the message must be short, and come in time.

        Args:
          seconds: how long it may take until all of it is here.

        Raises:
          OSError: if the connection is closed, or the message does not come in time.
          ValueError: if it is too long.
        """
        deadline = time.monotonic() + seconds
        kind, length = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if length > _LONGEST_GREETING:
            raise ValueError(f"a greeting has {length:,} bytes")
        content = self._read(length, deadline)
        self._channel.settimeout(None)
        return kind, content

    def listen(self, handle: Callable[[bytes, Any], None]) -> None:
        """Receive messages in a thread from now on.

        Args:
          handle: called in that thread with the kind and the plain values of every message
            other than tensors and beats; with `BYE` and None when the connection closes.
        """
        Thread(target=self._listen, args=(handle,), daemon=True).start()

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the next tensors that the other process sends; waits for them."""
        return self._received.get()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()

    def _listen(self, handle: Callable[[bytes, Any], None]) -> None:
        try:
            while True:
                kind, content = self.receive()
                if kind == TENSORS:
                    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                        self._received.put({name[1:]: archive[name] for name in archive.files})
                elif kind != BEAT:
                    handle(kind, json.loads(content or b"null"))
                    if kind == BYE:
                        return
        except (OSError, ValueError):
            handle(BYE, None)

    def _read(self, length: int, deadline: float | None = None) -> bytes:
        content = bytearray()
        while len(content) < length:
            if deadline is not None:
                self._channel.settimeout(max(1e-3, deadline - time.monotonic()))
            chunk = self._channel.recv(min(_CHUNK, length - len(content)))
            if not chunk:
                raise ConnectionResetError("the connection is closed")
            self.heard = time.monotonic()
            content += chunk
        return bytes(content)
