"""What single strategies do besides what tests/test_strategies.py says of all of them."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    LOGGED,
    STEPS,
    assert_one_line,
    children,
    ended,
    flags,
    wait_for,
    wait_for_checkpoint,
)

from parity.report.mismatch import mismatch_text
from parity.report.terminal import report_text
from parity.report.verdict_page import report_html
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.faults.fault import Edit
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec, preset
from parity.twins.training.checkpoint import newest_checkpoint
from parity.twins.training.loss_table import read_losses

UPDATES = 24  # of asynchronous workers
STREAM = {"optimizer": "adam", "batching": "stream", "num_layers": 1}
EMPTY = 4  # the step in which only three rows have a token, the first ones
# of those that several strategies can make, the one of the first
BY_NAME = {fault.name: fault for fault in reversed(CATALOGUE)}
OF_SERVERS = {fault.name: fault for fault in CATALOGUE if fault.setting == "served workers"}
THREADS = {"strategy": "asynchronous", "replicas": 2, "schedule": "1", "optimizer": "adam"}
SERVED = {"strategy": "parameter-server", "dtype": "float32", "optimizer": "sgd"}


@pytest.fixture
def start(frameworks, text, cache, tmp_path):
    """Return a function that starts a training and returns its Job and its folder."""
    numbers = iter(range(99))

    def run(framework, edits=(), out=None, **values):
        out = out or tmp_path / str(next(numbers))
        words = flags(**{"dtype": "float64", "data": text, "cache": cache, "out": out} | values)
        return frameworks[framework].train(*words, edits=edits), out

    return run


@pytest.fixture
def refused(start):
    """Return a function that returns the line in which a training is refused."""

    def run(framework, **values) -> str:
        job, out = start(framework, **values)
        status, _, errors = job.wait()
        line = assert_one_line(status, errors)
        assert errors.count("\n") == 1, "processes were started"
        assert not (out / "run.json").exists()
        return line

    return run


# average-gradients, with equal weights: the tutorials' average, judged as what it is


EQUAL = {"strategy": "average-gradients", "shard_weights": "equal"}


@pytest.fixture
def record(trainings):
    """Return a function that records a training of TensorFlow."""
    return lambda **given: Trace(trainings.run(["tensorflow"], "trace", **given)[0])


def test_on_uneven_shards_it_is_what_it_says_and_a_known_difference(record):
    """7 rows of 5 tokens as 4 and 3, and once 3 and 0; every rung of it is judged."""
    towers, trace = (record(**STREAM | each) for each in ({}, EQUAL))
    verdict = compare_traces([towers, trace])
    assert verdict.matches, verdict.mismatches
    label = "tensorflow-2 average-gradients"
    from_oracle = verdict.pairs[label, "oracle"]
    assert max(distance.relative for distance in from_oracle.values()) < 1e-11
    assert from_oracle["weight"].used is not None
    apart = verdict.pairs["tensorflow-2 towers", label]
    assert apart["gradient"].relative > 1e-3
    known = verdict.known[label]
    assert (known.compared, known.uneven, known.first) == (STEPS, STEPS, 0)
    assert known.tokens == [20, 15]
    assert 1e-3 < known.distance < known.largest
    assert known.largest_at == EMPTY
    # the shard without a token counts, too: half of the gradient is missing
    assert known.largest == pytest.approx(0.5)
    assert known.loss != known.exact_loss

    outcome = Outcome(Spec.from_json(trace.header["spec"]), verdict.sides, verdicts=[verdict])
    values = report_values(outcome, "tiny", "python -m parity run")
    assert values["verdict"] == "match"
    (told,) = values["runs"][0]["known_differences"]
    assert (told["side"], told["first"], told["tokens"]) == (label, 0, [20, 15])
    text, page = " ".join(report_text(values).split()), report_html(values)
    assert text.endswith(f"a known difference of {label}")
    for each in (text, page):
        assert f"its gradient differs from the exact one by {known.distance:.2g}" in each


def test_on_equal_shards_it_is_the_exact_training(record):
    """6 rows as 3 and 3 have as many tokens each, as long as all batches are full."""
    verdict = compare_traces([record(**STREAM | EQUAL, batch_size=6, steps=4)])
    assert verdict.matches, verdict.mismatches
    from_oracle = verdict.pairs["tensorflow-2", "oracle"]
    assert max(distance.relative for distance in from_oracle.values()) < 1e-11
    known = verdict.known["tensorflow-2"]
    assert (known.uneven, known.first) == (0, None)
    assert "it had no effect" in str(known)


# asynchronous: workers that keep to a schedule or run freely


def test_a_torn_read_is_called_so(trainings):
    framework, _ = FRAMEWORKS
    torn = THREADS | {"schedule": "free", "optimizer": "sgd", "steps": UPDATES}
    edits = BY_NAME["torn-read"].edits[framework]
    verdict = compare_traces([Trace(trainings.run([framework], "trace", edits, **torn)[0])])
    assert verdict.departing() == [f"{framework}-2"]
    first = verdict.mismatches[0]
    assert (first.rung, first.place.tensor.split("/")[0]) == ("replicas", "read")
    assert re.fullmatch(
        r"a torn read: worker \d has embed/table, .* of version \d+; "
        r".* softmax/bias of version \d+",
        first.note,
    )
    outcome = Outcome(preset("language-model", "tiny"), verdict.sides, verdicts=[verdict])
    assert first.note in mismatch_text(report_values(outcome, "-", "")["first_mismatch"])


def test_a_schedule_that_cannot_be_is_a_mismatch(record):
    """A worker cannot read weights of later updates, take a step twice, or another's rows."""
    free = THREADS | STREAM | {"schedule": "free", "replicas": 3, "steps": UPDATES}
    trace = record(**free)  # which tests/test_strategies.py finds right
    recorded = {n: int(trace.read(5)[f"schedule/{n}"]) for n in ("worker", "batch")}
    for name, value in (
        ("read", 9),
        ("batch", recorded["batch"] + 3),
        ("worker", (recorded["worker"] + 1) % 3),
        ("worker", 7),
        ("first_row", 1),
    ):
        changed = _Changed(trace, 5, f"schedule/{name}", value)
        verdict = compare_traces([changed])
        first = verdict.mismatches[0]
        assert (first.rung, first.place.step) == ("batch", 5), (name, value)
        assert first.place.tensor == f"schedule/{name}"


