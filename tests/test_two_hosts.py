"""A training on two hosts has the numbers of one, and ends when the link is cut."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import two_hosts
from conftest import flags, wait_for

from parity.processes.membership import MEETING, Members, variables
from parity.spec.frameworks import FRAMEWORKS

ROOT = Path(__file__).resolve().parent.parent
STRATEGIES = {"paddle": "data-parallel", "tensorflow": "multi-worker"}
ENDPOINTS = [f"{address}:6170" for address in two_hosts.ADDRESSES]

pytestmark = pytest.mark.hosts


@pytest.fixture(params=STRATEGIES)
def name(request) -> str:
    """Return the name of each framework in turn."""
    return request.param


@pytest.fixture
def words(name, text, cache):
    """Return a function that returns the flags of a training."""

    def flags_of(**given) -> list[str]:
        values = {"strategy": STRATEGIES[name], "data": text, "cache": cache}
        return flags(**values | {"optimizer": "adam"} | given)

    return flags_of


def start(name: str, host: str, rank: int, words: list[str]) -> subprocess.Popen:
    """Start a rank on a host, with the variables of the framework's launcher alone."""
    given = variables(name, rank, Members(tuple(ENDPOINTS)), "")
    del given[MEETING]
    script = str(ROOT / FRAMEWORKS[name].folder / "train.py")
    return subprocess.Popen(
        two_hosts.inside(host, [sys.executable, script, *words]),
        env=os.environ | given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_hosts_have_the_numbers_of_one(name, words, frameworks, tmp_path):
    with two_hosts.hosts() as names:
        started = [
            start(name, host, rank, words(steps=30, out=tmp_path / f"rank{rank}"))
            for rank, host in enumerate(names)
        ]
        errors = [each.communicate(timeout=240)[1] for each in started]
        assert [each.returncode for each in started] == [0, 0], errors
    assert not (tmp_path / "rank1").exists()  # rank 0 alone writes
    job = frameworks[name].train(*words(steps=30, processes=2, out=tmp_path / "one"))
    assert job.wait()[0] == 0
    there, here = (tmp_path / each / "losses.csv" for each in ("rank0", "one"))
    assert there.read_bytes() == here.read_bytes()


def test_a_cut_link_ends_both_with_a_line_that_names_the_other(name, words, tmp_path):
    with two_hosts.hosts() as names:
        given = words(epochs=10_000, checkpoint_every=5, out=tmp_path / "run")
        started = [start(name, host, rank, given) for rank, host in enumerate(names)]
        wait_for(lambda: any((tmp_path / "run" / "checkpoints").glob("step-*")), seconds=240)
        two_hosts.cut(names[0])
        errors = [each.communicate(timeout=60)[1] for each in started]
    for rank, (process, printed) in enumerate(zip(started, errors, strict=True)):
        assert process.returncode == 4, printed
        (line,) = [each for each in printed.splitlines() if each.startswith("error: ")]
        assert re.fullmatch(rf"error: rank {1 - rank} \(.*\) has been silent for \d+ s", line)
