"""Hosts on one machine: their links have the delay and the rate that is set, and measured."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import wait_for

from parity.twins.links.hosts import hosts, possible
from parity.twins.links.measure import measure, serve
from parity.twins.links.namespaces import FILES, inside

ROOT = Path(__file__).resolve().parent.parent
NAMESPACES = Path("/run/netns")
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
def test_a_cut_link_passes_nothing_and_the_others_go_on():
    with hosts(3) as three:
        listeners = []
        for name, address in zip(three.names, three.addresses, strict=True):
            with inside(name):
                listeners.append(socket.create_server((address, PORT)))
        three.cut(1)
        with inside(three.names[0]):
            with pytest.raises(OSError, match=r"timed out|unreachable"):
                socket.create_connection((three.addresses[1], PORT), timeout=1)
            socket.create_connection((three.addresses[2], PORT), timeout=30).close()
        for listener in listeners:
            listener.close()


PROGRAM = """
import subprocess, sys, time
from parity.twins.links.hosts import hosts, possible
from parity.twins.links.namespaces import FILES, command_inside, processes_inside
with hosts(2) as two:
    two.shape(1e8, 0.001)
    (FILES / two.names[0]).mkdir(parents=True)
    command = ["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1000; done"]
    subprocess.Popen(
        command_inside(two.names[1], command), start_new_session=True, stderr=subprocess.DEVNULL
    )
    while len(processes := processes_inside(two.names[1])) < 2:
        time.sleep(0.01)
    print(*two.names, *processes, flush=True)
    if len(sys.argv) > 1:
        exec(sys.argv[1])
"""


@pytest.mark.hosts
@pytest.mark.parametrize(
    ("end", "sent", "status"),
    [
        (None, None, 0),
        ("raise SystemExit(7)", None, 7),
        ("time.sleep(1000)", signal.SIGINT, -signal.SIGINT),
        ("time.sleep(1000)", signal.SIGTERM, -signal.SIGTERM),
        ("time.sleep(1000)", signal.SIGKILL, -signal.SIGKILL),
        # the switch, which would remove the hosts, is killed as well
        ("subprocess.run(['pkill', '-KILL', '-f', two.names[0] + '='])", None, 0),
    ],
)
def test_hosts_leave_nothing_behind(end, sent, status):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *filter(None, [end])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    *names, shell, sleep = process.stdout.readline().split()
    if sent:
        os.killpg(process.pid, sent)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert said.count("Traceback") == (sent == signal.SIGINT)
    wait_for(lambda: not any((NAMESPACES / name).exists() for name in names))
    assert not (FILES / names[0]).exists()
    assert not any(is_running(int(each)) for each in (shell, sleep))
    wait_for(lambda: not any(name.encode() in line for name in names for line in commands()))


# A command that makes the first host, but not the second.
IP = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *10.78.0.2*) exit 1;; esac
exec {ip} "$@"
"""


@pytest.mark.hosts
def test_hosts_that_cannot_all_be_made_leave_none_behind(tmp_path, monkeypatch):
    path, log = tmp_path / "ip", tmp_path / "log"
    path.write_text(IP.format(log=log, ip=shutil.which("ip")))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(OSError, match=r"no hosts can be made: .*10\.78\.0\.2.* status 1"):
        hosts(2).__enter__()
    made = [line.split()[-1] for line in log.read_text().splitlines() if "netns add" in line]
    assert len(made) == 2
    assert not any((NAMESPACES / name).exists() for name in made)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(OSError, match=r"no hosts can be made: .*'ip'"):
        hosts(2).__enter__()
    assert not possible()


def is_running(process: int) -> bool:
    """Return whether a process has not ended; one that nobody waited for has."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def commands() -> list[bytes]:
    """Return the command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return found


def test_a_link_is_measured_between_any_two_programs():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener, 1), daemon=True).start()
        latency, bandwidth = measure("127.0.0.1", listener.getsockname()[1])
    assert latency > 0
    assert bandwidth > 0
