"""A pair that is not ours: recorded by any program, compared, asserted, shown."""

import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from conftest import one_line, run_python
from oracle_side import header, recorded_steps, small_spec, write_trace

from parity import Recorder, Rename, Tolerance, Trace, assert_match
from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.compare.recorded_pair import compare_pair
from parity.compare.tensors import Place
from parity.trace.folder import FORMAT, LAST_STEP, step_file
from parity.trace.tolerances import TABLE

ROOT = Path(__file__).resolve().parent.parent
STEPS = 5
# In the order of computation; in a file they would lie in that of the alphabet.
TENSORS = (
    "forward/norm",
    "forward/hidden",
    "loss/mean",
    "gradient/b",
    "gradient/a",
    "weight/b",
)
LIMIT = Tolerance(1e-3, 0, reason="measured")


def steps_of(dtype="float64", steps=STEPS):
    """Return the tensors of each step, of numbers from 0 to 1, later rungs first."""
    draw = np.random.default_rng(3)
    recorded = (*TENSORS[5:], *TENSORS[3:5], *TENSORS[:3])
    return [
        {
            name: draw.random(() if name == "loss/mean" else (3, 4)).astype(dtype)
            for name in recorded
        }
        | {"batch/tokens": draw.integers(0, 9, 6)}
        for _ in range(steps)
    ]


def record(folder, steps=None, change=None, numbers=None, **values):
    """Record a side, its tensors changed, and return its folder."""
    values = {"framework": folder.name, "dtype": "float64"} | values
    steps = steps_of(values["dtype"]) if steps is None else steps
    with Recorder(folder, **values) as recorder:
        for step, tensors in zip(numbers or range(len(steps)), steps, strict=True):
            if change is not None:
                change(step, tensors)
            recorder.step(step, tensors)
    return folder


def nudge(name, step=3, by=1e-2):
    """Return a change of one element of a tensor, from a step on."""

    def change(now, tensors):
        if now >= step:
            wrong = tensors[name].copy()
            wrong[(-1,) * wrong.ndim] += by
            tensors[name] = wrong

    return change


@pytest.fixture
def pair(tmp_path):
    """Return a function that records two sides, the second one changed."""

    def record_pair(change=None, *, of_a=None, of_b=None, **values):
        a = record(tmp_path / "original", **values | (of_a or {}))
        return a, record(tmp_path / "port", change=change, **values | (of_b or {}))

    return record_pair


def run(capsys, *words):
    """Run a command; return its status, what it printed and its one line of complaint."""
    status = main(parity, list(map(str, words)))
    printed = capsys.readouterr()
    assert printed.err.count("\n") <= 1
    return status, printed.out, printed.err


# recording