class _Changed(Trace):
    """A trace with another value in one tensor of one step."""

    def __init__(self, trace: Trace, step: int, name: str, value: int):
        super().__init__(trace.folder)
        self._step, self._name, self._value = step, name, value

    def read(self, step: int):
        changed = {self._name: np.array(self._value)} if step == self._step else {}
        return super().read(step) | changed


# what is refused before anything is started

WORKERS = {"strategy": "asynchronous"}
TOO_MANY = {"replicas": 4, "processes": 2}
SERVERS = {"strategy": "parameter-server"} | TOO_MANY
REFUSED = [
    ("paddle", WORKERS | {"schedule": "/nowhere"}, "--schedule is '/nowhere': No such file"),
    (
        "paddle",
        WORKERS | {"schedule": "-1"},
        "No such file or directory; allowed: free",
    ),
    ("paddle", WORKERS | {"staleness": 2}, "--staleness is 2 and --schedule is 'free'"),
    (
        "paddle",
        WORKERS | {"schedule": "1", "staleness": -1},
        "--staleness is -1; allowed: >=",
    ),
    ("paddle", {"schedule": "1"}, "--schedule is '1'; not allowed for the strategy"),
    ("tensorflow", {"strategy": "multi-worker"} | TOO_MANY, "allowed on CPUs: one replica per"),
    ("tensorflow", SERVERS, "--replicas is 4 in 2 processes; allowed"),
    ("paddle", SERVED | TOO_MANY, "--replicas is 4 in 2 processes; allowed for"),
    ("paddle", SERVED | {"dtype": "float64"}, "--dtype is 'float64'; allowed for parameter-"),
    ("paddle", SERVED | {"optimizer": "adam"}, "--optimizer is 'adam'; allowed for parameter-"),
    ("paddle", SERVED | {"servers": 0}, "--servers is 0; allowed: >= 1"),
    ("paddle", SERVED | {"sync": True}, "synchronous parameter servers have them wait for"),
]


