"""Two trainers, or two `parity run`, in one folder: the second is refused and harms nothing."""

import contextlib
import os
import re
import signal
import socket
import subprocess

import pytest
from conftest import assert_one_line, ended, flags, start, wait_for

from parity.twins.training.checkpoint import load_checkpoint

RUN = (
    *("-m", "parity", "run", "--no-throughput", "--checks=none", "--steps=2", "--replicas=1"),
    *("--dtype=float64", *flags(replicas=None)),
)


@pytest.fixture
def framework(frameworks):
    """Return one framework: locks are of the code that both share."""
    return frameworks["paddle"]


@pytest.fixture
def endless(framework, text, cache, tmp_path):
    """Start a training without an end; return its job once it has saved something."""
    given = {"data": text, "cache": cache, "out": tmp_path / "run", "epochs": 100_000}
    job = framework.train(*flags(**given, checkpoint_every=2))
    wait_for((tmp_path / "run" / "checkpoints" / "latest").exists)
    yield job
    with contextlib.suppress(ProcessLookupError):
        os.kill(job.pid, signal.SIGKILL)


def test_nothing_else_is_written_to_the_folder_of_a_training(
    framework, endless, text, cache, tmp_path
):
    out = tmp_path / "run"
    given = flags(data=text, cache=cache, replicas=None)
    for words, other in (
        ([f"--out={out}", "--overwrite"], "out"),
        ([f"--out={out}", "--resume"], "out"),
        ([f"--out={out}"], "out"),
        (["--evaluate-only", "--resume", f"--out={out}"], "out"),
        ([f"--profile={out}", "--steps=20"], "profile"),
        ([f"--trace={out}", "--steps=2"], "trace"),
    ):
        assert assert_one_line(*framework.train(*given, *words).wait()[::2]) == (
            f"error: {out}: process {endless.pid} on {socket.gethostname()} is writing to it; "
            f"allowed: another --{other}, or to wait until that process ends"
        )
    # beside it, its checkpoints can be evaluated
    beside = ["--evaluate-only", f"--resume={out}", f"--out={tmp_path / 'evaluated'}"]
    ended(framework.train(*flags(data=text, cache=cache, epochs=100_000), *beside))
    assert {path.name for path in (tmp_path / "evaluated").iterdir()} == {"evaluation.json"}
    latest = (out / "checkpoints" / "latest").read_text()
    wait_for(lambda: (out / "checkpoints" / "latest").read_text() != latest)
    os.kill(endless.pid, signal.SIGTERM)
    assert endless.wait()[0] == 143
    assert not (out / ".lock").exists()
    latest = (out / "checkpoints" / "latest").read_text()
    load_checkpoint(out / "checkpoints" / latest.strip())


def test_the_second_run_in_a_folder_is_refused(text, cache, tmp_path):
    command = (*RUN, f"--out={tmp_path}", f"--data={text}", f"--cache={cache}")
    first = start(command, stderr=subprocess.DEVNULL)
    wait_for((tmp_path / ".lock").exists)
    second = start(command)
    _, said = second.communicate(timeout=60)
    line = assert_one_line(second.returncode, said)
    assert re.match(rf"error: {tmp_path}: process {first.pid} on \S+ is writing to it", line)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert not (tmp_path / ".lock").exists()
