"""A connection between two processes of a training, and the messages that pass over it.

A message is its kind (1 byte), the length of its content (8 bytes, big-endian) and its content:
a NumPy archive (`.npz`) for tensors, JSON for anything else. Nothing is unpickled, and whatever
does not have the form of its kind ends the connection.
"""

import io
import json
import queue
import socket
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

import numpy as np

from parity.base.text import parse_json

TENSORS, BEAT, FAILED, BYE, HELLO, NAMES = b"T", b"B", b"F", b"Q", b"H", b"N"

HEADER = struct.Struct(">cQ")
LONGEST_WORDS = 1 << 20  # bytes of JSON; what is said of a run has some thousands

_CHUNK = 1 << 20  # bytes
_LONGEST_TENSORS = 1 << 40  # bytes

# The form of each kind's plain values: a type, a range of numbers, [form of every element],
# {str: form of every value}, or a dictionary of exactly these keys.
_FORMS: dict[bytes, Any] = {
    HELLO: {
        "rank": range(1, 1 << 20),
        "members": [str],
        "name": str,
        "facts": {str: str},
    },
    NAMES: [str],
    FAILED: {"message": str, "status": range(1, 256), "own": bool},
    BYE: bool,
}


def checked(kind: bytes, content: bytes) -> Any:
    """Return the plain values of a message.

    Raises:
      ValueError: if they do not have the form of its kind.
    """
    if kind not in _FORMS or len(content) > LONGEST_WORDS:
        raise ValueError(f"it sends {kind!r} of {len(content):,} bytes, which is no message")
    try:
        values = parse_json(content)
    except ValueError:
        raise ValueError(f"the content of its message {kind!r} is no JSON") from None
    if not _fits(values, _FORMS[kind]):
        raise ValueError(f"the content of its message {kind!r} has another form")
    return values


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, range):
        return type(value) is int and value in form
    if isinstance(form, list):
        return type(value) is list and all(_fits(each, form[0]) for each in value)
    if not isinstance(form, dict):
        return type(value) is form
    if type(value) is not dict:
        return False
    if str in form:
        return all(_fits(each, form[str]) for each in value.values())
    return value.keys() == form.keys() and all(_fits(value[key], form[key]) for key in form)


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message, by name.

    Raises:
      ValueError: if it is no archive of arrays, or one that would grow.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as listed:
            if sum(each.file_size for each in listed.infolist()) > len(content):
                raise ValueError
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            found = {name[1:]: archive[name] for name in archive.files}
    except Exception:  # noqa: BLE001 - of many types, by what is damaged
        raise ValueError("its tensors are no NumPy archive") from None
    if not all(isinstance(each, np.ndarray) for each in found.values()):
        raise ValueError("its tensors are no NumPy archive")
    return found


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
            self._channel.sendall(HEADER.pack(kind, len(content)))
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
                    self._channel.sendall(HEADER.pack(BEAT, 0))
            finally:
                self._lock.release()

    def receive(self, seconds: float | None = None) -> tuple[bytes, Any]:
        """Return the kind of the next message, and its arrays by name or its plain values.

        Args:
          seconds: how long it may take until all of it is here; None for as long as it takes.

        Raises:
          OSError: if the connection is closed, or the message does not come in time.
          ValueError: if it is no message.
        """
        self._channel.settimeout(seconds)
        kind, length = HEADER.unpack(self._read(HEADER.size))
        if length > (_LONGEST_TENSORS if kind == TENSORS else LONGEST_WORDS):
            raise ValueError(f"it announces {kind!r} of {length:,} bytes, which is no message")
        content = self._read(length)
        if kind == TENSORS:
            return kind, unpacked(content)
        return kind, None if kind == BEAT else checked(kind, content)

    def listen(self, handle: Callable[[bytes, Any], None]) -> None:
        """Receive messages in a thread from now on.

        Args:
          handle: called in that thread with the kind and the plain values of every message
            other than tensors and beats; with `BYE` and None when the connection closes, and
            with `BYE` and the reason when it is closed here, after what is no message.
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
        kind = TENSORS
        try:
            while kind != BYE:
                kind, values = self.receive()
                if kind == TENSORS:
                    self._received.put(values)
                elif kind != BEAT:
                    handle(kind, values)
        except OSError:
            handle(BYE, None)
        except ValueError as error:
            self.close()
            handle(BYE, str(error))

    def _read(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:
            chunk = self._channel.recv(min(_CHUNK, length - len(content)))
            if not chunk:
                raise ConnectionResetError("the connection is closed")
            self.heard = time.monotonic()
            content += chunk
        return bytes(content)