def test_a_mismatch_names_the_lines_of_both_sides_by_shared_names(tmp_path, capsys):
    def wrong(step, tensors):
        tensors["forward/fc"] = tensors.pop("forward/hidden") + 1

    a = record(tmp_path / "mine", sources={"forward/hidden": "mine.py:3 (Net)"})
    names, sources = {"fc": "hidden"}, {"forward/fc": "port.py:7 (Port)"}
    b = record(tmp_path / "port", change=wrong, names=names, sources=sources)
    assert main(parity, ["compare", str(a), str(b)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  where: mine.py:3 (Net), in mine" in lines[:6]
    assert "  where: port.py:7 (Port), in port" in lines[:6]
    assert "  last right: forward/norm" in lines[:6]


@pytest.mark.parametrize("source", [5, "net.py:1\nverdict: match", "\x1b[31m", "y" * 1001])
def test_a_source_that_is_no_line_is_refused(tmp_path, source):
    """It would be printed as it is."""
    with pytest.raises(UsageError, match=r"^source of 'forward/hidden' is .*printable text"):
        record(tmp_path / "mine", sources={"forward/hidden": source})
    folder = record(tmp_path / "edited")
    header = json.loads((folder / "trace.json").read_text())
    (folder / "trace.json").write_text(
        json.dumps(header | {"sources": {"forward/hidden": source}})
    )
    with pytest.raises(UsageError, match=r"source of 'forward/hidden' is .*printable text"):
        Trace(folder)


def test_a_name_map_gives_shared_names_and_layouts(tmp_path):
    images = np.arange(24.0).reshape(1, 2, 3, 4)
    kernel, bias = np.arange(6.0).reshape(2, 3), np.arange(3.0)
    names = {
        "images": Rename("images", {"axes": [0, 2, 3, 1]}),
        "fc.weight": Rename("fc/kernel", "transpose"),
        "fc.bias": "fc/bias",
        "total": "loss/mean",
        "weight/odd": Rename("weight/even", "transpose"),
    }
    given = {
        "batch/images": images,
        "gradient/fc.weight": kernel,
        "optimizer/fc.weight/velocity": 2 * kernel,
        "weight/fc.weight": 3 * kernel,
        "weight/fc.bias": bias,
        "total": 0.5,
        "weight/odd": kernel,
        "weight/as_it_is": bias,
    }
    folder = record(tmp_path / "a", [given], names=names)
    found = Trace(folder).read(0)
    expected = {
        "batch/images": np.moveaxis(images, 1, 3),
        "gradient/fc/kernel": kernel.T,
        "optimizer/fc/kernel/velocity": 2 * kernel.T,
        "weight/fc/kernel": 3 * kernel.T,
        "weight/fc/bias": bias,
        "loss/mean": np.array(0.5),
        "weight/even": kernel.T,
        "weight/as_it_is": bias,
    }
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


KERNEL = np.zeros((2, 3))
BAD_RECORDERS = {
    "dtype": ({"dtype": "float16"}, "dtype is 'float16'; allowed: float64, float32"),
    "framework": ({"framework": "a\nb"}, r"framework is 'a\nb'; allowed: a word"),
    "no word": ({"framework": None}, "framework is None; allowed: a word"),
    "no mapping": ({"names": ["a"]}, "names is ['a']; allowed: a mapping"),
    "run": ({"run": {"rate": np.zeros(2)}}, "run or versions: Object of type ndarray"),
    "infinite run": ({"run": {"rate": float("nan")}}, "allowed: values of JSON"),
    "row": ({"names": {"a": ("b", True)}}, "name map, 'a': is ('b', True); allowed: a name"),
    "empty name": ({"names": {"a": ""}}, "name of a Rename is ''; allowed: a path"),
    "half a name": ({"names": {"a": "weight/"}}, "name of a Rename is 'weight/'"),
    "rung": ({"names": {"weight/a": "wait/a"}}, "tensor 'wait/a' is on no rung; allowed"),
    "no rung": ({"tolerances": {"forwards": LIMIT}}, "tolerance of 'forwards': on no rung"),
    "1": (
        {"tolerances": {"forward": Tolerance(1.0, 0, reason="so")}},
        "tolerance of 'forward': relative is 1.0; allowed: from 0 to below 1",
    ),
    "negative": (
        {"tolerances": {"forward": Tolerance(0, -1e-9, reason="so")}},
        "tolerance of 'forward': floor is -1e-09; allowed",
    ),
    "not a number": (
        {"tolerances": {"forward": Tolerance(float("nan"), 0, reason="so")}},
        "relative is nan; allowed",
    ),
    "no reason": (
        {"tolerances": {"forward": Tolerance(0.1, 0)}},
        "tolerance of 'forward': no reason; allowed: why",
    ),
    "reason of another type": (
        {"tolerances": {"forward": Tolerance(0.1, 0, reason=None)}},
        "tolerance of 'forward': no reason; allowed: why",
    ),
    "no rung, but what names begin with": (
        {"tolerances": {"evaluate": LIMIT}},
        "tolerance of 'evaluate': on no rung; allowed: a rung, or a pattern RUNG/NAME",
    ),
    "a number": ({"tolerances": {"forward": 0.1}}, "tolerance of 'forward' is 0.1; allowed"),
}


@pytest.mark.parametrize("case", BAD_RECORDERS)
def test_a_recorder_that_makes_no_sense_is_refused(tmp_path, case):
    values, message = BAD_RECORDERS[case]
    with pytest.raises(UsageError) as caught:
        record(tmp_path / "a", **values)
    assert message in one_line(caught)
    assert not (tmp_path / "a").exists()


class OnAnotherDevice:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("the tensor lies on another device:\nmove it")


NAMES = {"fc.weight": Rename("fc/kernel", "transpose")}
GOOD = {"weight/fc.weight": KERNEL, "loss/mean": 0.5}
BAD_STEPS = {
    "missing": ({"loss/mean": 0.5}, "step 1: no tensor of the name map's 'fc.weight'"),
    "less than at first": ({"weight/fc.weight": KERNEL}, "step 1: lacks 'loss/mean', which"),
    "more than at first": (GOOD | {"weight/b": KERNEL}, "step 1: has 'weight/b', which step 0"),
    "rung": (GOOD | {"weights/b": KERNEL}, "tensor 'weights/b' is on no rung; allowed prefix"),
    "nothing behind": (GOOD | {"weight": KERNEL}, "tensor 'weight': no path behind the rung"),
    "two lines": (GOOD | {"weight/a\nb": KERNEL}, r"tensor 'weight/a\nb': no path behind"),
    "no string": (GOOD | {3: KERNEL}, "step 1: a tensor is named 3; allowed: a string"),
    "objects": (GOOD | {"loss/mean": "0.5"}, "tensor 'loss/mean' holds <U3; allowed: bool"),
    "nothing": (GOOD | {"loss/mean": None}, "tensor 'loss/mean' holds object; allowed"),
    "complex": (GOOD | {"loss/mean": np.clongdouble(1j)}, "holds complex256; allowed"),
    "ragged": (GOOD | {"loss/mean": [[1], [1, 2]]}, "tensor 'loss/mean' is no array: "),
    "elsewhere": (
        GOOD | {"loss/mean": OnAnotherDevice()},
        "'loss/mean' is no array: the tensor lies on another device: move it",
    ),
    "twice": (
        GOOD | {"weight/fc/kernel": KERNEL},
        "step 1: 'weight/fc.weight' and 'weight/fc/kernel' are both named 'weight/fc/kernel'",
    ),
    "axes": (
        GOOD | {"weight/fc.weight": np.zeros(3)},
        "tensor 'weight/fc.weight' has shape [3]; its name map allows 2 axes",
    ),
    "precision": (
        GOOD | {"loss/mean": np.float32(0.5)},
        "tensor 'loss/mean' is float32; allowed in a side of dtype float64: nothing less",
    ),
    "empty": ({}, "step 1: no tensors; allowed: at least one"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_bad_step_is_refused_and_leaves_no_trace(tmp_path, case):
    tensors, message = BAD_STEPS[case]
    values = {"framework": "a", "dtype": "float64", "names": NAMES}
    with Recorder(tmp_path / "a", **values) as recorder:
        recorder.step(0, GOOD)
        with pytest.raises(UsageError) as caught:
            recorder.step(1, tensors)
        assert message in one_line(caught)
        recorder.step(1, GOOD)
    trace = Trace(tmp_path / "a")
    assert trace.numbers() == [0, 1]
    assert {path.name for path in trace.folder.iterdir()} == {
        "trace.json",
        "steps.jsonl",
        step_file(0),
        step_file(1),
    }


def test_of_two_recorders_at_once_the_second_is_refused(tmp_path):
    words = f"{str(tmp_path)!r}, framework='a', dtype='float64'"
    with Recorder(tmp_path, framework="a", dtype="float64") as recorder:
        for step in range(2):
            recorder.step(step, {"loss/global": np.ones(1)})
            done = run_python("-c", f"import parity; parity.Recorder({words})")
            assert "is writing to it; allowed: another folder" in done.stderr
            with pytest.raises(UsageError, match="this process is writing to it; allowed: ano"):
                Recorder(tmp_path / ".", framework="b", dtype="float64")
    assert Trace(tmp_path).numbers() == [0, 1]
    Recorder(tmp_path, framework="b", dtype="float64").close()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (4, f"step is 4; allowed: 5 to {LAST_STEP}"),
        (3, f"step is 3; allowed: 5 to {LAST_STEP}"),
        (LAST_STEP + 1, f"step is 1000000; allowed: 5 to {LAST_STEP}"),
        (5.0, "step is 5.0; allowed: a whole number"),
        (True, "step is True; allowed: a whole number"),
    ],
)
def test_a_step_goes_forward(tmp_path, step, message):
    with Recorder(tmp_path / "a", framework="a", dtype="float64") as recorder:
        recorder.step(4, GOOD)
        with pytest.raises(UsageError) as caught:
            recorder.step(step, GOOD)
    assert message in one_line(caught)
    with pytest.raises(UsageError, match="step 5: the recorder is closed"):
        recorder.step(5, GOOD)


def test_a_step_leaves_tensors_out_only_if_told(tmp_path, pair):
    with Recorder(tmp_path / "a", framework="a", dtype="float64", names=NAMES) as recorder:
        with pytest.raises(UsageError, match="step 0: is partial; allowed: all tensors"):
            recorder.step(0, {"loss/mean": 0.5}, partial=True)
        recorder.step(0, GOOD)
        recorder.step(10, {"loss/mean": 0.5}, partial=True)
        with pytest.raises(UsageError, match="step 20: has 'loss/other', which step 0 had not"):
            recorder.step(20, {"loss/other": 0.5}, partial=True)
        recorder.step(20, GOOD)
    trace = Trace(tmp_path / "a")
    assert [(step, len(tensors)) for step, tensors in trace.steps()] == [
        (0, 2),
        (10, 1),
        (20, 2),
    ]
    verdict = compare_pair([trace, trace])
    assert verdict.matches
    assert verdict.history.to_json()["steps"] == [0, 10, 20]


def test_nothing_of_a_step_stays_in_memory(tmp_path):
    """Each step is 40 kB; 100 steps leave no more than the few that are in work."""
    values = {"framework": "a", "dtype": "float64"}
    with Recorder(tmp_path / "warm", **values) as recorder:  # what is loaded at first
        recorder.step(0, {"weight/a": np.zeros(5000)})
    tracemalloc.start()
    try:
        with Recorder(tmp_path / "a", **values) as recorder:
            for step in range(100):
                recorder.step(step, {"weight/a": np.full(5000, step), "loss/mean": 0.5})
            held = [tracemalloc.get_traced_memory()[0]]
        for _ in Trace(tmp_path / "a").steps():
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(held) < 500_000


def test_the_example_of_the_format_reads_a_trace(tmp_path, monkeypatch):
    """The code in TRACE.md, as it stands there, and it sees a changed byte."""
    text = (ROOT / "parity" / "trace" / "TRACE.md").read_text(encoding="utf-8")
    assert f"Format {FORMAT}." in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    change = nudge("forward/norm")
    record(tmp_path / "runs" / "mine", change=change)
    exec(compile(code, "TRACE.md", "exec"), {})
    path = tmp_path / "runs" / "mine" / step_file(2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(AssertionError):
        exec(compile(code, "TRACE.md", "exec"), {})


# comparing


def test_two_alike_match(pair, capsys, tmp_path):
    a, b = pair(run={"learning_rate": 0.1}, versions={"a": "1.2"})
    status, printed, _ = run(capsys, "compare", a, b, "--json", tmp_path / "report.json")
    assert status == 0
    assert printed.splitlines()[0] == f"original and port, {STEPS} steps, 7 tensors"
    assert printed.splitlines()[-1] == "verdict: match"
    assert "oracle" not in printed
    assert "Paddle-TF" not in printed
    assert "where worst" in printed
    values = json.loads((tmp_path / "report.json").read_text())
    assert values["verdict"] == "match"
    assert values["spec"] == {"learning_rate": 0.1}
    assert values["versions"]["port: a"] == "1.2"
    assert all(rung["used"] == 0 for rung in values["rungs"].values())
    history = values["history"]["float64"]
    losses = [float(tensors["loss/mean"]) for tensors in steps_of()]
    assert history["loss"] == {"original": losses, "port": losses}
    assert history["difference"] == [0] * STEPS
    assert list(history["relative"]) == ["batch/tokens", *TENSORS]


@pytest.mark.parametrize("name", TENSORS)
def test_a_wrong_tensor_is_named_with_all_there_is_to_say(pair, capsys, name):
    status, printed, _ = run(capsys, "compare", *pair(nudge(name)))
    assert status == 1
    size, index = (1, "[]") if name == "loss/mean" else (12, "[2, 3]")
    right = float(steps_of()[3][name].reshape(-1)[-1])
    rung = name.split("/")[0]
    said = " ".join(printed.split())
    seen = f"1 of {size} elements"
    if size == 1:
        seen = f"{right:.8g} in original, {right + 1e-2:.8g} in port"
    assert said.startswith(f"mismatch in {name}, step 3: {seen} who: ")
    assert f"{rung}: original and port differ in {name}, step 3: 1 of {size} el" in said
    assert f"farthest beyond the bound at {index}\n    original  {right!r}\n" in printed
    assert f"\n    port      {right + 1e-2!r}\n" in printed
    assert "difference 0.01" in printed
    assert (
        said.count(
            "1 of the step's 7 tensors differ by more than is allowed; there is no oracle"
        )
        == 2
    )
    assert printed.splitlines()[-1] == "verdict: mismatch"


def test_the_first_wrong_tensor_is_that_computed_first(pair):
    for place, name in enumerate(TENSORS):
        changes = [nudge(each) for each in reversed(TENSORS[place:])]

        def change(step, tensors, changes=changes):
            for each in changes:
                each(step, tensors)

        verdict = compare_pair([Trace(folder) for folder in pair(change)])
        assert verdict.mismatches[0].place == Place(
            3, name, () if name == "loss/mean" else (2, 3)
        )
        assert len(verdict.mismatches) == len(TENSORS) - place
        assert verdict.steps == 4


def without(name):
    return lambda step, tensors: tensors.pop(name)


UNLIKE = {
    "tensors": (
        lambda pair: pair(of_a={"steps": [{"loss/a": 1.0}]}, of_b={"steps": [{"loss/b": 1.0}]}),
        "step 0: no tensor to compare: only original has loss/a; only port has loss/b",
    ),
    "fewer steps": (
        lambda pair: pair(of_b={"steps": steps_of()[:3]}),
        "the traces hold different steps: original has 5, port has 3; only original has step 3",
    ),
    "other steps": (
        lambda pair: pair(of_b={"numbers": [0, 1, 2, 3, 7]}),
        "different steps: original has 5, port has 5; only original has step 4",
    ),
    "no steps": (
        lambda pair: pair(of_b={"steps": []}),
        "no steps to compare: original has 5, port has 0",
    ),
    "dtype": (
        lambda pair: pair(of_b={"dtype": "float32"}),
        "not of the same run: dtype differs: 'float64' against 'float32'",
    ),
    "run": (
        lambda pair: pair(of_a={"run": {"rate": 1, "b": 2}}, of_b={"run": {"rate": 3, "b": 2}}),
        "original and port are not of the same run: run differs: 'rate' 1 against 3",
    ),
    "kind": (
        lambda pair: (
            pair()[0],
            write_trace(pair()[0].parent / "ours", header(small_spec(), "paddle"), []),
        ),
        "original is a Recorder's, paddle is of a train.py; allowed: two of a kind",
    ),
    "tolerances": (
        lambda pair: pair(
            of_a={"tolerances": {"loss": LIMIT}},
            of_b={"tolerances": {"loss": Tolerance(1e-2, 0, reason="x")}},
        ),
        "'loss': original declares 0.001 of the element, 0 of the tensor, port 0.01 of the",
    ),
    "useless": (
        lambda pair: pair(tolerances={"gradient/c*": LIMIT}),
        "tolerance of 'gradient/c*': no tensor has such a name",
    ),
    "useless rung": (
        lambda pair: pair(tolerances={"optimizer": LIMIT}),
        "tolerance of 'optimizer': no tensor has such a name",
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_what_cannot_be_compared_is_told_in_one_line(pair, capsys, case):
    make, message = UNLIKE[case]
    a, b = make(pair)
    status, _, errors = run(capsys, "compare", a, b)
    assert status == 2
    assert message in errors
    page = a.parent / "report.html"
    for html, end in ((None, message.split()[-1]), (page, "page: not written")):
        with pytest.raises(AssertionError) as caught:
            assert_match(a, b, html=html)
        assert message in str(caught.value)
        assert end in str(caught.value).splitlines()[-1]
    assert not page.exists()


def test_what_one_side_lacks_is_listed_and_the_rest_is_compared(pair, capsys, tmp_path):
    folders = pair(without("gradient/b"))
    page, report = tmp_path / "report.html", tmp_path / "report.json"
    words = ("compare", *folders, "--html", page, "--json", report)
    status, printed, _ = run(capsys, *words)
    assert status == 1
    assert printed.startswith("mismatch: original alone has 'gradient/b'\n\noriginal and port,")
    assert "Not compared, because only original has them: gradient/b." in printed
    assert printed.endswith("verdict: mismatch: 1 tensor of original alone\n")
    told = "Not compared, because only original has them: gradient/b."
    assert told in page.read_text(encoding="utf-8")
    values = json.loads(report.read_text())
    assert values["only"] == {"original": ["gradient/b"]}
    assert values["tensors"] == len(TENSORS)
    status, printed, _ = run(capsys, *words, "--allow-missing")
    assert status == 0
    assert printed.endswith("verdict: match, with 1 tensor of original alone\n")
    with pytest.raises(AssertionError, match="verdict: mismatch: 1 tensor of original alone"):
        assert_match(*folders)
    assert_match(*folders, allow_missing=True)
    assert_match(*folders, exclude=["gradient/b"])
    record(
        folders[1],
        change=lambda *step: (without("gradient/b")(*step), nudge("loss/mean")(*step)),
    )
    status, printed, _ = run(capsys, "compare", *folders, "--allow-missing")
    assert (status, "differ in loss/mean, step 3" in printed) == (1, True)


@pytest.mark.parametrize("detail", ["full", "statistics"])
@pytest.mark.parametrize("step", [None, 3])
def test_a_clipped_gradient_that_is_the_gradient_is_no_difference(pair, capsys, step, detail):
    """Where no gradient exceeded the limit, in all steps."""

    def clipped(now, tensors):
        share = 0.5 if now == step else 1
        tensors["clipped_gradient/b"] = share * tensors["gradient/b"]

    status, printed, _ = run(capsys, "compare", *pair(clipped, detail=detail))
    assert status == (0 if step is None else 1)
    assert ("port alone has 'clipped_gradient/b'" in printed) == (step is not None)


def test_a_part_of_a_pair_is_compared_where_that_is_asked_for(pair, capsys):
    folders = pair(nudge("gradient/b"), tolerances={"gradient": LIMIT})
    for words, status in (
        (("--exclude", "gradient/b"), 0),
        (("--include", "gradient/*"), 1),
        (("--include", "loss/*", "--include", "forward/*"), 0),
        (("--steps", "0:3"), 0),
        (("--steps", "3:"), 1),
        (("--tolerance", "gradient=0.1,0.1"), 0),
        (("--tolerance", "gradient/b=0.1,0"), 0),
    ):
        found, printed, errors = run(capsys, "compare", *folders, "--quiet", *words)
        assert (found, errors) == (status, ""), words
        assert printed == ("verdict: mismatch\n" if status else "verdict: match\n")
    page = str(folders[1].parent / "page.html")
    words = ("--exclude", "gradient/b", "--html", page)
    status, printed, _ = run(capsys, "report", *folders, *words)
    assert (status, printed.splitlines()[-1]) == (0, "verdict: match")
    status, printed, _ = run(capsys, "compare", *folders, "--json", "-", "--steps", ":2")
    assert (status, json.loads(printed)["steps"]) == (0, 2)
    for words, said in (
        (("--steps", "3"), "--steps is '3'; allowed: FIRST:END"),
        (("--after-mismatch", "-1"), "--after-mismatch is -1; allowed: >= 0"),
        (("--cause-seconds", "nan"), "--cause-seconds is nan; allowed: >= 0"),
        (("--tolerance", "loss=1"), "--tolerance is 'loss=1'; allowed: PATTERN=REL,FLOOR"),
        (("--tolerance", "loss=2,0"), "relative is 2.0; allowed: from 0 to below 1"),
        (("--include", "los"), "include of 'los': no tensor has such a name"),
        (("--exclude", "gradient/bb"), "exclude of 'gradient/bb': no tensor has such a name"),
        (("--include", "loss/*", "--exclude", "loss/*"), "step 0: no tensor to compare"),
        (("--steps", "7:9"), "no step of original is among those asked for; allowed: of 0 to"),
    ):
        status, _, errors = run(capsys, "compare", *folders, *words)
        assert (status, said in errors) == (2, True), errors


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("both", [False, True])
def test_what_is_no_number_fails_with_its_place(pair, capsys, tmp_path, value, both):
    change = nudge("gradient/a", step=2, by=value)
    a, b = pair(change, of_a={"change": change} if both else {})
    status, _, errors = run(capsys, "compare", a, b)
    assert status == 3
    side = "original" if both else "port"
    assert f"{side}: {value} in gradient/a[2, 3], step 2" in errors
    with pytest.raises(AssertionError, match=r"in gradient/a\[2, 3\], step 2"):
        assert_match(a, b)


def test_what_is_no_number_hides_no_difference_before_it(pair, capsys):
    def change(now, tensors):
        nudge("gradient/b", step=2)(now, tensors)
        nudge("weight/b", step=2, by=np.nan)(now, tensors)

    status, _, errors = run(capsys, "compare", *pair(change))
    assert status == 3
    assert errors.endswith("step 2; the first tensor that differs is gradient/b\n")


# tolerances


def test_a_tolerance_may_be_for_what_comes_later(tmp_path, capsys):
    """As a gradient from the step on in which it is clipped."""
    limit = Tolerance(1e-2, 0, reason="so")
    for key, status in (("clipped_gradient/*", 0), ("gradient/*", 2)):
        folders = [tmp_path / side for side in "ab"]
        for folder, value in zip(folders, (1.0, 1.001), strict=True):
            given = {"framework": folder.name, "dtype": "float64", "same_tensors": False}
            with Recorder(folder, **given, tolerances={key: limit}) as recorder:
                recorder.step(0, {"loss/mean": np.ones(())})
                recorder.step(1, {"clipped_gradient/w": np.array(value)})
        assert run(capsys, "compare", *folders)[0] == status


@pytest.mark.parametrize("key", [None, "evaluation", "evaluate/*"])
def test_what_was_evaluated_is_compared(tmp_path, capsys, key):
    """Of this rung alone the name is not what names begin with."""
    declared = {} if key is None else {key: Tolerance(1e-2, 0, reason="so")}
    folders = [
        record(tmp_path / side, [{"evaluate/loss": np.float64(loss)}], tolerances=declared)
        for side, loss in (("a", 1.0), ("b", 1.001))
    ]
    status, printed, _ = run(capsys, "compare", *folders)
    assert (status, "evaluation" in printed) == (1 if key is None else 0, True)


def test_a_declared_tolerance_holds_for_what_it_names(pair, capsys):
    """A pattern before the rung; told with who declared it and why."""
    declared = {
        "gradient": Tolerance(1e-4, 0, reason="sums in another order"),
        "gradient/a*": Tolerance(1e-1, 0, reason="few terms"),
    }
    by_port = {"of_b": {"tolerances": declared}}
    status, printed, _ = run(capsys, "compare", *pair(nudge("gradient/a", by=3e-3), **by_port))
    printed = " ".join(printed.split())
    assert status == 0
    tensor = "of the element, 0 of the tensor"
    assert f"Declared by port: gradient 0.0001 {tensor} (1): sums in another order." in printed
    assert f"Declared by port: gradient/a* 0.1 {tensor} (1): few terms." in printed
    guess = "Not declared, so a guess (`parity bounds` measures): forward 1e-11 (2)"
    assert f"{guess}, loss 1e-11 (1), weight 1e-11 (1): " in printed
    status, printed, _ = run(capsys, "compare", *pair(nudge("gradient/b", by=3e-3), **by_port))
    assert status == 1
    assert "differ in gradient/b, step 3" in " ".join(printed.split())


def test_who_compares_may_declare_otherwise(pair):
    a, b = pair(nudge("loss/mean", by=1e-6), tolerances={"loss": LIMIT})
    assert_match(a, b)
    tighter = {"loss/*": Tolerance(1e-9, 0, reason="so"), "loss": Tolerance(0, 0, reason="so")}
    declared = r"Declared by whoever compares: loss/\* 1e-09 of the element, 0 of the tensor"
    with pytest.raises(AssertionError, match=declared):
        assert_match(a, b, tolerances=tighter)


def test_undeclared_in_float32_the_bound_of_a_step_is_allowed_once_more_with_each(pair):
    """At step s a difference of s + 1 bounds; a little more is too much, at every step."""
    row = TABLE["float32", "forward"]
    steps = [
        tensors | {"forward/norm": tensors["forward/norm"].astype("float64")}
        for tensors in steps_of("float32")
    ]
    for share, matches in ((0.98, True), (1.02, False)):
        for last in range(3):

            def change(step, tensors, share=share, last=last):
                if step == last:
                    a = tensors["forward/norm"]
                    allowed = (step + 1) * row.relative * (a + a.max())
                    tensors["forward/norm"] = a + share * allowed / (1 + 2e-5)

            of_b = {"steps": [dict(tensors) for tensors in steps]}
            recorded = pair(change, of_a={"steps": steps}, of_b=of_b, dtype="float32")
            assert compare_pair([Trace(each) for each in recorded]).matches is matches


def test_what_was_recorded_before_a_crash_is_compared(pair, tmp_path, capsys):
    """By a training of one's own, which ends in the middle of its loop."""
    a, b = pair()

    def crash(step, tensors):
        if step == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        record(b, change=crash)
    status, printed, _ = run(capsys, "compare", a, b)
    assert status == 0
    assert "original and port, 3 steps" in printed
    cut = "port was cut after step 2: only the steps that all traces hold are"
    assert cut in " ".join(printed.split())
    assert printed.endswith("verdict: match, with port cut after step 2\n")
    with pytest.raises(AssertionError, match="port was cut after step 2; allowed: whole"):
        assert_match(a, b)
    # the other way round, and where the common steps differ
    assert run(capsys, "compare", b, a)[0] == 0
    record(a, change=nudge("weight/b", step=1))
    assert run(capsys, "compare", a, b)[0] == 1


def test_types_are_part_of_equality(pair, capsys):
    """What equals to the last digit still differs; the line says which array, and how."""

    def change(step, tensors):
        if step == 1:
            tensors["batch/tokens"] = tensors["batch/tokens"].astype("float64")

    status, printed, _ = run(capsys, "compare", *pair(change))
    assert status == 1
    line = printed.splitlines()[0]
    assert "batch/tokens" in line
    assert "step 1" in line
    assert "type int64 in original, float64 in port" in line
    assert "why: the values are equal, their types are not" in printed


def test_undeclared_in_float32_no_bound_grows_beyond_a_hundredth(pair):
    def change(step, tensors):
        tensors["forward/norm"] = tensors["forward/norm"] * np.float32(1.021)

    steps = steps_of("float32")[:2]
    values = {"dtype": "float32", "numbers": [500_000, 900_000]}
    a, b = pair(change, of_a={"steps": steps, **values}, of_b={"steps": steps, **values})
    verdict = compare_pair([Trace(a), Trace(b)])
    assert verdict.mismatches[0].place.tensor == "forward/norm"


# asserting


def test_the_assertion_tells_the_whole_story(pair, tmp_path):
    a, b = pair(nudge("gradient/b"))
    page = tmp_path / "pages" / "report.html"
    with pytest.raises(AssertionError) as caught:
        assert_match(str(a), Trace(b), html=page)
    story = str(caught.value)
    assert story.startswith("mismatch in gradient/b, step 3: 1 of 12 elements")
    values = [repr(float(steps_of()[3]["gradient/b"][2, 3]) + by) for by in (0, 1e-2)]
    for each in ("[2, 3]", *values, "allowed ", "units in the last place", "worst", "Not decl"):
        assert each in story
    for rung in ("batch", "forward", "loss", "gradient", "weight"):
        assert re.search(rf"^float64 +{rung} ", story, re.MULTILINE)
    assert story.endswith(f"verdict: mismatch\npage: {page}")
    assert story.count("differ in gradient/b") == 1
    assert "first wrong tensor" in page.read_text(encoding="utf-8")


def test_traces_of_this_project_are_refereed_by_the_oracle(tmp_path):
    spec = small_spec()
    for side, nudged in (("paddle", 0.0), ("tensorflow", 0.0), ("wrong", 1e-6)):
        framework = "tensorflow" if side == "wrong" else side
        steps = recorded_steps(spec, 3, nudge=nudged)
        write_trace(tmp_path / side, header(spec, framework), steps)
    assert_match(tmp_path / "paddle", tmp_path / "tensorflow")
    with pytest.raises(AssertionError) as caught:
        assert_match(tmp_path / "paddle", tmp_path / "wrong")
    assert "only tensorflow-2 differs from the oracle by " in str(caught.value)
    with pytest.raises(UsageError, match=r"tolerances are given for traces of train\.py"):
        assert_match(tmp_path / "paddle", tmp_path / "wrong", tolerances={"loss": LIMIT})


def test_bad_use_of_the_assertion_is_no_failed_assertion(pair, tmp_path):
    a, b = pair()
    with pytest.raises(UsageError, match=r"no trace\.json here"):
        assert_match(a, tmp_path)
    with pytest.raises(UsageError, match="relative is 1; allowed: from 0 to below 1"):
        assert_match(a, b, tolerances={"loss": Tolerance(1, 0, reason="so")})
    with pytest.raises(UsageError, match="is a folder; allowed: a file's name"):
        assert_match(a, b, html=tmp_path)


def test_the_package_is_cheap_to_import_and_lists_what_it_has():
    code = (
        "import sys, parity\n"
        "assert not {'numpy', 'safetensors', 'jinja2', 'click'} & set(sys.modules)\n"
        "assert set(parity.__all__) <= set(dir(parity))\n"
        "for name in parity.__all__: assert getattr(parity, name).__name__ == name\n"
        "assert parity.Recorder is sys.modules['parity.pair.recorder'].Recorder\n"
        "assert not {'jinja2', 'paddle', 'tensorflow'} & set(sys.modules), sys.modules\n"
        "try: parity.Nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "module 'parity' has no attribute 'Nothing'"
