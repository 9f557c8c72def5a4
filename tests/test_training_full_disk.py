"""A full disk ends a training in one line, and the newest checkpoint stays."""

import resource
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import FOLDERS, FRAMEWORKS, assert_one_line, flags, write_text

from parity.twins.launch.processes import ROOT
from parity.twins.training.checkpoint import newest_checkpoint

EVENTS = 2000  # bytes; a checkpoint of the tiny network has 9,000
CHECKPOINT = 6000


def limited(size):
    """Return a function that makes every file end at a size, as a full disk would."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a text of 200 steps an epoch, after which a checkpoint is due."""
    return write_text(tmp_path_factory.mktemp("text") / "data", 7 * 5 * 200)


@pytest.fixture(scope="module")
def saved(frameworks, text, cache, tmp_path_factory):
    """Train three steps in each framework; return the folders of the runs."""
    out = {name: tmp_path_factory.mktemp("saved") / name for name in FRAMEWORKS}
    jobs = [
        frameworks[name].train(*flags(data=text, cache=cache, out=out[name], steps=3))
        for name in FRAMEWORKS
    ]
    assert [job.wait()[0] for job in jobs] == [0, 0]
    return out


@pytest.mark.parametrize(
    "framework", ["paddle", pytest.param("tensorflow", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize(
    ("size", "steps", "named"),
    [(EVENTS, 400, "events"), (CHECKPOINT, 4, "checkpoints/step-00000004.safetensors")],
)
def test_no_room_is_one_line(saved, framework, text, cache, tmp_path, size, steps, named):
    out = tmp_path / "run"
    shutil.copytree(saved[framework], out)
    given = {"data": text, "cache": cache, "out": out, "resume": True, "epochs": 100_000}
    command = [sys.executable, ROOT / FOLDERS[framework] / "train.py"]
    ended = subprocess.run(
        [*map(str, command), *flags(**given, steps=steps)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        preexec_fn=limited(size),
        timeout=300,
    )
    assert ended.stdout == ""
    line = assert_one_line(ended.returncode, ended.stderr)
    assert line == f"error: {out / named}: cannot be written: File too large"
    notes = []
    assert newest_checkpoint(out / "checkpoints", notes).step == 3
    assert notes == []
    assert not list(out.rglob(".*"))
    # besides: how many replicas, from which checkpoint, and how far it has come
    assert len(ended.stderr.splitlines()) <= 4, ended.stderr
