"""The catalogue fits the code, and a hunt finds what was planted, and nothing else."""

import ast
import dataclasses
import json
import re

import pytest
from conftest import FOLDERS, FRAMEWORKS, assert_one_line, start
from markupsafe import escape

from parity.base.errors import SideFailed, UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.trace.rungs import CHECKS
from parity.twins.cli.options import FaultOptions
from parity.twins.faults import hunt as hunting
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.faults.fault import DTYPES, KERNELS, Edit, Fault
from parity.twins.faults.finding import (
    CHECK,
    MISMATCH,
    NUMERIC,
    REFUSED,
    REPEAT,
    Finding,
    all_found,
    findings_text,
    findings_values,
)
from parity.twins.faults.hunt import Hunt, Planting, plantings
from parity.twins.faults.listing import fault_text, faults_named
from parity.twins.faults.side_runs import SmallRun
from parity.twins.faults.small_runs import SETTINGS
from parity.twins.launch.edited_source import edited_texts
from parity.twins.launch.processes import ROOT
from parity.twins.spec.frameworks import FRAMEWORKS as REGISTRIES

BY_NAME = {fault.name: fault for fault in reversed(CATALOGUE)}
DEFAULTS = {each.strategies.default for each in REGISTRIES.values()}

# One for each way of being found; all of them are `python -m parity faults`.
SOME = {
    "lstm-gates-f-g": ("tensorflow", MISMATCH),
    "rows-dropped": ("tensorflow", REFUSED),
    "not-a-number": ("paddle", NUMERIC),
    "order-of-sums": ("tensorflow", REPEAT),
    "evaluation-counts-padding": ("paddle", CHECK),
    "saved-an-update-late": ("tensorflow", CHECK),
    "slower-when-not-recording": ("tensorflow", CHECK),
}


def test_the_catalogue_tells_all_of_each_fault():
    parts = {(fault.name, fault.setting, fault.cause) for fault in CATALOGUE}
    assert len(parts) == len(CATALOGUE)
    assert len({(name, cause) for name, _, cause in parts}) == len(BY_NAME)
    assert {fault.check for fault in CATALOGUE} == {"", *CHECKS}
    for fault in CATALOGUE:
        assert fault.setting in SETTINGS
        assert fault.where
        sides = {side for kernels in KERNELS for side in fault.edits_for(kernels)}
        assert sides & FOLDERS.keys() == sides != set()
        assert re.fullmatch(r"[a-z0-9-]+", fault.name)
        # a precision it need not be found in has a reason
        assert (len(fault.dtypes) < 2) == bool(fault.undetectable_reason)


def of_strategy(name: str) -> set[str]:
    """Return the faults that are planted in a strategy."""
    return {each.fault.name for each in plantings(FaultOptions(strategy=(name,)))}


def test_every_strategy_has_faults_of_its_own():
    entries = [
        (side, entry)
        for side in FRAMEWORKS
        for entry in REGISTRIES[side].strategies
        if not entry.environment  # tests/test_strategies_horovod.py plants its own
    ]
    for side, entry in entries:
        planted = plantings(FaultOptions(strategy=(entry.name,), frameworks=(side,)))
        assert planted, (side, entry.name)
        assert {each.strategy for each in planted} == {entry.name}
        assert {each.own_strategy for each in planted} == {
            "" if entry.name in DEFAULTS else entry.name
        }


def kinds(fault: Fault) -> list[tuple[str, str, tuple[Edit, ...]]]:
    """Return (kernels, side, edits) of everything that a fault can be planted in."""
    return [
        (kernels, side, edits)
        for kernels in KERNELS
        for side, edits in fault.edits_for(kernels).items()
    ]


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_each_fault_still_fits_the_code(fault):
    for _, side, edits in kinds(fault):
        texts = edited_texts(edits, ROOT)
        assert texts.keys() == {edit.file for edit in edits}
        others = {folder for name, folder in FOLDERS.items() if name != side}
        assert not {name.split("/")[0] for name in texts} & others, "one side alone"
        for name, text in texts.items():
            before = (ROOT / name).read_text()
            assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))


