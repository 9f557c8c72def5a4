"""The hosts of the tests: their links have the delay and the rate that is set, and both go."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from conftest import wait_for
from namespaces import FILES, inside
from two_hosts import ADDRESSES, hosts, possible

TESTS = Path(__file__).resolve().parent
NAMESPACES = Path("/run/netns")
PORT = 5_000


@pytest.mark.hosts
def test_a_link_has_the_delay_and_the_rate_that_is_set():
    delay, rate, words = 0.02, 1e7, bytes(range(256)) * 4096  # 1 MiB
    with hosts(delay, rate) as two:
        with inside(two.names[1]):
            listener = socket.create_server((ADDRESSES[1], PORT))

        def echo():
            answering, _ = listener.accept()
            while some := answering.recv(1 << 16):
                answering.sendall(some)

        threading.Thread(target=echo, daemon=True).start()
        with inside(two.names[0]), socket.create_connection((ADDRESSES[1], PORT)) as channel:
            start = time.perf_counter()
            channel.sendall(b"x")
            assert channel.recv(1) == b"x"
            assert time.perf_counter() - start >= 2 * delay
            start, back = time.perf_counter(), bytearray()
            threading.Thread(target=channel.sendall, args=(words,)).start()
            while len(back) < len(words):
                back += channel.recv(1 << 16)
            # but for the bucket of 128 KiB
            assert time.perf_counter() - start >= (len(words) - (1 << 17)) * 8 / rate
            assert bytes(back) == words
            assert two.sent_bytes(0) >= len(words)
            two.cut(1)
            with pytest.raises(OSError, match=r"timed out|unreachable"):
                socket.create_connection((ADDRESSES[1], PORT), timeout=1)
        listener.close()


PROGRAM = """
import subprocess, sys, time
from namespaces import FILES, command_inside, processes_inside
from two_hosts import hosts
with hosts() as two:
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
        ("time.sleep(1000)", signal.SIGINT, -signal.SIGINT),
        ("time.sleep(1000)", signal.SIGKILL, -signal.SIGKILL),
        # the switch, which would remove the hosts, is killed as well
        ("subprocess.run(['pkill', '-KILL', '-f', two.names[0] + '='])", None, 0),
    ],
)
def test_hosts_leave_nothing_behind(end, sent, status):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *filter(None, [end])],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    *names, shell, sleep = process.stdout.readline().split()
    if sent:
        os.killpg(process.pid, sent)
    process.communicate(timeout=60)
    assert process.returncode == status
    wait_for(lambda: not any((NAMESPACES / name).exists() for name in names))
    assert not (FILES / names[0]).exists()
    assert not any(is_running(int(each)) for each in (shell, sleep))


@pytest.mark.hosts
def test_hosts_are_not_possible_without_their_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"no hosts can be made: .*'ip'"):
        hosts().__enter__()
    assert not possible()


def is_running(process: int) -> bool:
    """Return whether a process has not ended; one that nobody waited for has."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
