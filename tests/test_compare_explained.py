"""What explains the difference of two trainings: planted in real ones, found by its traces."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted_pairs import MISTAKES

from parity import Recorder, Trace
from parity.align.proposal import propose
from parity.compare.choice import WHOLE, chosen
from parity.compare.recorded_pair import compare_pair
from parity.compare.relation import explanations
from parity.report.assertion import compared
from parity.report.terminal import report_text

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record all planted pairs."""
    folder = tmp_path_factory.mktemp("planted")
    script = ROOT / "tests" / "planted_pairs.py"
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", script, framework, folder],
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for framework in ("torch", "paddle", "keras")
    ]
    for each in started:
        _, said = each.communicate()
        assert each.returncode == 0, said
    return folder


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_explained(recorded, name):
    mistake = MISTAKES[name]
    traces = [Trace(recorded / "torch" / name), Trace(recorded / mistake.port / name)]
    mapping = propose(traces)
    mapping = replace(mapping, rows=[replace(row, use=True) for row in mapping.rows])
    parts, _ = chosen(mapping.mapped(traces), WHOLE)
    verdict = compare_pair(parts)
    said = "; ".join(each.sentence for each in verdict.explanations)
    assert verdict.mismatches
    assert bool(said) == bool(mistake.says), said
    for part in mistake.says:
        assert part in said


A = np.random.default_rng(1).normal(size=(6, 8))
MADE = {
    "{b} is 1/3 of {a}": A / 3,
    "{b} is minus {a}": -A,
    "{b} is 1.2346 times {a}": A * 1.23456,
    "{b} is {a} transposed": A.T,
    "{b} is {a} in another shape, in the same order": A.reshape(3, 16),
    "{b} is {a} plus 0.5": A + 0.5,
    "{b} is {a} with columns 2 and 5 exchanged": A[:, [0, 1, 5, 3, 4, 2, 6, 7]],
    "{b} is {a} with its 3 blocks of rows in the order 2, 0, 1": A[[4, 5, 0, 1, 2, 3]],
    "{b} is {a} rounded to float32": A.astype(np.float32).astype(np.float64),
    "{b} is {a} rounded to float16": A.astype(np.float16).astype(np.float64),
    "the two differ in row 4 alone, where {b} is 2 times {a}": np.where(
        np.arange(6)[:, None] == 4, 2 * A, A
    ),
    "": np.random.default_rng(2).normal(size=(6, 8)),
}


@pytest.mark.parametrize("says", MADE)
def test_how_a_tensor_is_made_of_another(says):
    assert list(explanations(MADE[says], A)) == ([says] if says else [])


def test_a_single_number_is_no_multiple_unless_a_simple_one():
    one = np.array(1.37)
    assert list(explanations(4 * one, one)) == ["{b} is 4 times {a}"]
    assert list(explanations(4.001 * one, one)) == []


def test_the_first_lines_say_what_explains_the_difference(tmp_path):
    for side, factor in (("ours", 1), ("theirs", 2)):
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, {"loss/mean": np.float64(1.37), "gradient/w": factor * A})
    values = compared([Trace(tmp_path / "ours"), Trace(tmp_path / "theirs")], "")
    first = report_text(values).split("\n\n")[0]
    assert first.endswith("why: theirs is 2 times ours")