def test_an_edit_that_no_longer_fits_is_refused():
    for old, count in (("no such line", 0), ("tf", r"\d\d+")):
        with pytest.raises(ValueError, match=f"contains {count} times, not once: '{old}'"):
            edited_texts([Edit("tf_impl/layers.py", old, "x")], ROOT)


@pytest.fixture(scope="module")
def hunter(frameworks, tmp_path_factory):
    return Hunt(FaultOptions(out=tmp_path_factory.mktemp("hunt")), frameworks)


@pytest.mark.parametrize("name", SOME)
def test_a_planted_fault_is_found_in_its_place(hunter, name):
    side, how = SOME[name]
    found = hunter.find(Planting(BY_NAME[name], side, "float64"))
    assert (found.found_by, found.right_place) == (how, True), found.story
    if how == CHECK:
        assert found.rung == BY_NAME[name].check
        assert side in found.blamed, found.story
    else:
        assert found.blamed in ([side], []), found.story
    if how == MISMATCH:
        assert (found.step or 0) < SETTINGS[BY_NAME[name].setting].steps
        assert found.is_confirmed, found.confirmed


def test_a_mistake_in_all_strategies_is_not_laid_to_one(hunter):
    """The default strategy, trained from the same source, departs as well."""
    sources = [*(ROOT / "tf_impl").rglob("*.py"), *(ROOT / "parity").rglob("*.py")]
    before = {path: path.read_bytes() for path in sources}
    edits = {"tensorflow": BY_NAME["lstm-gates-f-g"].edits["tensorflow"]}
    fault = Fault("made-up", "", "none", "mirrored", ("forward/*",), edits)
    found = hunter.find(Planting(fault, "tensorflow", "float64"))
    assert found.found_by == MISMATCH
    assert found.strategies == ["mirrored", "towers"]
    assert not found.right_place
    # the checkout is as it was, and traces of faulty runs are removed
    assert {path: path.read_bytes() for path in sources} == before
    traces = hunter._options.out / "traces"
    assert [path.name for path in traces.iterdir()] == ["correct"]


ANCHOR = "    return tf.gather(table, tokens)"


def fault_of(new: str) -> Planting:
    """Return a fault in TensorFlow's embedding, which has this text for the anchor."""
    edits = {"tensorflow": (Edit("tf_impl/layers.py", ANCHOR, new),)}
    fault = Fault("made-up", "", "none", "stream", ("forward/embedded",), edits)
    return Planting(fault, "tensorflow", "float64")


@pytest.mark.thorough
def test_a_change_that_changes_nothing_is_not_found(hunter):
    found = hunter.find(fault_of(f"    # the same\n{ANCHOR}"))
    assert (found.found, found.right_place, found.story) == (False, False, "")
    assert not all_found([found])
    assert "NOT FOUND" in findings_text([found])
    assert findings_values([found])["all_found"] is False


def test_a_side_that_crashes_is_not_a_find(hunter):
    found = hunter.find(fault_of(f"    raise OSError\n{ANCHOR}"))
    assert not found.found
    assert found.story.startswith("broken: tensorflow ended with status")


def test_nothing_is_planted_where_the_correct_sides_differ(tmp_path, monkeypatch):
    """A hunt in a setting that does not match would find everything."""
    hunter = Hunt(FaultOptions(out=tmp_path), {})
    monkeypatch.setattr(hunter._runs, "record", lambda *run: None)
    verdict = dataclasses.make_dataclass("V", ["matches", "mismatches"])
    place = dataclasses.make_dataclass("M", ["place"])("somewhere")
    monkeypatch.setattr(hunting, "compare_traces", lambda traces: verdict(False, [place]))
    with pytest.raises(SideFailed, match="with nothing planted, first in somewhere"):
        hunter.correct(SmallRun("bahdanau", "float32"))


