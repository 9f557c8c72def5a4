"""Trainers that a full disk or SIGKILL ends while they record: no whole step is lost."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import FOLDERS, FRAMEWORKS, assert_one_line, flags, start, wait_for

from parity.trace.reader import Trace
from parity.twins.launch.processes import ROOT

STEPS = 40


def words_of(framework, text, cache, trace):
    given = flags(data=text, cache=cache, trace=trace, steps=STEPS)
    return [f"{FOLDERS[framework]}/train.py", *given]


def ended_by_limit(framework, words):
    """Return the whole steps of a trainer whose files may have 40 KB, which cuts a line."""
    # Python ignores the signal, so that a write fails as it does on a full disk
    command = ["bash", "-c", 'ulimit -f 40; exec "$0" "$@"', sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    line = assert_one_line(done.returncode, done.stderr)
    assert "steps.jsonl: cannot be written: File too large; the trace holds the steps" in line


def ended_by_a_kill(framework, words):
    folder = next(word for word in words if word.startswith("--trace=")).partition("=")[2]
    process = start(words, start_new_session=True)
    index = ROOT / folder / "steps.jsonl"
    wait_for(lambda: index.exists() and index.read_bytes().count(b"\n") >= 3)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("framework", "end"), zip(FRAMEWORKS, (ended_by_limit, ended_by_a_kill), strict=True)
)
def test_the_whole_steps_of_a_trace_are_compared(
    run_both, text, cache, tmp_path, framework, end
):
    """With the other side's trace, which is whole; both sides write by the same code."""
    whole = run_both(data=text, steps=STEPS, dtype=None)
    (other,) = {*FRAMEWORKS} - {framework}
    folder = tmp_path / framework
    end(framework, words_of(framework, text, cache, folder))
    steps = len(Trace(folder).index())
    assert 3 <= steps < STEPS
    compared = start(["-m", "parity", "compare", folder, whole[other].folder])
    printed, errors = compared.communicate(timeout=300)
    assert (compared.returncode, errors) == (0, ""), printed
    cut = f"{framework}-2 cut after step {steps - 1} ({steps} of {STEPS} steps)"
    said = " ".join(printed.split())
    assert "verdict: match, with " in said
    assert said.endswith(cut)
