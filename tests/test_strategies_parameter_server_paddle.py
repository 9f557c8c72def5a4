"""Paddle's `parameter-server`: workers that are processes, and the engine's servers."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY_SEQ2SEQ, assert_one_line, flags, wait_for

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.faults.fault import Edit
from parity.twins.spec.schedule import read_schedule
from parity.twins.training.checkpoint import load_checkpoint, newest_checkpoint
from parity.twins.training.loss_table import read_losses

PER_EPOCH = 5  # steps of an epoch of the text
UPDATES = 24
SEQ2SEQ = TINY_SEQ2SEQ | {"num_layers": 1, "loss_per": "row", "beam": 2}
SERVED = {"strategy": "parameter-server", "dtype": "float32", "optimizer": "sgd"}
THREADS = SERVED | {"strategy": "asynchronous"}
# how a line begins that the engine logs
LOGGED = re.compile(r"^(rank \d: )?[IWEF]\d{4} ", re.MULTILINE)
BY_NAME = {fault.name: fault for fault in CATALOGUE if fault.setting == "served workers"}


@pytest.fixture
def start(frameworks, text, cache, tmp_path):
    """Return a function that starts a training and returns its Job and its folder."""
    numbers = iter(range(99))

    def run(edits=(), out=None, trace=False, **values):
        out = out or tmp_path / str(next(numbers))
        words = flags(**{"data": text, "cache": cache, "out": out} | values)
        words += [f"--trace={out}"] if trace else []
        return frameworks["paddle"].train(*words, edits=edits), out

    return run


@pytest.fixture
def train(start):
    """Return a function that trains, and returns the folder of the run."""

    def run(**values) -> Path:
        job, out = start(**values)
        status, _, errors = job.wait()
        assert status == 0, errors
        return out

    return run


@pytest.fixture
def record(train):
    """Return a function that records a training and returns its Trace."""
    return lambda **values: Trace(train(trace=True, **{"steps": UPDATES} | values))


def assert_alike(*traces: Trace) -> None:
    """Compare traces with each other and the oracle; their first update has the same bits."""
    verdict = compare_traces(traces)
    assert verdict.matches, verdict.mismatches[0]
    assert verdict.steps == UPDATES
    first, second = (trace.read(0) for trace in traces)
    assert first.keys() == second.keys()
    # a server rounds the learning rate times the gradient, and the update of one process not
    same = [name for name in first if not name.startswith("weight/")]
    assert all(first[name].tobytes() == second[name].tobytes() for name in same)


@pytest.mark.parametrize(("replicas", "servers"), [(1, 1), (2, 1), (3, 2)])
def test_processes_are_alike_to_threads_by_the_same_schedule(record, replicas, servers):
    """7 rows divide by neither 2 nor 3; in the fifth batch some workers have no token."""
    given = {"replicas": replicas, "schedule": 1, "staleness": 2, "batching": "stream"}
    served = record(**SERVED, servers=servers, **given)
    assert served.header["processes"] == replicas
    assert_alike(record(**THREADS, **given), served)


def test_an_encoder_and_a_decoder_are_alike_to_threads(record, pairs):
    given = {"data": pairs, "replicas": 2, "schedule": 2, **SEQ2SEQ}
    assert_alike(*(record(**given | each) for each in (THREADS, SERVED | {"servers": 2})))


def test_more_servers_than_parameters_is_possible(train):
    given = {"schedule": 1, "replicas": 2, "steps": 4}
    tables = [train(**SERVED, servers=n, **given) / "losses.csv" for n in (1, 9)]
    assert tables[0].read_bytes() == tables[1].read_bytes()


def test_a_free_run_is_replayed_and_repeated_by_its_schedule(train, record):
    verdict = compare_traces([record(**SERVED, replicas=3, schedule="free")])
    assert verdict.matches, verdict.mismatches[0]
    free = train(**SERVED, replicas=3, servers=2)
    again = train(**SERVED, replicas=3, schedule=free / "schedule.jsonl")
    for name in ("losses.csv", "schedule.jsonl"):
        assert (free / name).read_bytes() == (again / name).read_bytes()
    first, updates = read_schedule(free / "schedule.jsonl", 3)
    assert (first, len(updates)) == (0, 3 * 3 * PER_EPOCH)
    assert len(read_losses(free / "losses.csv")) == 3 * PER_EPOCH


def test_a_training_goes_on_to_the_bit_and_in_any_strategy(train):
    given = {"replicas": 2, "schedule": 1, "checkpoint_every": 4, "batching": "stream"}
    whole = train(**SERVED, **given, steps=12)
    first = train(**SERVED, **given, steps=4)
    last = train(**SERVED, **given, steps=12, resume=first, servers=2)
    assert read_losses(whole / "losses.csv")[4:] == read_losses(last / "losses.csv")
    name = "checkpoints/step-00000012.safetensors"
    ends = [load_checkpoint(folder / name).snapshot for folder in (whole, last)]
    for key, array in ends[0].items():
        np.testing.assert_array_equal(array, ends[1][key], err_msg=key)
    threads = train(**THREADS, **given, steps=12, resume=first)
    losses = [[row[1] for row in read_losses(each / "losses.csv")] for each in (threads, last)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize("fault", ["stale-read", "update-applied-twice"])
@pytest.mark.parametrize("schedule", ["1", "free"])
def test_what_the_schedule_does_not_have_is_found(record, fault, schedule):
    edits = BY_NAME[fault].edits["paddle"]
    verdict = compare_traces([record(**SERVED, replicas=2, schedule=schedule, edits=edits)])
    assert verdict.departing() == ["paddle-2"]
    rung = "replicas" if fault == "stale-read" else "weight"
    assert verdict.mismatches[0].rung == rung


def test_a_push_that_a_server_applies_twice_ends_the_training(start):
    push = "        self._executor.run(program, scope=scope)\n"
    edits = [Edit("paddle_impl/strategies/server_connection.py", push, 2 * push)]
    job, _ = start(**SERVED, replicas=2, schedule=1, steps=6, edits=edits)
    status, _, errors = job.wait()
    assert status not in (0, 2), errors
    # Seen while it waits for its push; before the next one, if it saw the first alone applied.
    assert re.search(
        r"the servers have applied \[2\] pushes of rank \d, which has made 1"
        r"|the servers have applied \[\[\d, \d\]\] pushes of each worker, "
        r"of which rank \d has made 1",
        errors,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"dtype": "float64"},
            "--dtype is 'float64'; allowed for parameter-server of ",
        ),
        (
            {"optimizer": "adam"},
            "--optimizer is 'adam'; allowed for parameter-server of",
        ),
        ({"replicas": 4, "processes": 2}, "--replicas is 4 in 2 processes; allowed for"),
        ({"servers": 0}, "--servers is 0; allowed: >= 1"),
        ({"sync": True}, "synchronous parameter servers have them wait for each other"),
    ],
)
def test_what_the_servers_cannot_do_is_one_line(start, given, message):
    job, out = start(**SERVED | {"replicas": 2} | given)
    status, _, errors = job.wait()
    assert message in assert_one_line(status, errors)
    assert errors.count("\n") == 1, "processes were started"
    assert not (out / "run.json").exists()


def members(process: int) -> list[int]:
    """Return the processes that a process has started, in the order of their numbers."""
    listed = [
        child
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return sorted(map(int, listed))


@pytest.mark.parametrize("lost", ["rank 0", "rank 1", "ps 0", "ps 1", "its engine"])
def test_a_lost_process_ends_the_training_and_it_goes_on(start, train, lost):
    given = SERVED | {"replicas": 2, "servers": 2, "steps": 60, "checkpoint_every": 5}
    given |= {"schedule": 1, "batching": "stream"}
    job, out = start(**given)
    wait_for(lambda: any((out / "checkpoints").glob("step-*")), seconds=120)
    ours = members(job.pid)
    engines = [each for member in ours for each in members(member)]
    assert (len(ours), len(engines)) == (4, 2)
    of_name = dict(zip(("rank 0", "rank 1", "ps 0", "ps 1"), ours, strict=True))
    os.kill(of_name.get(lost, engines[0]), signal.SIGKILL)
    status, _, errors = job.wait()
    assert status == 4, errors
    name = lost if lost in of_name else "ps 0"
    (line,) = [each for each in errors.splitlines() if each.startswith("error: ")]
    assert line.startswith(f"error: {name} "), errors
    assert not LOGGED.search(errors), errors
    for each in (*ours, *engines):
        wait_for(lambda each=each: not Path(f"/proc/{each}").exists(), seconds=10)
    notes: list[str] = []
    saved = newest_checkpoint(out / "checkpoints", notes)
    assert saved is not None
    assert not notes, "a checkpoint is not whole"
    train(**given, out=out, resume="")
    whole = train(**given)
    assert read_losses(out / "losses.csv") == read_losses(whole / "losses.csv")


def test_a_training_starts_again_by_itself(start):
    job, out = start(
        **SERVED, replicas=2, steps=60, checkpoint_every=5, batching="stream", max_restarts=2
    )
    wait_for(lambda: any((out / "checkpoints").glob("step-*")), seconds=120)
    os.kill(members(job.pid)[2], signal.SIGKILL)
    status, _, errors = job.wait()
    assert status == 0, errors
    assert "starting again from the newest checkpoint, 1 of 2 times" in errors
    assert len(read_losses(out / "losses.csv")) == 60


@pytest.mark.parametrize("to", ["all", "one"])
def test_a_signal_stops_all_with_a_checkpoint(start, to):
    """Whether the supervisor gets it, which passes it on, or a single rank."""
    job, out = start(**SERVED, replicas=2, steps=400, checkpoint_every=5, epochs=99)
    wait_for(lambda: any((out / "checkpoints").glob("step-*")), seconds=120)
    os.kill(job.pid if to == "all" else members(job.pid)[1], signal.SIGTERM)
    status, _, errors = job.wait()
    assert status == 143, errors
    step = int(re.search(r"error: stopped at step (\d+); a checkpoint is written", errors)[1])
    saved = newest_checkpoint(out / "checkpoints", [])
    assert saved is not None
    assert saved.step == step
