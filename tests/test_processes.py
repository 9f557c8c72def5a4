"""The processes of a training find each other, exchange arrays, and end together."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_for
from ranks_alone import SAYINGS

from parity.base.errors import UsageError
from parity.processes.membership import MEETING, meeting_point, membership, variables
from parity.processes.start import process_group
from parity.spec.strategies import StrategyEntry, StrategySettings, Traits

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tests" / "ranks_alone.py"
ENDPOINTS = ["10.0.0.1:6170", "10.0.0.2:6170"]


def start(mode: str) -> subprocess.Popen:
    """Start three ranks in a mode of tests/ranks_alone.py."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), mode],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(mode: str) -> tuple[int, str, str]:
    """Run three ranks; return status, output and what they print on stderr."""
    started = start(mode)
    output, errors = started.communicate(timeout=100)
    assert not running(started.pid), "a process is left"
    return started.returncode, output, errors


def tf_config(worker: str, kind: str) -> str:
    """Return the variable of TensorFlow's launchers for a single worker."""
    task = {"type": kind, "index": 0}
    return json.dumps({"cluster": {"worker": [worker]}, "task": task})


def running(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_ranks_exchange_arrays():
    status, output, errors = run("exchange")
    assert (status, errors) == (0, "")
    found = ast.literal_eval(output)
    assert found == {
        "gathered": [0.0, 1.0, 2.0],
        "ranks": [0, 1, 2],
        "sent": [0, 1, 2],
        "parts": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "state": [0, 1, 2, 3, 0, 0, 0, 0],
        "whole": [0, 1, 2, 3, 4, 5, 6, 7],
        "distances": {"w": [0.0] * 6, "b": [0.0] * 5 + [0.5]},
        "own": [0, 2],
    }


@pytest.mark.parametrize(
    ("mode", "status", "message"),
    [
        ("killed", 4, r"rank 1 \(.*, process \d+\) is gone: its connection is closed"),
        ("rank 0 killed", 4, r"rank 0 was killed by SIGKILL"),
        ("stopped", 4, r"rank 2 \(.*, process \d+\) has been silent for \d s"),
        (
            "stopped while much is sent",
            4,
            r"rank 2 \(.*, process \d+\) has been silent for \d s",
        ),
        ("refused", 2, r"rank 1 \(.*, process \d+\): the disk is full"),
        ("dead before", 4, r"rank 1 of 3 has not come to 127.0.0.1:\d+ within 4 s"),
        (
            "another seed",
            2,
            r"rank 2 \(.*, process \d+\) has another seed than rank 0: 2 there, 1 here; "
            "allowed: the same on every rank",
        ),
    ],
)
def test_all_end_with_one_line_that_names_the_rank(mode, status, message):
    found, output, errors = run(mode)
    assert (found, output) == (status, "")
    assert re.fullmatch(f"error: {message}\n", errors), errors


@pytest.mark.parametrize("mode", SAYINGS)
def test_a_stranger_keeps_nobody_out(mode):
    status, _, errors = run(mode)
    assert (status, errors) == (0, "")


def test_no_rank_outlives_its_supervisor():
    started = start("stays")
    wait_for(lambda: len(running(started.pid)) == 4)
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=30)
    wait_for(lambda: not running(started.pid))


@pytest.mark.parametrize("framework", ["paddle", "tensorflow"])
def test_a_launchers_variables_make_a_rank(framework):
    given = variables(framework, 1, ENDPOINTS, "10.0.0.1:99")
    found = membership(framework, given)
    assert (found.rank, list(found.endpoints), found.meeting) == (1, ENDPOINTS, "10.0.0.1:99")
    del given[MEETING]
    assert membership(framework, given).meeting == "10.0.0.1:6270"
    assert membership(framework, {}) is None
    assert meeting_point(["host:65500"]) == "host:65400"


@pytest.mark.parametrize(
    ("framework", "changes", "message"),
    [
        ("paddle", {"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID is '2'; allowed: 0 to 1"),
        ("paddle", {"PADDLE_TRAINER_ID": "x"}, "PADDLE_TRAINER_ID is 'x'; allowed: 0 to 1"),
        ("paddle", {"PADDLE_TRAINER_ENDPOINTS": "a:1,b"}, "allowed: host:port for each"),
        ("paddle", {MEETING: "first"}, "PARITY_MEETING is 'first'; allowed: host:port"),
        ("tensorflow", {"TF_CONFIG": "{"}, "TF_CONFIG is '{'; allowed: JSON"),
        ("tensorflow", {"TF_CONFIG": tf_config("a:0", "worker")}, "host:port for each"),
        ("tensorflow", {"TF_CONFIG": tf_config("a:1", "ps")}, "an index from 0 to 0"),
    ],
)
def test_variables_that_cannot_be_used_are_refused(framework, changes, message):
    given = variables(framework, 0, ENDPOINTS, "10.0.0.1:99") | changes
    with pytest.raises(UsageError, match=re.escape(message)):
        membership(framework, given)


def test_replicas_are_shared_evenly(monkeypatch):
    entry = StrategyEntry("several", "", "", Traits(processes=True))
    with (
        pytest.raises(UsageError, match="--replicas is 4, which 3 processes cannot share"),
        process_group("paddle", entry, StrategySettings(processes=3), 4),
    ):
        pass
    for name, value in variables("paddle", 0, ENDPOINTS, "10.0.0.1:99").items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UsageError, match="--processes is 3, but the launcher has started 2"),
        process_group("paddle", entry, StrategySettings(processes=3), None),
    ):
        pass
