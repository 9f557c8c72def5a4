"""The catalogue fits the code, and the hunt finds what is planted and nothing else."""

import ast
import dataclasses
import html
import json
import re

import pytest
from conftest import FRAMEWORKS, assert_one_line, start

from parity.base.errors import SideFailed, UsageError
from parity.cli.options import FaultOptions
from parity.faults import hunt as hunting
from parity.faults.catalogue import CATALOGUE
from parity.faults.fault import Edit, Fault, plant
from parity.faults.hunt import (
    MISMATCH,
    NUMERIC,
    REFUSED,
    REPEAT,
    Finding,
    Hunt,
    chosen,
    findings_text,
    findings_values,
    passed,
)
from parity.faults.settings import SETTINGS
from parity.launch.processes import FOLDERS, ROOT

BY_NAME = {fault.name: fault for fault in CATALOGUE}

# The rows of what the two frameworks decide differently, each with a fault at least.
TOPICS = {
    "Loss scale over replicas",
    "Splitting a batch",
    "Feeds",
    "Fetches",
    "Order of all-reduce",
    "Where clipping happens",
    "Global norm with sparse gradients",
    "Non-finite norm",
    "Adam ε",
    "Sparse Adam",
    "LSTM gates",
    "Two biases",
    "GRU",
    "Beyond a row's length",
    "Mean cross entropy",
    "padding_idx",
    "Dropout",
    "Initial values",
    "Optimiser state",
    "AUTO_REUSE",
    "Reported loss",
}

# A few that are found in different ways; all of them are `python -m parity faults`.
SOME = {
    "lstm-gates-f-g": ("tensorflow", MISMATCH),
    "one-gradient-not-reduced": ("paddle", MISMATCH),
    "remainder-last": ("paddle", MISMATCH),
    "attention-not-masked-fed": ("paddle", MISMATCH),
    "rate-on-first-replica": ("paddle", MISMATCH),
    "rows-dropped": ("tensorflow", REFUSED),
    "not-a-number": ("paddle", NUMERIC),
    "order-of-sums": ("tensorflow", REPEAT),
    "no-length-penalty": ("tensorflow", MISMATCH),
}


def test_the_catalogue_covers_every_row():
    assert len(CATALOGUE) >= 60
    assert len(BY_NAME) == len(CATALOGUE)
    assert {fault.topic for fault in CATALOGUE} >= TOPICS
    for fault in CATALOGUE:
        assert fault.setting in SETTINGS
        assert fault.where
        assert fault.edits.keys() <= FOLDERS.keys()
        assert fault.edits
        assert re.fullmatch(r"[a-z0-9-]+", fault.name)
        # a precision it need not be found in has a reason
        assert (len(fault.dtypes) < 2) == bool(fault.small)


@pytest.mark.parametrize("kernels", ["fast", "plain"])
@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_each_fault_still_fits_the_code(fault, kernels, tmp_path):
    for side, edits in fault.edits_for(kernels).items():
        diff = plant(fault, side, tmp_path / side, kernels)
        changed = {edit.file for edit in edits}
        assert set(re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)) == changed
        others = {folder for name, folder in FOLDERS.items() if name != side}
        assert not {name.split("/")[0] for name in changed} & others, "one side alone"
        for name in changed:
            ast.parse((tmp_path / side / name).read_text())


def test_an_edit_that_no_longer_fits_is_told():
    for old in ("no such line", "tf"):
        with pytest.raises(ValueError, match="times, not once"):
            Edit("tf_impl/layers.py", old, "x").apply(ROOT)


@pytest.fixture(scope="module")
def hunter(frameworks, tmp_path_factory):
    return Hunt(FaultOptions(out=tmp_path_factory.mktemp("hunt")), frameworks)


@pytest.mark.parametrize("name", SOME)
def test_a_planted_fault_is_found_in_its_place(hunter, name):
    side, how = SOME[name]
    found = hunter.find(BY_NAME[name], side, "float64")
    assert (found.how, found.right, found.blamed or [side]) == (how, True, [side]), found.story
    if how == MISMATCH:
        assert (found.step or 0) < 5
        assert name in found.likely, "the catalogue knows its own"