def test_the_table_counts_what_was_found():
    def finding(fault, **values):
        given = {"side": "paddle", "dtype": "float64", "topic": "t", "cause": "c"}
        return Finding(fault, setting="stream", **given | values)

    here = {"rung": "forward", "tensor": "x", "step": 0, "right_place": True}
    found = [
        finding("a", found_by=MISMATCH, **here),
        finding("b", found_by=MISMATCH, rung="loss", tensor="y", step=1),
        finding("c", found_by=REFUSED, tensor="a message", right_place=True),
        finding("d", dtype="float32", required=False),
        finding("a", kernels="plain", found_by=MISMATCH, **here),
    ]
    text = findings_text(found)
    assert (
        "float64, fast kernels: 3 of 3 found, 2 of 3 at the right place; cause confirmed: 0 of "
        "2, 0 wrongly"
    ) in text
    assert "float64, plain kernels: 1 of 1 found" in text
    assert "float32, fast kernels: 0 of 1 found" in text
    assert "below rounding" in text
    assert all_found(found), "what need not be found in a precision is not missed"
    assert not all_found([*found, finding("e")])


def test_the_table_counts_the_strategies_that_were_named():
    given = {"topic": "t", "cause": "c", "setting": "mirrored", "found_by": MISMATCH}
    named = Finding("a", "paddle", "float64", **given, strategy="layers", strategies=["layers"])
    others = [dataclasses.replace(named, strategies=each) for each in ([], ["layers", "x"])]
    text = findings_text([named, *others])
    assert "3 of 3 found, 0 of 3 at the right place; strategy named: 1 of 3; cause" in text
    assert "paddle layers" in text


def test_a_cause_confirmed_wrongly_is_an_error():
    def finding(confirmed, **values):
        given = {"side": "paddle", "dtype": "float64", "topic": "t", "cause": "c"}
        given |= {"setting": "stream", "found_by": MISMATCH, "confirmed_faults": confirmed}
        return Finding("a", confirmed=["a mistake"], **given | values)

    right, equal, wrong, unknown = map(finding, (["a"], ["a", "b"], ["b"], []))
    assert all_found([right, equal])
    for misled in (wrong, unknown):
        assert not all_found([right, misled])
        text = findings_text([right, misled])
        assert "cause confirmed: 1 of 2, 1 wrongly" in text
        assert "WRONG" in text


# what is planted where


def planned(**options) -> list[tuple[str, str, str, str]]:
    return [
        (each.fault.name, each.side, each.dtype, each.kernels)
        for each in plantings(FaultOptions(**options))
    ]


def test_every_fault_is_planted_in_each_side_precision_and_kind_of_kernel():
    found = plantings(FaultOptions(kernels=KERNELS))
    assert len({each.name for each in found}) == len(found)
    assert {
        (each.fault.name, each.fault.setting, each.side, each.dtype, each.kernels)
        for each in found
    } == {
        (fault.name, fault.setting, side, dtype, kernels)
        for fault in CATALOGUE
        for kernels, side, _ in kinds(fault)
        for dtype in DTYPES
        if SETTINGS[fault.setting].can_train(side, dtype)
    }


def test_parameter_servers_of_paddle_are_left_alone_in_a_precision_that_they_lack():
    every = plantings(FaultOptions(only=("lost-update",)))
    served = {each.dtype for each in every if each.fault.setting == "served workers"}
    assert served == {"float32"}


def test_once_takes_turns_and_leaves_out_what_cannot_be_found():
    found = planned(kernels=KERNELS, once=True, dtype=("float64",))
    names = [name for name, *_ in found]
    assert names == [fault.name for fault in CATALOGUE if "float64" in fault.dtypes]
    assert {(side, kernels) for _, side, _, kernels in found} == {
        (side, kernels) for side in FRAMEWORKS for kernels in KERNELS
    }


def test_faults_are_chosen_by_strategy():
    names = {name for name, *_ in planned(strategy=("layers", "mirrored"))}
    assert names == of_strategy("layers") | of_strategy("mirrored")
    assert planned(strategy=("mirrored",), frameworks=("paddle",)) == []
    both = planned(
        strategy=("mirrored",), only=("gradient-averaged", "beta2"), dtype=("float64",)
    )
    assert both == [("gradient-averaged", "tensorflow", "float64", "fast")]
    assert planned(strategy=("all",)) == planned()
    assert planned(strategy=("paddle=all",)) == planned(frameworks=("paddle",))
    of_paddle = planned(strategy=("paddle=layers",))
    assert of_paddle == planned(strategy=("layers",), frameworks=("paddle",)) != []
    for word, said in (
        ("paddle=mirrored", "allowed for paddle: all, parallel-executor, parallel-do, "),
        ("torch=layers", "framework is 'torch'"),
        ("paddle=", "--strategy is 'paddle='"),
    ):
        with pytest.raises(UsageError, match=said):
            planned(strategy=(word,))


