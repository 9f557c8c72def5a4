"""Standard output and error that are closed or full: no verdict's status, no traceback."""

import os
import subprocess
import sys

import pytest
from conftest import FOLDERS, FRAMEWORKS, assert_one_line, start
from oracle_side import header, recorded_steps, small_spec, write_trace

from parity.base.errors import OutputLost

LOST = OutputLost.exit_status
TRAINERS = {name: f"{folder}/train.py" for name, folder in FOLDERS.items()}


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Return name -> a command that compares: two traces that match, and two that do not."""
    spec, folder = small_spec(), tmp_path_factory.mktemp("traces")
    steps = recorded_steps(spec, 2)
    other = [dict(tensors) for tensors in steps]
    other[1]["loss/global"] = other[1]["loss/global"] * 2
    first, same, differs = (
        write_trace(folder / name, header(spec, side), recorded)
        for name, side, recorded in (
            ("a", "paddle", steps),
            ("b", "tensorflow", steps),
            ("c", "tensorflow", other),
        )
    )
    compare = "-m", "parity", "compare", first
    return {"match": [*compare, same], "mismatch": [*compare, differs]}


def closed_pipe():
    """Return the writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk():
    return os.open("/dev/full", os.O_WRONLY)


def ended(command, **streams):
    """Return the status of a command, and what it has printed on standard error."""
    process = start(command, **streams)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors or ""


@pytest.mark.parametrize(
    ("verdict", "broken", "said"),
    [
        ("match", closed_pipe, "Broken pipe"),
        ("mismatch", full_disk, "No space left on device"),
    ],
)
def test_a_verdict_that_cannot_be_printed_has_a_status_of_its_own(
    commands, verdict, broken, said
):
    line = assert_one_line(*ended(commands[verdict], stdout=broken()), LOST)
    assert line == f"error: standard output cannot be written: {said}"


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "parity", "--help"),
        ("-m", "parity", "compare", "--help"),
        ("-m", "parity", "faults", "--list-only"),
        ("-m", "data.download", "--help"),
        *((script, "--help") for script in TRAINERS.values()),
        *((script.replace("train", "chat"), "--help") for script in TRAINERS.values()),
    ],
    ids=" ".join,
)
def test_every_entry_point_says_that_its_output_is_lost(words):
    errors = ended(words, stdout=full_disk())
    assert "cannot be written" in assert_one_line(*errors, LOST)


def shell(words, redirection):
    """Return the status and the output of a command whose streams a shell redirects."""
    command = f'"$0" "$@" {redirection}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_output_that_was_closed_from_the_start_is_lost_too(commands):
    status, told = shell(commands["match"], ">&-")
    assert_one_line(status, told, LOST)


@pytest.mark.parametrize(
    ("redirection", "verdict", "status"), [("2>&-", "match", 0), ("2>/dev/full", "mismatch", 1)]
)
def test_standard_error_changes_no_status(commands, redirection, verdict, status):
    """Not even the one line of an error, which would come out among the results."""
    seen, told = shell(commands[verdict], redirection)
    assert seen == status
    assert f"verdict: {verdict}" in told
    assert shell(["-m", "parity", "compare", "none", "none"], redirection) == (2, "")
    assert shell(["-m", "parity", "--help"], f">/dev/full {redirection}") == (LOST, "")


def test_a_pipe_that_is_full_for_a_while_gets_everything(commands):
    """Its other end may have made it one that does not block."""
    code = (
        "import sys, os; from parity.base.standard_streams import *; guard_standard_streams()\n"
        "os.set_blocking(1, False); print('x' * 1_000_000); sys.exit(final_status(1))"
    )
    process = start(["-c", code])
    told, errors = process.communicate(timeout=60)
    assert (process.returncode, errors, len(told)) == (1, "", 1_000_001)


@pytest.mark.parametrize(
    "script",
    [
        TRAINERS["paddle"],
        pytest.param(TRAINERS["tensorflow"], marks=pytest.mark.thorough),
    ],
    ids=FRAMEWORKS,
)
def test_a_trainer_goes_on_where_its_remarks_are_lost(script, text, cache, tmp_path):
    words = [f"--data={text}", f"--cache={cache}", "--steps=2", "--replicas=1"]
    words += ["--hidden-size=5", "--embedding-size=4", "--batch-size=4", "--time=3"]
    status, _ = ended([script, *words, f"--out={tmp_path / 'run'}"], stderr=full_disk())
    assert status == 0
    assert (tmp_path / "run" / "summary.json").exists()
