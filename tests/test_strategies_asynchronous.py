"""Asynchronous training: workers that keep to a schedule or run freely, and their replay."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from conftest import FRAMEWORKS, TINY, TINY_SEQ2SEQ, assert_one_line, flags

from parity.report.mismatch import mismatch_text
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.compare.whole_runs import RecordedSteps, compare_untraced
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.spec.presets import preset
from parity.twins.spec.schedule import drawn, read_schedule, schedule_text
from parity.twins.training.loss_table import read_losses

PER_EPOCH = 5  # steps of an epoch of the text
UPDATES = 24
BY_NAME = {fault.name: fault for fault in reversed(CATALOGUE)}
SEQ2SEQ = TINY_SEQ2SEQ | {"num_layers": 1, "loss_per": "row", "beam": 2}


@pytest.fixture(scope="module")
def asynchronous(run_both):
    """Return a function that records an asynchronous training on both sides."""

    def run(**values) -> dict[str, Trace]:
        given = {"strategy": "asynchronous", "steps": UPDATES, "optimizer": "adam"}
        return run_both(**given | values)

    return run


@pytest.fixture
def train(frameworks, text, cache, tmp_path):
    """Return a function that trains one side, and returns its folder."""
    numbers = iter(range(99))

    def run(framework, trace=False, edits=(), out=None, **values):
        out = out or tmp_path / str(next(numbers))
        given = {"strategy": "asynchronous", "dtype": "float64", "optimizer": "adam"}
        words = flags(**given | {"data": text, "cache": cache, "out": out} | values)
        if trace:
            words.append(f"--trace={out}")
        status, _, errors = frameworks[framework].train(*words, edits=edits).wait()
        assert status == 0, errors
        return out

    return run


def stale(trace: Trace) -> Counter:
    """Return how many updates of a trace have each staleness."""
    return Counter(number - int(tensors["schedule/read"]) for number, tensors in trace.steps())


def worst(verdict) -> float:
    """Return the largest relative distance of any pair."""
    return max(d.relative for rungs in verdict.pairs.values() for d in rungs.values())


def without_schedule(tensors) -> dict:
    left_out = ("schedule/", "read/", "replicas/")
    return {n: a for n, a in tensors.items() if not n.startswith(left_out)}


def assert_alike(traces, replicas: int, staleness: int) -> None:
    verdict = compare_traces(list(traces.values()))
    assert verdict.matches, verdict.mismatches[0]
    assert verdict.steps == UPDATES
    assert worst(verdict) < 1e-11
    assert (f"paddle-{replicas}", f"tensorflow-{replicas}") in verdict.pairs
    for trace in traces.values():
        assert max(stale(trace)) == staleness


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_sides_that_keep_to_one_schedule_are_alike(asynchronous, replicas, staleness):
    optimizer = "sgd" if staleness == 3 else "adam"
    traces = asynchronous(
        replicas=replicas, schedule=1, staleness=staleness, optimizer=optimizer
    )
    assert_alike(traces, replicas, staleness)
    assert any(
        tensors["gradient_norm"] > TINY["clip_norm"] for _, tensors in traces["paddle"].steps()
    )


@pytest.mark.parametrize(("replicas", "staleness"), [(2, 1), (4, 3)])
def test_seq2seq_is_alike_too(asynchronous, pairs, replicas, staleness):
    given = {"data": pairs, "schedule": 2, "staleness": staleness}
    assert_alike(asynchronous(replicas=replicas, **SEQ2SEQ | given), replicas, staleness)


def test_plain_kernels_and_float32(asynchronous):
    traces = asynchronous(replicas=3, schedule=1, dtype="float32", kernels="plain")
    verdict = compare_traces(list(traces.values()))
    assert verdict.matches, verdict.mismatches[0]


def test_an_update_takes_its_own_rows_of_the_global_batch(asynchronous, run_both):
    """The rows, masks and rate are those of the worker's step, not of the update's number."""
    trace = asynchronous(replicas=2, schedule=1, staleness=1)["tensorflow"]
    whole = run_both(replicas=2, optimizer="adam", steps=7)["tensorflow"]
    seen = set()
    for _, tensors in trace.steps():
        step, worker = int(tensors["schedule/batch"]), int(tensors["schedule/worker"])
        rows = slice(0, 4) if worker == 0 else slice(4, 7)
        assert int(tensors["schedule/first_row"]) == rows.start
        assert tensors["batch/sizes"].tolist() == [rows.stop - rows.start]
        if step < 7:
            expected = whole.read(step)
            seen.add((step, worker))
            for name in ("batch/tokens", "batch/targets", "batch/lengths"):
                assert np.array_equal(tensors[name], expected[name][rows])
    assert len(seen) == 14


@pytest.mark.parametrize("schedule", ["free", "1"])
def test_one_worker_is_the_synchronous_run_to_the_bit(asynchronous, run_both, schedule):
    alone = asynchronous(replicas=1, schedule=schedule, steps=7)
    synchronous = run_both(replicas=1, optimizer="adam", steps=7)
    for framework in FRAMEWORKS:
        for step in range(7):
            a, b = (
                without_schedule(traces[framework].read(step))
                for traces in (alone, synchronous)
            )
            assert a.keys() == b.keys()
            assert all(a[name].tobytes() == b[name].tobytes() for name in a), step
    verdict = compare_traces([*alone.values(), *synchronous.values()])
    assert verdict.matches
    assert verdict.pairs["paddle-1 asynchronous", "paddle-1 parallel-executor"]


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_free_run_is_replayed(asynchronous, replicas):
    traces = asynchronous(replicas=replicas, schedule="free", steps=40)
    verdict = compare_traces(list(traces.values()))
    assert verdict.matches, verdict.mismatches[0]
    assert worst(verdict) < 1e-11
    labels = {label for pair in verdict.pairs for label in pair}
    assert labels == {*verdict.sides, "oracle", "oracle, one step"}, "not with each other"


# fault of the catalogue -> the first wrong rung, and the updates that it may be found in
MISTAKES = {
    "stale-read": (
        "replicas",
        range(3, 9),
    ),  # the fifth read belongs to one of the next updates
    "lost-update": ("weight", [5]),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("schedule", ["1", "free"])
def test_what_the_schedule_does_not_have_is_found(
    asynchronous, train, framework, mistake, schedule
):
    rung, updates = MISTAKES[mistake]
    wrong = train(
        framework,
        trace=True,
        edits=BY_NAME[mistake].edits[framework],
        replicas=2,
        schedule=schedule,
        steps=UPDATES,
        optimizer="sgd",
    )
    other = next(each for each in FRAMEWORKS if each != framework)
    right = asynchronous(replicas=2, schedule=schedule, optimizer="sgd")[other]
    verdict = compare_traces([Trace(wrong), right])
    assert verdict.departing() == [f"{framework}-2"]
    assert verdict.mismatches[0].rung == rung
    if mistake == "stale-read":
        assert "of the weights; the schedule says version" in verdict.mismatches[0].note
    assert verdict.mismatches[0].place.step in updates


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("schedule", ["1", "free"])
def test_a_torn_read_is_called_so(asynchronous, train, framework, schedule):
    given = {"replicas": 2, "schedule": schedule, "optimizer": "sgd"}
    edits = BY_NAME["torn-read"].edits[framework]
    wrong = train(framework, trace=True, edits=edits, steps=UPDATES, **given)
    other = next(each for each in FRAMEWORKS if each != framework)
    right = asynchronous(**given)[other]
    verdict = compare_traces([Trace(wrong), right])
    assert verdict.departing() == [f"{framework}-2"]
    first = verdict.mismatches[0]
    assert (first.rung, first.place.tensor.split("/")[0]) == ("replicas", "read")
    assert re.fullmatch(
        r"a torn read: worker \d copied the weights while another one updated them, and got "
        r"embed/table, .* of version \d+; .* softmax/bias of version \d+",
        first.note,
    )
    assert first.note in report_text(verdict)


def report_text(verdict) -> str:
    """Return what the report says of a verdict's first mismatch."""
    outcome = Outcome(preset("language-model", "tiny"), verdict.sides, verdicts=[verdict])
    return mismatch_text(report_values(outcome, "-", "")["first_mismatch"])


