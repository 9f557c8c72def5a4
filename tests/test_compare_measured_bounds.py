"""Bounds that a training's own runs with moved numbers give."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_line

from parity import Recorder, Trace, assert_match
from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.compare.measured_bounds import FORMAT, measure, read_bounds
from parity.pair.perturbation import VARIABLE, Perturbation, asked_for
from parity.report.terminal import report_text

ROOT = Path(__file__).resolve().parent.parent
TRAINING = """
import sys
import numpy as np
sys.path.insert(0, "{root}")
from parity.watch.recording import Recording
facts = {{"modules": []}}
with Recording("trace", "toy", ["float32"], {{}}, facts) as recording:
    weight = np.linspace({start}, 1, 5, dtype=np.float32)
    draw = recording.perturbation and recording.perturbation.of("float32")
    weight += 0 if draw is None else weight * draw(weight.shape).astype(np.float32)
    recording.add("initial", "w", weight)
    for step in range(2):
        hidden = np.maximum(weight - np.float32(0.25), 0)
        recording.add("forward", "relu", hidden)
        recording.add("gradient", "w", np.ones(1, np.float32) * np.sin(1e8 * weight[1]))
        recording.end_step()
"""


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_number_is_moved_by_one_unit_in_the_last_place(kind):
    numbers = np.random.default_rng(1).normal(size=1000).astype(kind)
    numbers[:3] = 1, 2 - np.finfo(kind).eps, 0
    shares = Perturbation(1).of(f"framework.{kind}")(numbers.shape).astype(kind)
    moved = numbers + numbers * shares
    apart = np.abs(moved[3:] - numbers[3:]) / np.spacing(np.abs(numbers[3:]))
    assert set(apart) == {1.0}
    assert moved[2] == 0
    assert 0.4 < (moved > numbers).mean() < 0.6


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[1]", '{"of": 1}', '{"of": "."}'])
def test_what_a_training_is_not_asked_by_these_commands_is_refused(text, monkeypatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=f"{VARIABLE} is .*; allowed: "):
        asked_for(Path())


def recorded(folder, side, factor):
    with Recorder(folder, framework=side, dtype="float32") as recorder:
        for step in range(2):
            array = np.linspace(0, 1, 5, dtype=np.float32) * np.float32(factor)
            recorder.step(step, {"forward/a": array, "loss/a": np.float32(step + 1)})
    return Trace(folder)


BOUNDS = {
    "format": FORMAT,
    "side": "ours",
    "dtype": "float32",
    "runs": 1,
    "steps": [0],
    "tensors": {},
    "noise": [],
    "kinks": {},
}


def test_a_bound_is_sixteen_times_the_largest_distance(tmp_path, capsys):
    trace = recorded(tmp_path / "ours", "ours", 1)
    runs = [recorded(tmp_path / str(n), "ours", 1 + n * 1e-5) for n in (1, 2)]
    bounds = measure(trace, trace, runs)
    assert bounds.at("forward/a", 1).floor == pytest.approx(32e-5, rel=1e-2)
    assert bounds.at("loss/a", 0).floor == 16 * 2.0**-24  # of a distance that was none
    bounds.write(tmp_path / "bounds.json")
    assert read_bounds(tmp_path / "bounds.json") == bounds
    for factor, status in ((1 + 2e-4, 0), (1 + 4e-4, 1)):
        recorded(tmp_path / "theirs", "theirs", factor)
        words = ["compare", tmp_path / "ours", tmp_path / "theirs"]
        assert main(parity, list(map(str, words))) == 1
        words += ["--bounds", tmp_path / "bounds.json"]
        assert main(parity, list(map(str, words))) == status
        printed = " ".join(capsys.readouterr().out.split())
        assert "Measured: forward at most 0.00032 (1)" in printed
        if status == 0:
            assert_match(*words[1:3], bounds=words[-1])


def test_what_nothing_can_fail_is_counted_as_not_judged(tmp_path):
    pair = [tmp_path / side for side in ("a", "b")]
    for folder, value in zip(pair, (1.0, -1.0), strict=True):
        with Recorder(folder, framework=folder.name, dtype="float64") as recorder:
            for step in range(2):
                hidden = np.full(4, value if step else 1.0)
                tensors = {"forward/a": hidden, "forward/none": hidden[:0], "loss/a": 0.5}
                recorder.step(step, tensors)
    runs = [Trace(pair[0]), Trace(pair[1])]
    measure(runs[0], runs[0], runs[1:]).write(tmp_path / "bounds.json")
    report = assert_match(*pair, bounds=tmp_path / "bounds.json")
    assert report["not_judged"] == ["forward/none", "forward/a"]
    text = " ".join(report_text(report).split())
    assert "verdict: match, with 2 tensors not judged" in text
    assert "as empty or with bounds of 1 or more: 'forward/none', 'forward/a'." in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is no JSON"),
        ("{}", "holds no bounds"),
        ('{"format": 2}', "holds no bounds"),
        (json.dumps(BOUNDS | {"tensors": {"loss/a": [10**400]}}), "holds no bounds"),
        (json.dumps(BOUNDS | {"side": "a\x1b[2J"}), "holds no bounds"),
        (json.dumps(BOUNDS | {"tensors": {"loss/a": [2.5]}}), "holds no bounds"),
        (json.dumps(BOUNDS | {"dtype": "float64"}), "bounds of float64; allowed: of float32"),
        (json.dumps(BOUNDS | {"side": "hers"}), "is of hers; allowed: of ours or theirs"),
    ],
)
def test_a_file_that_holds_no_bounds_is_refused(tmp_path, capsys, content, told):
    recorded(tmp_path / "a", "ours", 1)
    recorded(tmp_path / "b", "theirs", 1)
    (tmp_path / "bounds.json").write_text(content)
    words = ["compare", tmp_path / "a", tmp_path / "b", "--bounds", tmp_path / "bounds.json"]
    status = main(parity, list(map(str, words)))
    assert told in assert_one_line(status, capsys.readouterr().err)


def test_a_watched_training_is_run_again_with_every_number_moved(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script, command = Path("train.py"), [sys.executable, "train.py"]
    script.write_text(TRAINING.format(root=ROOT, start=0))
    words = ["bounds", "trace", "-o", "bounds.json", "--", *command]
    status = main(parity, words)
    assert "no trace.json" in assert_one_line(status, capsys.readouterr().err)
    # refused before minutes of training
    status = main(parity, ["bounds", "trace", "-o", ".", "--", "false"])
    assert ".: is a folder" in assert_one_line(status, capsys.readouterr().err)
    exec(compile(script.read_text(), "train.py", "exec"), {})
    before = Path("trace/steps.jsonl").read_bytes()
    assert main(parity, words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "bounds: bounds.json: 2 tensors, 2 steps"
    assert said[1:] == [
        "zero but for rounding: 'gradient/w'",
        "kinks: forward/relu: 1 element zero by rounding alone",
    ]
    assert Path("trace/steps.jsonl").read_bytes() == before
    values = json.loads(Path("bounds.json").read_text())
    assert all(2.0**-25 < each < 1e-6 for each in values["tensors"]["forward/relu"])
    script.write_text(TRAINING.format(root=ROOT, start=0.5))
    status = main(parity, words)
    assert "another initial/" in assert_one_line(status, capsys.readouterr().err)


@pytest.mark.parametrize("distance", [0.1, 2.0])
def test_the_bound_of_what_is_nothing_but_rounding_allows_any_difference(tmp_path, distance):
    for side, sign in (("ours", 1), ("theirs", -1)):
        with Recorder(tmp_path / side, framework=side, dtype="float32") as recorder:
            recorder.step(0, {"gradient/b": np.full(3, sign * 1e-9, np.float32)})
    noise = {"tensors": {"gradient/b": [distance]}, "noise": ["gradient/b"]}
    (tmp_path / "bounds.json").write_text(json.dumps(BOUNDS | noise))
    folders = tmp_path / "ours", tmp_path / "theirs"
    assert_match(*folders, bounds=tmp_path / "bounds.json")
