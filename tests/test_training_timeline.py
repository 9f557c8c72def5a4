"""Where the time of a step goes: phases, operations, and the trace, of both sides."""

import json
import os

import pytest
from conftest import FRAMEWORKS, ONE_FRAMEWORK, assert_one_line, ended, flags, run_python, start

from parity.twins.launch.processes import ROOT
from parity.twins.training.meter import Step
from parity.twins.training.timeline import PHASES, Event, chrome_trace, joined_traces, summarise


def event(operation="MatMul", phase="forward", start=0.0, duration=1000.0, within=0.0, at="0"):
    return Event(operation, f"{operation}_1", phase, at, start, duration, within)


def test_a_step_is_shared_out():
    events = [
        event(duration=3000.0),
        event(duration=1000.0, at="1"),
        event("while", duration=5000.0, within=4000.0),
        event("wait", "data", duration=2000.0, at="Python"),
        event("fetch", "other", duration=1000.0, at="Python"),
        event("sum", "all-reduce", duration=500.0),
    ]
    steps = [Step(10, 0.0, 0.001, 0.010), Step(10, 0.010, 0.001, 0.010)]
    found = summarise(events, steps, at_once=2)
    assert found["milliseconds_per_step"] == pytest.approx(10)
    # of 2 steps, on 2 replicas; what Python waits for, all replicas wait for
    assert found["phases"] == pytest.approx(
        {
            "data": 1.0,
            "forward": 5 / 4,
            "backward": 0.0,
            "all-reduce": 0.125,
            "update": 0.0,
            "other": 0.5,
        }
    )
    assert found["idle"] == pytest.approx(10 - 1 - 1.25 - 0.125 - 0.5)
    assert found["operations"][0] == {
        "phase": "forward",
        "operation": "MatMul",
        "calls": 1.0,
        "milliseconds": 1.0,
    }
    assert sum(each["milliseconds"] for each in found["operations"]) == pytest.approx(2.875)


def test_what_runs_at_once_has_a_lane_of_its_own():
    events = [
        event("a", start=100.0, duration=50.0),
        event("b", start=110.0, duration=10.0),  # within a
        event("c", start=140.0, duration=30.0),  # beyond a
        event("d", start=170.0, duration=5.0),
        event("e", start=100.0, duration=5.0, at="1"),
    ]
    found = chrome_trace("paddle", reversed(events))["traceEvents"]
    assert found[0]["args"] == {"name": "paddle"}
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    lanes = {e["name"]: e["tid"] for e in found if e["ph"] == "X"}
    assert lanes["a"] == lanes["b"] == lanes["d"] != lanes["c"]
    assert names[lanes["a"]] == names[lanes["c"]] == "0"
    assert names[lanes["e"]] == "1"
    assert {e["name"]: (e["ts"], e["dur"]) for e in found if e["ph"] == "X"}["c"] == (40, 30)


def test_joined_sides_are_processes():
    joined = joined_traces([chrome_trace("a", [event()]), chrome_trace("b", [event()])])
    assert [each["pid"] for each in joined["traceEvents"]] == [0, 0, 0, 1, 1, 1]


THOROUGH = pytest.mark.thorough
PAIRS = {"network": "seq2seq", "time": None, "vocabulary_size": None}
PAIRS |= {"source_segmenter": "spaces", "target_segmenter": "spaces"}
PAIRS |= {"input_feeding": True, "attention": "bahdanau", "cell": "gru"}


