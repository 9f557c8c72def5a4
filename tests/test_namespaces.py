"""The hosts of the tests leave nothing behind, however a test ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import wait_for
from namespaces import FILES
from two_hosts import hosts, possible

TESTS = Path(__file__).resolve().parent
NAMESPACES = Path("/run/netns")

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