def test_a_change_that_changes_nothing_is_not_found(hunter):
    old = "    return tf.tanh(product(tf.concat([context"
    harmless = Fault(
        "harmless",
        "nothing is wrong",
        "none",
        "general",
        ("forward/attention/output",),
        {"tensorflow": (Edit("tf_impl/attention.py", old, f"    # the same\n{old}"),)},
    )
    found = hunter.find(harmless, "tensorflow", "float64")
    assert (found.caught, found.right, found.story) == (False, False, "")
    assert not passed([found])
    assert "NOT FOUND" in findings_text([found])
    assert findings_values([found])["all_found"] is False


def test_a_side_that_crashes_is_not_a_find(hunter):
    old = "    return tf.tanh(product(tf.concat([context"
    broken = Fault(
        "broken",
        "it does not run",
        "none",
        "general",
        ("*",),
        {"tensorflow": (Edit("tf_impl/attention.py", old, f"    raise OSError\n{old}"),)},
    )
    found = hunter.find(broken, "tensorflow", "float64")
    assert not found.caught
    assert found.story.startswith("broken: tensorflow ended with status")


def test_nothing_is_planted_where_the_sound_sides_differ(hunter, monkeypatch):
    """A hunt in a setting that does not match would find everything."""
    verdict = dataclasses.make_dataclass("V", ["matches", "mismatches"])
    place = dataclasses.make_dataclass("M", ["place"])("somewhere")
    monkeypatch.setattr(hunting, "climb", lambda traces: verdict(False, [place]))
    with pytest.raises(SideFailed, match="with nothing planted, first in somewhere"):
        hunter.sound("bahdanau", "float32")


def test_the_table_counts_what_was_found():
    def finding(fault, **values):
        given = {"side": "paddle", "dtype": "float64", "topic": "t", "cause": "c"}
        return Finding(fault, setting="stream", **given | values)

    found = [
        finding(
            "a", how=MISMATCH, rung="forward", tensor="x", step=0, right=True, likely=["a"]
        ),
        finding("b", how=MISMATCH, rung="loss", tensor="y", step=1, right=False),
        finding("c", how=REFUSED, tensor="a message", right=True),
        finding("d", dtype="float32", owed=False),
    ]
    text = findings_text(found)
    assert "float64: 3 of 3 found, 2 of 3 at the right place" in text
    assert "among the likely causes: 1 of 2 mismatches" in text
    assert "float32: 0 of 1 found" in text
    assert "below rounding" in text
    assert passed(found), "what need not be found in a precision is not missed"
    assert not passed([*found, finding("e")])


def test_an_unknown_fault_is_told_in_one_line():
    with pytest.raises(UsageError, match="--only is 'nothing'; allowed: targets-are-tokens, "):
        chosen(["nothing"])
    process = start(["-m", "parity", "faults", "--only", "nothing"])
    _, errors = process.communicate()
    assert "--only is 'nothing'" in assert_one_line(process.returncode, errors)


def test_the_catalogue_and_a_fault_are_shown():
    listed = start(["-m", "parity", "faults", "--list-only"]).communicate()[0]
    assert all(fault.name in listed for fault in CATALOGUE)
    shown = start(["-m", "parity", "faults", "--show", "forget-bias"]).communicate()[0]
    assert "+        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f + 1)" in shown
    assert all(f"planted in {side}:" in shown for side in FRAMEWORKS)


def test_the_command_writes_what_it_found(tmp_path):
    command = ["-m", "parity", "faults", "--only", "beta2", "--sides", "paddle"]
    process = start([*command, "--dtype", "float64", "--out", tmp_path, "--pages"])
    said, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    (found,) = json.loads((tmp_path / "faults.json").read_text())["findings"]
    assert (found["fault"], found["caught"], found["right"]) == ("beta2", True, True)
    assert (tmp_path / "faults.txt").read_text() == said
    assert said.endswith("1 faults; all found\n")
    page = (tmp_path / "pages" / "beta2-paddle-float64.html").read_text()
    assert html.escape(BY_NAME["beta2"].cause) in page
    assert not list((tmp_path / "copies" / "float64").iterdir())
