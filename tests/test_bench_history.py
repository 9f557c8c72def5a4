"""The history of benchmarks: what fell since an earlier commit, and what cannot be compared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.twins.bench.history import compare_with_history, history_lines


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with one commit, and a function that adds another."""
    folder = tmp_path / "checkout"
    folder.mkdir()

    def commit(content):
        (folder / "code.py").write_text(content)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message=a change")
        return git(folder, "rev-parse", "HEAD")

    git(folder, "init", "--quiet")
    commit("1")
    return folder, commit


def git(folder, *words):
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *who, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def measured(median=100.0, low=95.0, high=105.0, **others):
    """Return what a benchmark of two configurations would say, the second never changing."""
    steady = {"median": 50.0, "spread": [49.0, 51.0]}
    return {
        "date": "2026-11-01T10:00:00+00:00",
        "processor": "A",
        "cores": 2,
        "network": "language-model",
        "spec": {"model": {"hidden_size": 200}},
        "steps": 40,
        "rounds": 3,
        "product_rates": {"numpy": 2e11, "tensorflow": 4e11},
        "versions": {"paddle": "2.6.2"},
        "cases": {"paddle-2x1": {"settings": ""}, "tensorflow-2x1": {"settings": ""}},
        "throughput": {
            "paddle-2x1": {"median": median, "spread": [low, high]},
            "tensorflow-2x1": steady,
        },
    } | others


def test_a_figure_that_fell_by_more_than_its_spread_is_told(checkout, tmp_path):
    folder, commit = checkout
    path = tmp_path / "out" / "history.jsonl"
    first = git(folder, "rev-parse", "HEAD")
    found = compare_with_history(measured(), path, "generated", folder)
    assert found == {"commit": first, "since": None}
    assert history_lines(found) == []
    second = commit("2")
    slower = measured(80.0, 78.0, 94.0, product_rates={"numpy": 1.8e11, "tensorflow": 4e11})
    found = compare_with_history(slower, path, "generated", folder)
    assert (found["commit"], found["since"], found["compared"]) == (second, first, 2)
    assert list(found["fell"]) == ["paddle-2x1"]
    assert history_lines(found) == [
        f"paddle-2x1 fell by 20% since {first[:12]} (2026-11-01): 100 (95 to 105) tokens/s, "
        "now 80 (78 to 94)",
        "the machine multiplies large matrices 0.90 times as fast as then",
    ]
    # the same commit again is compared with the one before it, too
    again = compare_with_history(measured(), path, "generated", folder)
    assert (again["since"], again["fell"]) == (first, {})
    assert history_lines(again) == [f"none of 2 figures fell since {first[:12]} (2026-11-01)"]
    assert len(path.read_text().splitlines()) == 3
    commit("3")
    assert compare_with_history(measured(), path, "generated", folder)["since"] == second


@pytest.fixture
def later(checkout, tmp_path):
    """Return a function that compares what is measured one commit after a first benchmark."""
    folder, commit = checkout

    def compare(*speed, text="generated", **others):
        path = tmp_path / "history.jsonl"
        compare_with_history(measured(), path, "generated", folder)
        commit("2")
        return compare_with_history(measured(*speed, **others), path, text, folder)

    return compare


def test_readings_that_overlap_are_no_fall(later):
    assert later(80.0, 70.0, 95.0)["fell"] == {}


@pytest.mark.parametrize(
    "other",
    [
        {"processor": "B"},
        {"cores": 4},
        {"steps": 20},
        {"spec": {"model": {"hidden_size": 650}}},
        {"text": "/text"},
    ],
)
def test_what_was_measured_otherwise_is_not_compared(other, later):
    assert later(10, 9, 11, **other)["since"] is None


OTHER_SETTINGS = {"paddle-2x1": {"settings": "stages=2"}, "tensorflow-2x1": {"settings": ""}}


@pytest.mark.parametrize(
    ("other", "compared"), [({"cases": OTHER_SETTINGS}, 1), ({"rounds": 1}, 0)]
)
def test_one_round_and_other_settings_are_not_compared(other, compared, later):
    found = later(10, 9, 11, **other)
    assert (found["compared"], found["fell"]) == (compared, {})


def test_changes_that_are_not_committed_are_told_apart(checkout, tmp_path):
    folder, _ = checkout
    path = tmp_path / "history.jsonl"
    first = compare_with_history(measured(), path, "generated", folder)["commit"]
    (folder / "code.py").write_text("not committed")
    found = compare_with_history(measured(10, 9, 11), path, "generated", folder)
    assert (found["commit"], found["since"]) == (first + "+", first)
    assert list(found["fell"]) == ["paddle-2x1"]


def test_without_git_nothing_is_compared_and_all_is_kept(tmp_path):
    path = tmp_path / "history.jsonl"
    for _ in range(2):
        found = compare_with_history(measured(), path, "generated", tmp_path)
        assert found == {"commit": None, "since": None}
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "damage", [b'{"commit": "x", "spec"', b"[1]\n", b"\xff\n", b"[" * 9999]
)
def test_a_damaged_line_hides_no_other(damage, checkout, tmp_path):
    folder, commit = checkout
    path = tmp_path / "history.jsonl"
    first = compare_with_history(measured(), path, "generated", folder)["commit"]
    with path.open("ab") as file:
        file.write(damage)
    commit("2")
    slow = measured(10, 9, 11)
    assert compare_with_history(slow, path, "generated", folder)["since"] == first
    last = path.read_bytes().splitlines()[-1]
    assert json.loads(last)["cases"]["paddle-2x1"]["speed"]["median"] == 10


def test_a_history_that_cannot_be_read_or_written_loses_no_figures(checkout, tmp_path, capsys):
    folder, _ = checkout
    for path, said in (
        (tmp_path, f"cannot read {tmp_path}: Is a directory"),
        (Path("/dev/full"), "/dev/full: is a device; allowed: a file"),
        (Path("/proc/version"), "/proc: cannot be written: "),
    ):
        assert compare_with_history(measured(), path, "generated", folder)["since"] is None
        errors = capsys.readouterr().err
        assert errors.startswith(said)
        assert errors.endswith("; this benchmark is not added to the history\n")


@pytest.mark.parametrize(
    ("name", "told"), [("file/history", "file: cannot be written"), ("pipe", "pipe: is a pipe")]
)
def test_a_history_that_cannot_be_written_is_told_before_anything_is_timed(
    tmp_path, name, told
):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "parity", "bench", "--preset", "tiny", "--no-check"]
    command += ["--steps", "12", "--rounds", "1", "--replicas", "1"]
    command += ["--out", str(tmp_path / "bench"), "--history", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}/{told}")
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "bench").iterdir()), "no text was made, and no log"