def test_adams_step_counted_by_one_worker_is_found(asynchronous, train):
    edits = BY_NAME["steps-of-first-worker"].edits["tensorflow"]
    wrong = train(
        "tensorflow", trace=True, edits=edits, replicas=2, schedule="1", steps=UPDATES
    )
    right = asynchronous(replicas=2, schedule="1")["paddle"]
    verdict = compare_traces([Trace(wrong), right])
    assert verdict.departing() == ["tensorflow-2"]
    assert verdict.mismatches[0].place.tensor == "optimizer/beta1_power"


def test_a_schedule_that_cannot_be_is_a_mismatch(asynchronous, tmp_path):
    """A worker cannot have read weights of later updates, or take a step twice."""
    traces = asynchronous(replicas=2, schedule="1")
    for name, value in (("read", 9), ("batch", 4), ("worker", 7)):
        changed = {
            label: _Changed(trace, 5, f"schedule/{name}", value)
            for label, trace in traces.items()
        }
        verdict = compare_traces(list(changed.values()))
        assert {each.rung for each in verdict.mismatches[:1]} == {"batch"}, name
        assert verdict.mismatches[0].place.tensor == f"schedule/{name}"
        assert verdict.mismatches[0].place.step == 5


class _Changed:
    """A trace with another value in one tensor of one step."""

    def __init__(self, trace: Trace, step: int, name: str, value: int):
        self._trace, self._step, self._name, self._value = trace, step, name, value
        self.side, self.folder, self.header = trace.side, trace.folder, trace.header
        self.index, self.numbers, self.cut = trace.index, trace.numbers, trace.cut

    def read(self, step: int):
        tensors = self._trace.read(step)
        return tensors | ({self._name: np.array(self._value)} if step == self._step else {})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_free_run_is_repeated_to_the_bit_by_its_schedule(train, framework):
    free = train(framework, replicas=3)
    again = train(framework, replicas=3, schedule=free / "schedule.jsonl")
    for name in ("losses.csv", "schedule.jsonl"):
        assert (free / name).read_bytes() == (again / name).read_bytes()
    first, updates = read_schedule(free / "schedule.jsonl", 3)
    assert (first, len(updates)) == (0, 3 * 3 * PER_EPOCH)
    assert len(read_losses(free / "losses.csv")) == 3 * PER_EPOCH
    summary = json.loads((free / "summary.json").read_text())
    assert len(summary["valid_perplexity"]) == 3
    assert summary["strategy"] == "asynchronous"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_not_recorded_has_the_losses_of_what_is(asynchronous, train, framework):
    recorded = asynchronous(replicas=2, schedule="1")[framework]
    steps = RecordedSteps(recorded.side, "token")
    for number, tensors in recorded.steps():
        steps.add(number, tensors)
    assert [each.step for each in steps.steps] == list(range(len(steps.steps)))
    rows = read_losses(train(framework, replicas=2, schedule="1") / "losses.csv")
    assert len(steps.steps) > PER_EPOCH
    assert compare_untraced(framework, steps.steps, rows) is None
    assert [row[2] for row in rows[: len(steps.steps)]] == [e.tokens for e in steps.steps]


