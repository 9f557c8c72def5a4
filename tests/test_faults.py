"""The catalogue fits the code, and a hunt finds what was planted, and nothing else."""

import ast
import dataclasses
import io
import itertools
import json
import re
import tokenize

import pytest
from conftest import FRAMEWORKS, assert_one_line, start
from markupsafe import escape

from parity.base.errors import SideFailed, UsageError
from parity.cli.command_line import main
from parity.cli.main import parity
from parity.trace.rungs import CHECKS
from parity.twins.cli.options import FaultOptions
from parity.twins.faults import hunt as hunting
from parity.twins.faults import hunt_record as last_hunt
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
    save_signatures,
)
from parity.twins.faults.hunt import Hunt, Planting, plantings
from parity.twins.faults.hunt_record import digest, must_hunt, record_hunt, sources
from parity.twins.faults.listing import faults_named
from parity.twins.faults.side_runs import SmallRun
from parity.twins.faults.small_runs import SETTINGS
from parity.twins.launch.edited_source import edited_texts
from parity.twins.launch.processes import FOLDERS, ROOT
from parity.twins.spec.frameworks import FRAMEWORKS as REGISTRIES

BY_NAME = {fault.name: fault for fault in CATALOGUE}
DEFAULTS = {each.strategies.default for each in REGISTRIES.values()}

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
    "evaluation-counts-padding": ("paddle", CHECK),
    "search-ends-with-a-full-pool": ("paddle", CHECK),
    "saved-an-update-late": ("tensorflow", CHECK),
    "moments-doubled-in-the-file": ("paddle", CHECK),
    "slower-when-not-recording": ("tensorflow", CHECK),
    "speed-counts-padding": ("paddle", CHECK),
    "reciprocal-by-estimate": ("paddle", REPEAT),
    "micro-batch-means": ("paddle", MISMATCH),
    "sent-before-dropout": ("tensorflow", MISMATCH),
    "mirrored-not-reduced": ("tensorflow", MISMATCH),
    "mirrored-first-copy-alone": ("tensorflow", MISMATCH),
    "tokens-for-equal": ("tensorflow", MISMATCH),
    "block-means-averaged": ("paddle", MISMATCH),
    "lost-update": ("paddle", MISMATCH),
    "torn-read": ("tensorflow", MISMATCH),
    "process-sum-without-one": ("paddle", MISMATCH),
    "server-clips-alone": ("tensorflow", MISMATCH),
}

