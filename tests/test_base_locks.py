"""One process at a time writes to a folder; the kernel lets the next one in."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from parity.base.errors import UsageError
from parity.base.locks import LOCK, only_writer

ROOT = Path(__file__).resolve().parent.parent
# Writes to a folder until its standard input ends. {} is done meanwhile.
HOLD = """
import os, sys
from pathlib import Path
from parity.base.locks import only_writer

with only_writer(Path(sys.argv[1])):
    {}
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Return a function that starts a process that holds a folder."""
    started = []

    def start(folder, doing="pass"):
        command = [sys.executable, "-c", HOLD.format(doing), str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(
            command, cwd=ROOT, text=True, start_new_session=True, **pipes
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_second_process_is_told_who_writes_to_the_folder(holder, tmp_path):
    folder = tmp_path / "out"
    first = holder(folder)
    with pytest.raises(UsageError) as caught, only_writer(folder):
        pass
    assert str(caught.value) == (
        f"{folder}: process {first.pid} on {socket.gethostname()} is writing to it; allowed: "
        "another --out, or to wait until that process ends"
    )
    first.communicate("", timeout=30)
    assert first.returncode == 0
    assert not folder.exists()  # it was made for the lock, and nothing was written to it
    with only_writer(folder):
        (folder / "mine").touch()
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_a_killed_process_holds_nothing_though_its_child_lives(holder, tmp_path):
    first = holder(tmp_path, "if os.fork() == 0: os.close(1); sys.stdin.read(); os._exit(0)")
    first.kill()
    first.wait(30)
    assert (tmp_path / LOCK).read_text().startswith(f"{first.pid} ")
    with only_writer(tmp_path):
        assert re.match(rf"{os.getpid()} ", (tmp_path / LOCK).read_text())
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_leaves_the_context_lets_nobody_in(holder, tmp_path):
    first = holder(tmp_path, "child = os.fork(); child or sys.exit(); os.waitpid(child, 0)")
    with pytest.raises(UsageError, match=f"process {first.pid} on "), only_writer(tmp_path):
        pass
