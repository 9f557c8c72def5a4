"""Who comes to rank 0 proves that it knows the run's secret before a word about it is said."""

import os
import queue
import socket
import struct
from threading import Thread

import numpy as np
import pytest

from parity.base.errors import RankLost, UsageError
from parity.twins.processes.connection import HELLO, Connection
from parity.twins.processes.handshake import Reception, run_secret, visit
from parity.twins.processes.launcher_variables import free_ports

SECRET = b"of this run"
WORDS = {"rank": 1, "members": ["rank 0", "rank 1"], "name": "rank 1", "facts": {"seed": "1"}}


@pytest.fixture
def meeting() -> str:
    """Return where rank 0 listens."""
    return f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"


@pytest.fixture
def reception(meeting):
    """Return a reception, whose notes stand in its attribute `lines`."""
    lines: list[str] = []
    made = Reception(meeting, SECRET, 30.0, lines.append)
    made.lines = lines
    yield made
    made.close()


def connect(meeting: str) -> socket.socket:
    """Connect to rank 0."""
    host, port = meeting.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


def come(meeting: str, secret: bytes = SECRET) -> queue.Queue:
    """Come to rank 0 as a rank does, in a thread; return where its connection is put."""
    found: queue.Queue = queue.Queue()

    def greet() -> None:
        try:
            channel = visit(meeting, secret, 10.0)
            Connection(channel).send_json(HELLO, WORDS)
            found.put(channel)
        except (UsageError, RankLost) as error:
            found.put(error)

    Thread(target=greet, daemon=True).start()
    return found


def test_a_rank_that_knows_the_secret_says_what_it_is(meeting, reception):
    found = come(meeting)
    _, hello = reception.next()
    assert hello == WORDS
    assert reception.lines == []
    found.get(timeout=10)


def test_a_rank_with_another_secret_is_refused_and_the_others_come(meeting, reception):
    refused = come(meeting, b"of another")
    right = None

    def later() -> None:
        nonlocal right
        refused.put(refused.get(timeout=10))
        right = come(meeting)

    Thread(target=later, daemon=True).start()
    assert reception.next()[1] == WORDS
    assert isinstance(refused.get(timeout=10), UsageError)
    (line,) = reception.lines
    assert "does not know the secret of this run" in line


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0" * 64,
        os.urandom(500),
        b"GET / HTTP/1.1\r\n\r\n".ljust(64),
        struct.pack(">cQ", HELLO, 1 << 60).ljust(64),
    ],
    ids=["nothing", "zeros", "noise", "HTTP", "a greeting"],
)
def test_a_stranger_hears_nothing_but_a_number(meeting, reception, said):
    stranger = connect(meeting)
    stranger.sendall(said)
    stranger.shutdown(socket.SHUT_WR)
    come(meeting)
    assert reception.next()[1] == WORDS
    heard = b""
    try:
        while chunk := stranger.recv(1 << 16):
            heard += chunk
    except ConnectionResetError:  # it has said more than is read
        pass
    assert len(heard) in (32, 64)  # the number, and zeros for a wrong proof
    assert not any(heard[32:])
    assert all(line.isprintable() for line in reception.lines)


def test_whoever_knows_the_secret_must_still_greet(meeting, reception):
    channel = queue.Queue()
    Thread(target=lambda: channel.put(visit(meeting, SECRET, 10.0)), daemon=True).start()

    def speak() -> None:
        made = Connection(channel.get(timeout=10))
        made.send_json(HELLO, WORDS | {"rank": 0})
        come(meeting)

    Thread(target=speak, daemon=True).start()
    assert reception.next()[1] == WORDS
    assert "has another form" in reception.lines[0]


def test_the_time_is_up_whoever_else_comes(meeting):
    reception = Reception(meeting, SECRET, 0.5, lambda line: None)
    strangers = [connect(meeting) for _ in range(100)]
    assert reception.next() is None
    reception.close()
    for each in strangers:
        each.close()


def test_a_rank_that_has_come_and_goes_is_noticed(meeting, reception):
    found = come(meeting)
    channel, _ = reception.next()
    reception.watch(1, channel)
    found.get(timeout=10).close()
    assert reception.next() == 1
    channel.close()


def test_whoever_only_claims_to_be_rank_0_is_told_nothing(meeting):
    host, port = meeting.rsplit(":", 1)
    with socket.create_server((host, int(port))) as listener:
        found = come(meeting)
        channel, _ = listener.accept()
        channel.sendall(os.urandom(32))
        heard = channel.recv(1 << 16)
        channel.sendall(heard[32:])  # its own proof, sent back
        assert len(heard) == 64
        assert channel.recv(1 << 16) == b""
    error = found.get(timeout=10)
    assert isinstance(error, UsageError)
    assert "has another secret than this rank" in str(error)


@pytest.mark.parametrize("content", [None, b"", b"short", b"x" * 5000, "/dev/zero"])
def test_a_file_that_holds_no_secret_is_refused(tmp_path, content):
    path = tmp_path / "secret"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path = content
    with pytest.raises(UsageError, match=r"PARITY_SECRET_FILE is .*(cannot be read|allowed)"):
        run_secret({"PARITY_SECRET_FILE": str(path)})


def test_a_secret_is_that_of_the_launcher_or_of_a_file(tmp_path):
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    given = {"PARITY_SECRET_FILE": str(tmp_path / "secret")}
    assert run_secret(given) == b"0123456789abcdef"
    assert run_secret(given | {"PARITY_SECRET": "drawn"}) == b"drawn"
    assert run_secret({}) == b""


def message(kind: bytes, content: bytes) -> bytes:
    """Return a message as it is sent."""
    return struct.pack(">cQ", kind, len(content)) + content


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (message(b"T", b"no archive"), "its tensors are no NumPy archive"),
        (message(b"T", b"PK\5\6" + bytes(10)), "its tensors are no NumPy archive"),
        (message(b"F", b"[]"), "the content of its message b'F' has another form"),
        (message(b"F", b"["), "the content of its message b'F' is no JSON"),
        (
            message(b"F", b'{"message": "m", "status": 0, "own": true}'),
            "the content of its message b'F' has another form",
        ),
        (message(b"Z", b"1"), "it sends b'Z' of 1 bytes, which is no message"),
        (struct.pack(">cQ", b"F", 1 << 60), "it announces b'F' of 1,152,921,504,606,846,976"),
    ],
)
def test_what_is_no_message_closes_the_connection(sent, reason):
    here, there = connected()
    heard: queue.Queue = queue.Queue()
    here.listen(lambda kind, values: heard.put((kind, values)))
    there.sendall(sent)
    kind, values = heard.get(timeout=10)
    assert kind == b"Q"
    assert values.startswith(reason)
    assert there.recv(1) == b""


def connected() -> tuple[Connection, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = connect(f"127.0.0.1:{listener.getsockname()[1]}")
        return Connection(listener.accept()[0]), there


def test_arrays_pass_whole():
    here, there = connected()
    here.listen(lambda kind, values: None)
    sent = {"a": np.arange(3), "file": np.array(np.nan), "word": np.array("end")}
    Connection(there).send_tensors(sent)
    for name, array in here.tensors().items():
        np.testing.assert_array_equal(array, sent[name])
    there.close()