# strategy -> the fewest faults that it has
STRATEGIES = {
    "layers": 20,
    "mirrored": 10,
    "average-gradients": 10,
    "parallel-do": 5,
    "asynchronous": 10,
    "data-parallel": 16,
    "multi-worker": 14,
    "parameter-server-sync": 4,
    "parameter-server": 7,
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
        assert (len(fault.dtypes) < 2) == bool(fault.undetectable_reason)


def test_every_check_of_whole_runs_has_faults_of_its_own():
    of_checks = [fault.check for fault in CATALOGUE if fault.check]
    assert len(of_checks) >= 25
    assert {fault.check for fault in CATALOGUE} == {"", *CHECKS}


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
    assert {entry.name for _, entry in entries} == {*STRATEGIES, *DEFAULTS}
    for side, entry in entries:
        planted = plantings(FaultOptions(strategy=(entry.name,), sides=(side,)))
        assert planted, (side, entry.name)
        assert {each.strategy for each in planted} == {entry.name}
        assert {each.own_strategy for each in planted} == {
            "" if entry.name in DEFAULTS else entry.name
        }
    for name, least in STRATEGIES.items():
        assert len(of_strategy(name)) >= least, name
    assert len(set().union(*map(of_strategy, STRATEGIES))) >= 40


def kinds(fault: Fault) -> list[tuple[str, str, tuple[Edit, ...]]]:
    """Return (kernels, side, edits) of everything that a fault can be planted in."""
    return [
        (kernels, side, edits)
        for kernels in KERNELS
        for side, edits in fault.edits_for(kernels).items()
    ]


def code_of(text: str) -> str:
    """Return what Python sees of a source file: no comments, and no docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if docstring(node) is not None:
            node.body[0].value.value = ""
    return ast.dump(tree)


def docstring(node: ast.AST) -> ast.Expr | None:
    first = (
        next(iter(body), None)
        if isinstance(body := getattr(node, "body", None), list)
        else None
    )
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first if isinstance(first.value.value, str) else None
    return None


def prose_of(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every comment and docstring of a source file."""
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            (line, first), (_, last) = token.start, token.end
            found.append((starts[line - 1] + first, starts[line - 1] + last))
    for node in ast.walk(ast.parse(text)):
        if expression := docstring(node):
            found.append((starts[expression.lineno - 1], starts[expression.end_lineno]))
    return found


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_each_fault_still_fits_the_code(fault):
    for _, side, edits in kinds(fault):
        texts = edited_texts(edits, ROOT)
        assert texts.keys() == {edit.file for edit in edits}
        others = {folder for name, folder in FOLDERS.items() if name != side}
        assert not {name.split("/")[0] for name in texts} & others, "one side alone"
        for name, text in texts.items():
            assert code_of(text) != code_of((ROOT / name).read_text()), "nothing is changed"


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_each_fault_is_anchored_on_code_alone(fault):
    """Rewording a comment must not break a fault."""
    for _, _, edits in kinds(fault):
        for edit in edits:
            text = (ROOT / edit.file).read_text()
            if edit.old not in text:
                continue  # an edit of what an earlier one has put there
            start = text.index(edit.old)
            end = start + len(edit.old)
            prose = [text[a:b] for a, b in prose_of(text) if a < end and start < b]
            assert prose == [], edit.old


def test_comments_and_docstrings_are_told_from_code():
    text = '''"""Of the module."""
x = "a # b"  # of x
def f():
    """Of f,
    on two lines."""
    return """no docstring"""
'''
    prose = [text[a:b].strip() for a, b in prose_of(text)]
    assert prose == ["# of x", '"""Of the module."""', '"""Of f,\n    on two lines."""']
    assert code_of(text) == code_of(text.replace("Of", "About").replace("# of x", "# x"))
    assert code_of(text) != code_of(text.replace("a # b", "a # c"))


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
        assert name in found.likely, "the catalogue knows its own"
        assert found.is_confirmed == BY_NAME[name].is_confirmable, found.confirmed
        assert not found.is_misled
    strategy = SETTINGS[BY_NAME[name].setting].strategy(side)
    if strategy not in DEFAULTS:
        assert found.strategies == [found.strategy] == [strategy]
        assert f"{side}-{SETTINGS[BY_NAME[name].setting].replicas} {strategy}" in found.story


def test_a_mistake_in_all_strategies_is_not_laid_to_one(hunter):
    """The default strategy, trained from the same source, departs as well."""
    edits = {"tensorflow": BY_NAME["lstm-gates-f-g"].edits["tensorflow"]}
    fault = Fault("made-up", "", "none", "mirrored", ("forward/*",), edits)
    found = hunter.find(Planting(fault, "tensorflow", "float64"))
    assert found.found_by == MISMATCH
    assert found.strategies == ["mirrored", "towers"]
    assert not found.right_place


ANCHOR = "    return tf.tanh(product(tf.concat([context"


def fault_of(new: str) -> Planting:
    """Return a fault in TensorFlow's layer of attention, which has this text for the anchor."""
    edits = {"tensorflow": (Edit("tf_impl/attention.py", ANCHOR, new),)}
    fault = Fault("made-up", "", "none", "general", ("forward/attention/output",), edits)
    return Planting(fault, "tensorflow", "float64")


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


def test_traces_of_faulty_runs_are_removed_and_the_checkout_is_as_it_was(hunter):
    before = {path: path.read_bytes() for path in sources()}
    hunter.find(fault_of(f"    context = context * 2\n{ANCHOR}"))
    assert {path: path.read_bytes() for path in sources()} == before
    traces = hunter._options.out / "traces"
    assert [path.name for path in traces.iterdir()] == ["correct"]


def test_nothing_is_planted_where_the_correct_sides_differ(hunter, monkeypatch):
    """A hunt in a setting that does not match would find everything."""
    verdict = dataclasses.make_dataclass("V", ["matches", "mismatches"])
    place = dataclasses.make_dataclass("M", ["place"])("somewhere")
    monkeypatch.setattr(hunting, "compare_traces", lambda traces: verdict(False, [place]))
    with pytest.raises(SideFailed, match="with nothing planted, first in somewhere"):
        hunter.correct(SmallRun("bahdanau", "float32"))


def test_the_table_counts_what_was_found():
    def finding(fault, **values):
        given = {"side": "paddle", "dtype": "float64", "topic": "t", "cause": "c"}
        return Finding(fault, setting="stream", **given | values)

    here = {"rung": "forward", "tensor": "x", "step": 0, "right_place": True, "likely": ["a"]}
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
        "the 2 that the oracle can make, 0 wrongly; of the other 2, 1 among the first 3 likely "
        "causes"
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


def test_signatures_of_faults_that_were_not_planted_are_kept(tmp_path):
    def finding(fault, **signature):
        given = {"topic": "t", "cause": "c", "setting": "mirrored", "found_by": MISMATCH}
        given |= {"right_place": True, "signature": signature}
        return Finding(fault, "tensorflow", "float64", **given)

    path = tmp_path / "signatures.json"
    later, earlier = CATALOGUE[-1].name, CATALOGUE[0].name
    assert save_signatures([finding(later, tensor="a"), finding("gone", tensor="a")], path) == 1
    of_strategy = dataclasses.replace(finding(earlier, tensor="b"), strategy="mirrored")
    assert save_signatures([of_strategy], path) == 2
    kept = json.loads(path.read_text())
    assert [each["fault"] for each in kept] == [earlier, later], "in the catalogue's order"
    assert save_signatures([finding(later, tensor="c")], path) == 2
    kept = json.loads(path.read_text())
    assert [each["signature"]["tensor"] for each in kept] == ["b", "c"]
    assert [each.get("strategy") for each in kept] == ["mirrored", None]


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
        assert "cause confirmed: 1 of the 2 that the oracle can make, 1 wrongly" in text
        assert "WRONG" in text
    cannot = finding([], confirmable=False)
    cannot.confirmed = []
    assert all_found([cannot])
    assert "cause confirmed: 0 of the 0 that the oracle can make, 0 wrongly" in findings_text(
        [cannot]
    )


# what is planted where


def planned(**options) -> list[tuple[str, str, str, str]]:
    return [
        (each.fault.name, each.side, each.dtype, each.kernels)
        for each in plantings(FaultOptions(**options))
    ]


def test_every_fault_is_planted_in_each_side_precision_and_kind_of_kernel():
    found = planned(kernels=KERNELS)
    assert len(set(found)) == len(found)
    assert set(found) == {
        (fault.name, side, dtype, kernels)
        for fault in CATALOGUE
        for kernels, side, _ in kinds(fault)
        for dtype in DTYPES
        if SETTINGS[fault.setting].can_train(side, dtype)
    }


def test_parameter_servers_of_paddle_are_left_alone_in_a_precision_that_they_lack():
    served = {dtype for name, _, dtype, _ in planned() if name == "served-push-lost"}
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
    assert planned(strategy=("mirrored",), sides=("paddle",)) == []
    both = planned(strategy=("mirrored",), only=("mirrored-mean", "beta2"), dtype=("float64",))
    assert both == [("mirrored-mean", "tensorflow", "float64", "fast")]
    every = {name for name, *_ in planned(strategy=(*STRATEGIES, *DEFAULTS))}
    assert every == set(BY_NAME)
    assert planned(strategy=("all",)) == planned()
    assert planned(strategy=("paddle=all",)) == planned(sides=("paddle",))
    of_paddle = planned(strategy=("paddle=layers",))
    assert of_paddle == planned(strategy=("layers",), sides=("paddle",)) != []
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


# what decides whether to hunt again


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with a copy of everything that decides what a hunt finds."""
    for path in sources():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return tmp_path


FOUND = Finding("f", "paddle", "float64", "", "", "stream", found_by=MISMATCH)


def test_what_is_recorded_is_not_hunted_again_until_one_byte_changes(checkout):
    record = checkout / "record.json"
    assert must_hunt(checkout, record) == (
        True,
        "faults: planting them, as no full hunt is recorded",
    )
    said = record_hunt([FOUND], digest(checkout), checkout, record)
    assert said.startswith("recorded in record.json: all found in sources ")
    needed, reason = must_hunt(checkout, record)
    assert not needed
    assert reason.startswith("faults: all were found in these very sources (sha256 ")
    for name in (
        "paddle_impl/layers.py",
        "tf_impl/train.py",
        "data/text_batches.py",
        "parity/twins/compare/run_comparison.py",
        "parity/twins/faults/catalogue/cells.py",
        "requirements.lock",
    ):
        path = checkout / name
        content = path.read_bytes()
        path.write_bytes(content[:-2] + b"#" + content[-1:])
        needed, reason = must_hunt(checkout, record)
        assert needed, name
        assert "the sources have changed since the last full hunt" in reason
        path.write_bytes(content)
        assert not must_hunt(checkout, record)[0]


def test_a_file_that_comes_goes_or_is_renamed_is_a_change(checkout):
    before = digest(checkout)
    (checkout / "parity" / "new.py").write_text("")
    assert digest(checkout) != before
    (checkout / "parity" / "new.py").unlink()
    assert digest(checkout) == before
    path = checkout / "paddle_impl" / "train.py"
    path.rename(path.with_name("trains.py"))  # the order stays
    assert digest(checkout) != before


def test_what_a_hunt_writes_and_python_s_caches_are_no_change(checkout):
    before = digest(checkout)
    for path in (last_hunt.RECORD, last_hunt.SIGNATURES):
        (checkout / path.relative_to(ROOT)).write_text("other")
    (checkout / "parity" / "__pycache__").mkdir(exist_ok=True)
    (checkout / "parity" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert digest(checkout) == before


def test_only_a_full_hunt_of_unchanged_sources_is_recorded(checkout):
    record = checkout / "record.json"
    missed = dataclasses.replace(FOUND, found_by="")
    for findings, hunted, why in (
        ([FOUND, missed], digest(checkout), "not every fault was found"),
        ([FOUND], "of other sources", "the sources have changed during the hunt"),
    ):
        assert record_hunt(findings, hunted, checkout, record) == f"not recorded: {why}"
    assert not record.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--once"], "--record is given with --once; allowed: without it"),
        (["--only", "beta2"], "--record is given with --only; allowed: without it"),
        (["--strategy", "layers"], "--record is given with --strategy; allowed: without it"),
        (["--dtype", "float64"], "--record is given with --dtype float64; allowed with it: "),
        (["--kernels", "plain"], "--record is given with --kernels plain; allowed with it: "),
        (["--sides", "paddle"], "--record is given with --sides paddle; allowed with it: "),
    ],
)
def test_a_partial_hunt_is_not_recorded(capsys, tmp_path, words, said):
    all_kinds = ["--kernels", ",".join(KERNELS)]
    command = ["faults", "--record", "--out", str(tmp_path / "out"), *all_kinds, *words]
    assert main(parity, command) == 2
    assert f"error: {said}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# the command


def test_an_unknown_fault_is_told_in_one_line(capsys, tmp_path):
    listed = f"of the {len(CATALOGUE)} faults that --list-only prints"
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
    assert main(parity, [*command, "--sides", "paddle"]) == 2
    line = assert_one_line(2, capsys.readouterr().err)
    assert line.startswith(
        "error: no fault is planted with these --only, --sides and --strategy"
    )
    assert main(parity, ["faults", "--harmless", *command[1:]]) == 2
    line = assert_one_line(2, capsys.readouterr().err)
    assert line.startswith("error: --strategy is given with --harmless; allowed: without it")


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


def test_the_command_writes_what_it_found(tmp_path):
    command = ["-m", "parity", "faults", "--only", "beta2", "--sides", "paddle"]
    process = start([*command, "--dtype", "float64", "--out", tmp_path, "--pages"])
    said, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    (found,) = json.loads((tmp_path / "faults.json").read_text())["findings"]
    assert (found["fault"], found["found"], found["right_place"]) == ("beta2", True, True)
    assert (tmp_path / "faults.txt").read_text() == said
    assert said.endswith("1 faults; all found\n")
    page = (tmp_path / "pages" / "beta2-paddle-fast-float64.html").read_text()
    assert str(escape(BY_NAME["beta2"].cause)) in page