@pytest.mark.parametrize(("framework", "given", "message"), REFUSED)
def test_bad_use_is_one_line(refused, framework, given, message):
    assert message in refused(framework, **given)


# several processes, and servers


def test_a_push_that_a_server_applies_twice_ends_the_training(start):
    push = "        self._executor.run(program, scope=scope)\n"
    edits = [Edit("paddle_impl/strategies/server_connection.py", push, 2 * push)]
    job, _ = start("paddle", **SERVED, replicas=2, schedule=1, steps=6, edits=edits)
    status, _, errors = job.wait()
    assert status not in (0, 2), errors
    # Seen while it waits for its push; before the next one, if it saw the first alone applied.
    assert re.search(
        r"the servers have applied \[2\] pushes of rank \d, which has made 1"
        r"|the servers have applied \[\[\d, \d\]\] pushes of each worker, "
        r"of which rank \d has made 1",
        errors,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["stale-read", "update-applied-twice"])
def test_what_a_schedule_of_paddles_servers_does_not_have_is_found(trainings, fault):
    """The hunt in float64 leaves them out, for they train in float32 alone."""
    given = SERVED | {"replicas": 2, "schedule": "free", "steps": UPDATES}
    edits = OF_SERVERS[fault].edits["paddle"]
    verdict = compare_traces([Trace(trainings.run(["paddle"], "trace", edits, **given)[0])])
    assert verdict.departing() == ["paddle-2"]
    rung = "replicas" if fault == "stale-read" else "weight"
    assert verdict.mismatches[0].rung == rung


@pytest.mark.parametrize(
    ("given", "killed", "name"),
    [
        ({"strategy": "parameter-server", "sync": True}, 2, "ps 0"),
        ({"strategy": "parameter-server"}, 1, "worker 0"),
    ],
)
def test_a_killed_process_ends_all_and_is_named(start, given, killed, name):
    """Of two ranks and a server, or of a chief, two workers and a server, in TensorFlow."""
    given = STREAM | given | {"processes": 2, "replicas": 2}
    job, out = start("tensorflow", **given, checkpoint_every=5, epochs=50)
    wait_for_checkpoint(out)
    members = children(job.pid)
    os.kill(members[killed], signal.SIGKILL)
    errors = ended(job, 4)
    (line,) = [each for each in errors.splitlines() if each.startswith("error: ")]
    assert re.fullmatch(rf"error: {name} \(.*\) is gone: its connection is closed", line)
    assert not any(Path(f"/proc/{member}").exists() for member in members)


def test_a_server_that_loses_its_engine_ends_all_and_it_goes_on(start):
    given = SERVED | {"replicas": 2, "servers": 2, "steps": 60, "checkpoint_every": 5}
    given |= {"schedule": 1, "batching": "stream", "epochs": 12}
    job, out = start("paddle", **given)
    wait_for_checkpoint(out)
    ours = children(job.pid)
    engines = [each for member in ours for each in children(member)]
    assert (len(ours), len(engines)) == (4, 2)
    os.kill(engines[0], signal.SIGKILL)
    errors = ended(job, 4)
    (line,) = [each for each in errors.splitlines() if each.startswith("error: ")]
    assert line.startswith("error: ps 0 "), errors
    assert not LOGGED.search(errors), errors
    for each in (*ours, *engines):
        wait_for(lambda each=each: not Path(f"/proc/{each}").exists(), seconds=10)
    notes: list[str] = []
    newest = newest_checkpoint(out / "checkpoints", notes)
    assert newest is not None
    assert not notes, "a checkpoint is not whole"
    job, _ = start("paddle", **given | {"steps": newest.step + 1}, out=out, resume="")
    ended(job)
    assert len(read_losses(out / "losses.csv")) == newest.step + 1


def test_a_signal_stops_paddles_servers_with_a_checkpoint(start):
    given = SERVED | {"replicas": 2, "steps": 400, "checkpoint_every": 5, "epochs": 99}
    job, out = start("paddle", **given)
    wait_for_checkpoint(out)
    os.kill(job.pid, signal.SIGTERM)
    errors = ended(job, 143)
    step = int(re.search(r"error: stopped at step (\d+); a checkpoint is written", errors)[1])
    newest = newest_checkpoint(out / "checkpoints", [])
    assert newest is not None
    assert newest.step == step
