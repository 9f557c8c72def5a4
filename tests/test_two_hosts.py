"""A training on two hosts has the numbers of one, and ends when the link is cut."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import two_hosts
from conftest import COLLECTIVE, flags, wait_for, wait_for_checkpoint
from two_hosts import command_inside, processes_inside

from parity.twins.processes.launcher_variables import MEETING, Members, variables
from parity.twins.spec.frameworks import FRAMEWORKS

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.hosts, pytest.mark.thorough]


@pytest.fixture
def words(name, text, cache):
    """Return a function that returns the flags of a training."""

    def flags_of(**given) -> list[str]:
        values = {"strategy": COLLECTIVE[name], "data": text, "cache": cache}
        return flags(**values | {"optimizer": "adam"} | given)

    return flags_of


def start(name: str, host: str, rank: int, words: list[str]) -> subprocess.Popen:
    """Start a rank on a host, with the variables of the framework's launcher alone."""
    endpoints = tuple(f"{address}:6170" for address in two_hosts.ADDRESSES)
    given = variables(name, rank, Members(endpoints), "")
    del given[MEETING]
    script = str(ROOT / FRAMEWORKS[name].folder / "train.py")
    return subprocess.Popen(
        command_inside(host, [sys.executable, script, *words]),
        env=os.environ | given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_hosts_have_the_numbers_of_one(name, words, frameworks, tmp_path):
    with two_hosts.hosts() as two:
        started = [
            start(name, host, rank, words(steps=30, out=tmp_path / f"rank{rank}"))
            for rank, host in enumerate(two.names)
        ]
        errors = [each.communicate(timeout=240)[1] for each in started]
        assert [each.returncode for each in started] == [0, 0], errors
    assert not (tmp_path / "rank1").exists()  # rank 0 alone writes
    job = frameworks[name].train(*words(steps=30, processes=2, out=tmp_path / "one"))
    assert job.wait()[0] == 0
    there, here = (tmp_path / each / "losses.csv" for each in ("rank0", "one"))
    assert there.read_bytes() == here.read_bytes()


def test_a_cut_link_ends_both_with_a_line_that_names_the_other(name, words, tmp_path):
    with two_hosts.hosts() as two:
        given = words(epochs=10_000, checkpoint_every=5, out=tmp_path / "run")
        started = [start(name, host, rank, given) for rank, host in enumerate(two.names)]
        wait_for_checkpoint(tmp_path / "run")
        two.cut(0)
        errors = [each.communicate(timeout=60)[1] for each in started]
    for rank, (process, printed) in enumerate(zip(started, errors, strict=True)):
        assert process.returncode == 4, printed
        (line,) = [each for each in printed.splitlines() if each.startswith("error: ")]
        assert re.fullmatch(rf"error: rank {1 - rank} \(.*\) has been silent for \d+ s", line)


def write_hosts(path: Path, second: str, named: bool = False) -> Path:
    """Write the file of two hosts, of which the first is the one that a command runs on."""
    first, other = (f'[[host]]\naddress = "{each}"\n' for each in two_hosts.ADDRESSES)
    inside = command_inside(second, own_name(1) if named else [])
    path.write_text(f'{first}{other}command = "{" ".join(inside)}"\n')
    return path


def own_name(host: int) -> list[str]:
    """Return what to put before a command to give its host a name that the other host finds."""
    return [sys.executable, str(ROOT / "tests" / "named_host.py"), two_hosts.ADDRESSES[host]]


# Asynchronous workers of both frameworks keep to one schedule; Paddle's servers know SGD alone.
PROVEN = {
    "all-reduce": {
        "strategy": ",".join(f"{side}={each}" for side, each in COLLECTIVE.items()),
        "dtype": "float64",
    },
    "servers, synchronous": {
        "strategy": "tensorflow=parameter-server-sync",
        "dtype": "float64",
        "servers": 2,
    },
    "servers, asynchronous": {
        "strategy": "parameter-server",
        "dtype": "float32",
        "servers": 2,
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "schedule": 3,
    },
}


OF_HOROVOD = {"strategy": "tensorflow=horovod", "dtype": "float64"}


@pytest.mark.parametrize(
    "given",
    [
        *(pytest.param(given, id=name) for name, given in PROVEN.items()),
        pytest.param(OF_HOROVOD, id="horovod", marks=pytest.mark.horovod),
    ],
)
def test_one_command_proves_both_sides_on_two_hosts(given, text, tmp_path):
    with two_hosts.hosts() as two:
        first, second = two.names
        before = [two.sent_bytes(each) for each in range(2)]
        words = flags(
            hosts=write_hosts(tmp_path / "hosts.toml", second, named=True),
            **{"replicas": None, "epochs": None, "steps": 6, "data": text} | given,
            cache=tmp_path / "cache",
            out=tmp_path / "out",
            preset="tiny",
            **{"throughput": False, "checks": "none"},
        )
        command = [*own_name(0), sys.executable, "-m", "parity", "run", *words]
        done = subprocess.run(
            command_inside(first, command),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        sent = [two.sent_bytes(each) for each in range(2)]
    assert all(after - already > 100_000 for after, already in zip(sent, before, strict=True))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verdict"] == "match"
    found = {side["strategy"]: side["processes"] for side in report["sides"].values()}
    assert found.pop("parallel-executor", 1) == 1
    assert set(found.values()) == {2}


@pytest.mark.horovod
def test_horovod_refuses_a_host_whose_name_no_other_host_finds(text, tmp_path):
    with two_hosts.hosts() as two:
        first, second = two.names
        words = flags(
            hosts=write_hosts(tmp_path / "hosts.toml", second),
            **{"replicas": None, "epochs": None, "steps": 6, "data": text} | OF_HOROVOD,
            out=tmp_path / "out",
            **{"throughput": False, "checks": "none"},
        )
        command = [sys.executable, str(ROOT / "tests" / "named_host.py"), "localhost"]
        done = subprocess.run(
            command_inside(first, [*command, sys.executable, "-m", "parity", "run", *words]),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 2
    assert "the name of this host, 'localhost', is 127.0.0.1; allowed: an " in done.stderr


def test_a_rank_killed_on_the_other_host_is_started_again(name, words, tmp_path):
    """And every process ends with the command that has started them."""
    script = str(ROOT / FRAMEWORKS[name].folder / "train.py")
    with two_hosts.hosts() as two:
        first, second = two.names
        given = words(
            hosts=write_hosts(tmp_path / "hosts.toml", second),
            **{"max_restarts": 1, "replicas": None, "epochs": 10_000, "checkpoint_every": 5},
            out=tmp_path / "run",
        )
        started = subprocess.Popen(
            command_inside(first, [sys.executable, script, *given]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        saved = tmp_path / "run" / "checkpoints"
        wait_for_checkpoint(tmp_path / "run")
        assert len(processes_inside(second)) == 2  # a rank, and what has started it
        ranks = [
            each
            for each in processes_inside(second)
            if b"train.py" in Path(f"/proc/{each}/cmdline").read_bytes()
        ]
        os.kill(ranks[0], signal.SIGKILL)
        assert any(line.startswith("resumed at step") for line in started.stderr)
        newest = max(saved.glob("step-*"))
        wait_for(lambda: max(saved.glob("step-*")) > newest, seconds=240)
        started.kill()
        started.wait()
        wait_for(lambda: not processes_inside(second))