def test_a_fault_may_differ_between_kernels(monkeypatch):
    edit = Edit("tf_impl/layers.py", "a", "b")
    both = {"tensorflow": (edit,), "paddle": (edit,)}
    fault = Fault("f", "", "", "general", (), both, plain={"paddle": (edit, edit)})
    assert fault.edits_for("fast") == both
    assert fault.edits_for("plain") == {"paddle": (edit, edit)}
    monkeypatch.setattr(hunting, "faults_named", lambda names: [fault])
    found = planned(kernels=KERNELS, dtype=("float64",))
    assert [(side, kernels) for _, side, _, kernels in found] == [
        ("paddle", "fast"),
        ("tensorflow", "fast"),
        ("paddle", "plain"),
    ]


# the command


def test_an_unknown_fault_is_told_in_one_line(capsys, tmp_path):
    listed = f"of the {len(BY_NAME)} faults that --list-only prints"
    with pytest.raises(UsageError, match=f"--only is 'xyz'; allowed: one {listed}$"):
        faults_named(["xyz"])
    assert main(parity, ["faults", "--only", "beta-2", "--out", str(tmp_path)]) == 2
    line = assert_one_line(2, capsys.readouterr().err)
    assert line.startswith("error: --only is 'beta-2'; allowed: beta2, ")
    assert line.endswith(f", or another {listed}")
    assert main(parity, ["faults", "--show", "beta-2"]) == 2
    assert "--show is 'beta-2'; " in assert_one_line(2, capsys.readouterr().err)


def test_an_unknown_strategy_is_told_in_one_line(capsys, tmp_path):
    command = ["faults", "--strategy", "layers,pipelines", "--out", str(tmp_path)]
    assert main(parity, command) == 2
    line = assert_one_line(2, capsys.readouterr().err)
    assert line == (
        "error: --strategy is 'pipelines'; allowed: all, parallel-executor, parallel-do, "
        "asynchronous, layers, data-parallel, parameter-server, towers, average-gradients, "
        "mirrored, multi-worker, horovod, parameter-server-sync"
    )
    command[2] = "mirrored"
    assert main(parity, [*command, "--frameworks", "paddle"]) == 2
    line = assert_one_line(2, capsys.readouterr().err)
    assert line.startswith(
        "error: no fault is planted with these --only, --frameworks, --strategy and --kernels"
    )


def test_the_catalogue_and_a_fault_are_shown(capsys):
    assert main(parity, ["faults", "--list-only"]) == 0
    listed = capsys.readouterr().out
    assert all(fault.name in listed for fault in CATALOGUE)
    assert main(parity, ["faults", "--show", "forget-bias"]) == 0
    shown = capsys.readouterr().out
    assert "+        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f + 1)" in shown
    assert all(f"planted in {side}" in shown for side in FRAMEWORKS)
    assert main(parity, ["faults", "--show", "lost-update"]) == 0
    shown = capsys.readouterr().out
    assert all(f"planted in {side} asynchronous" in shown for side in FRAMEWORKS)


def test_every_fault_can_be_shown():
    for name in BY_NAME:
        places = sum(each.name == name for each in CATALOGUE)
        assert fault_text(name).count("found in") == places, name


@pytest.mark.thorough
def test_the_command_writes_what_it_found(tmp_path):
    command = ["-m", "parity", "faults", "--only", "beta2", "--frameworks", "paddle"]
    process = start([*command, "--dtype", "float64", "--out", tmp_path, "--pages"])
    said, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    (found,) = json.loads((tmp_path / "faults.json").read_text())["findings"]
    assert (found["fault"], found["found"], found["right_place"]) == ("beta2", True, True)
    assert (tmp_path / "faults.txt").read_text() == said
    assert said.endswith("1 faults; all found\n")
    page = (tmp_path / "pages" / "beta2-paddle-sentences-fast-float64.html").read_text()
    assert str(escape(BY_NAME["beta2"].cause)) in page