OTHERS = {
    "seq2seq": PAIRS,
    "layers": {"strategy": "layers"},
    "asynchronous": {"strategy": "asynchronous"},
    "mirrored": {"strategy": "mirrored"},
}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, {}) for name in FRAMEWORKS),
        *(
            pytest.param(name, given, marks=THOROUGH, id=f"{name}-{other}")
            for other, given in OTHERS.items()
            for name in FRAMEWORKS
            if (name, other) != ("paddle", "mirrored")
        ),
    ],
)
def test_every_phase_has_its_operations(name, given, frameworks, text, pairs, cache, tmp_path):
    common = {"batch_size": 8, "hidden_size": 64, "optimizer": "adam", "steps": 15}
    common |= {"data": pairs if "network" in given else text, "cache": cache}
    ended(frameworks[name].train(*flags(**common | given, profile=tmp_path)))
    table, trace = (
        json.loads((tmp_path / file).read_text()) for file in ("profile.json", "trace.json")
    )
    assert (table["steps"], table["replicas"]) == (5, 2)
    assert set(table["phases"]) == set(PHASES)
    strategy = given.get("strategy")
    reduces = strategy in (None, "mirrored")  # the gradients of all replicas, as a phase
    always = PHASES if reduces else ("forward", "backward", "update")
    assert all(table["phases"][phase] > 0 for phase in always), table["phases"]
    whole = table["milliseconds_per_step"]
    # an operation counted twice would leave less than nothing; the steps of free workers
    # overlap, but cannot hold more work than there was time
    assert -0.05 * whole < table["idle"] < whole
    of_phase, calls = {}, {}
    for each in table["operations"]:
        # oneDNN's operations, which TensorFlow may choose for its own, do the same; and so do
        # Paddle's product unless the processor is Intel's, and its update without AVX-512
        operation = each["operation"].removeprefix("_Mkl").removeprefix("merged_")
        operation = operation.replace("fused_matmul", "matmul_v2")
        of_phase.setdefault(operation, set()).add(each["phase"])
        calls[operation] = each["calls"]
    assert "py_func" not in of_phase
    adam, product, gradient, reduced = {
        "paddle": ("adam", "matmul_v2", "matmul_v2_grad", "all_reduce"),
        "tensorflow": ("ResourceApplyAdam", "MatMul", "MatMul", "AddN"),
    }[name]
    assert of_phase[adam] == {"update"}
    if reduces:
        assert sum(table["phases"].values()) + table["idle"] == pytest.approx(whole)
        assert "forward" in of_phase[product]
        assert "backward" in of_phase[gradient]
        assert "all-reduce" in of_phase[reduced]
        shown = [each for each in trace["traceEvents"] if each["ph"] == "X"]
        assert {each["cat"] for each in shown} == set(PHASES)
        assert min(each["ts"] for each in shown) == 0
    if "network" not in given:  # it has nine parameters
        if strategy == "asynchronous":  # an update by each worker, one of which may be ahead
            assert 9 <= calls[adam] <= 9 * 2 * (5 + 1) / 5
        else:  # on every replica's copy, or once
            assert calls[adam] == 9 * (2 if strategy == "mirrored" else 1)


@ONE_FRAMEWORK
def test_profiling_refuses_what_does_not_go_with_it(framework, text, cache, tmp_path):
    given = {"data": text, "cache": cache, "profile": tmp_path / "profile"}
    for more, named in (
        ({"trace": tmp_path / "trace"}, "--trace"),
        ({"resume": "x"}, "--resume"),
        ({"steps": 8}, "--steps is 8; allowed with --profile: >= 9"),
    ):
        assert named in assert_one_line(*framework.train(*flags(**given | more)).wait()[::2])
    assert not (tmp_path / "profile").exists()


def test_profile_shows_both_sides(tmp_path):
    command = ["-m", "parity", "profile", "--preset=tiny", "--steps=13", "--replicas=1"]
    command += ["--vocabulary-size", "300", "--operations", "3"]
    command += ["--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    command += ["--json", tmp_path / "extra.json"]
    (tmp_path / "here").mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = start(command, cwd=tmp_path / "here", env=environment)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    values = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert values == json.loads((tmp_path / "extra.json").read_text())
    assert set(values["sides"]) == set(FRAMEWORKS)
    assert (tmp_path / "out" / "profile.txt").read_text() in said + "\n"
    assert {path.name for path in (tmp_path / "here").iterdir()} == set()
    for name in FRAMEWORKS:
        table = said.split(f"\n{name}:\n")[1].split("\n\n")[0].splitlines()
        rule = next(i for i, line in enumerate(table) if line.startswith("---"))
        assert len(table[rule + 1 :]) == 3
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())
    assert {each["pid"] for each in trace["traceEvents"]} == {0, 1}
    # without a preset that is known, nothing runs
    wrong = run_python("-m", "parity", "profile", "--preset", "huge")
    assert "huge" in assert_one_line(wrong.returncode, wrong.stderr)