@pytest.mark.parametrize(
    ("saver", "loader"), [("paddle", "tensorflow"), ("tensorflow", "paddle")]
)
def test_checkpoints_carry_over_to_synchronous_training_and_back(train, saver, loader):
    first = train(saver, replicas=2, schedule="1", steps=PER_EPOCH)
    synchronous = {"strategy": None, "replicas": 3, "resume": first, "steps": 2 * PER_EPOCH}
    ours, theirs = (train(each, **synchronous) for each in (saver, loader))
    losses = [[row[1] for row in read_losses(each / "losses.csv")] for each in (ours, theirs)]
    np.testing.assert_allclose(*losses, rtol=1e-11)
    back = train(saver, replicas=2, schedule="1", resume=theirs)
    first_update, updates = read_schedule(back / "schedule.jsonl", 2)
    assert (first_update, len(updates)) == (4 * PER_EPOCH, 2 * PER_EPOCH)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": "/nowhere"}, "--schedule is '/nowhere': No such file or directory"),
        ({"schedule": "-1"}, "No such file or directory; allowed: free, a seed from 0 on"),
        ({"schedule": "free", "staleness": 2}, "--staleness is 2 and --schedule is 'free'"),
        ({"staleness": 2}, "--staleness is 2 and --schedule is 'free'"),
        ({"schedule": "1", "staleness": -1}, "--staleness is -1; allowed: >= 0"),
        (
            {"schedule": "1", "strategy": None},
            "--schedule is '1'; not allowed for the strategy",
        ),
        (
            {"trace": "trace", "isolate": True},
            "--isolate is given with --strategy asynchronous",
        ),
    ],
)
def test_bad_use_is_one_line(framework, text, cache, tmp_path, given, message):
    values = {"strategy": "asynchronous", "data": text, "cache": cache, "out": tmp_path / "run"}
    if "trace" in given:
        given = given | {"trace": tmp_path / "trace"}
    status, _, errors = framework.train(*flags(**values | given)).wait()
    assert message in assert_one_line(status, errors)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_schedule_that_does_not_fit_is_one_line(frameworks, framework, text, cache, tmp_path):
    path = tmp_path / "schedule.jsonl"
    for updates, workers, message in (
        (drawn(1, 3, 15, 1), 3, "schedule.jsonl:4: worker is 2; allowed: 0 to 1"),
        (drawn(5, 2, 15, 3), 2, "where an epoch ends or a checkpoint is due"),
        (drawn(1, 2, 5, 1), 2, "has the updates 0 to 9; the run needs 10 to 19"),
    ):
        path.write_text(schedule_text(updates, workers))
        given = {"strategy": "asynchronous", "data": text, "cache": cache, "schedule": path}
        job = frameworks[framework].train(*flags(**given, out=tmp_path / str(workers)))
        status, _, errors = job.wait()
        assert message in assert_one_line(status, errors)
