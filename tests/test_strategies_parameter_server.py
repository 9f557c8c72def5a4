"""TensorFlow's parameter servers: synchronous ones have the numbers of the towers, and
asynchronous ones those of `asynchronous` by the same schedule, or of the oracle's replay."""

import os
import re
import signal
from pathlib import Path

import pytest
from conftest import STEPS, TINY_SEQ2SEQ, assert_one_line, flags, wait_for
from equal_traces import assert_equal, assert_goes_on, differing
from test_processes_lost import ranks

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces

STREAM = {"optimizer": "adam", "batching": "stream"}
PAIRS = TINY_SEQ2SEQ | {"num_layers": 2, "bidirectional": True, "optimizer": "adam"}
SYNCHRONOUS = {"strategy": "parameter-server", "sync": True}
UPDATES = 16
ADDED = {"read", "schedule"}  # what only a trace of asynchronous training has


@pytest.fixture
def train(frameworks, text, cache, tmp_path):
    """Return a function that starts a training in TensorFlow and returns its Job."""

    def start(name="run", edits=(), trace=False, **given):
        values = {"dtype": "float64", "data": text, "cache": cache} | STREAM | given
        where = f"--{'trace' if trace else 'out'}={tmp_path / name}"
        return frameworks["tensorflow"].train(*flags(**values), where, edits=edits)

    return start


@pytest.fixture
def recorded(train, tmp_path):
    """Return a function that records a training of parameter servers and returns the Trace."""

    def run(name="trace", **given) -> Trace:
        status, _, errors = train(name, trace=True, **{"steps": STEPS} | given).wait()
        assert (status, "error" in errors.lower()) == (0, False), errors
        return Trace(tmp_path / name)

    return run


@pytest.mark.parametrize(
    ("processes", "servers", "given"),
    [(1, 2, {}), (2, 2, {"kernels": "plain"}), (3, 1, {"optimizer": "sgd"})],
)
def test_the_numbers_are_those_of_the_towers(run_both, recorded, processes, servers, given):
    """7 rows divide by neither 2 nor 3; in the fifth batch some replicas have no token."""
    given = STREAM | given
    towers = run_both(replicas=processes, **given)["tensorflow"]
    counts = {"processes": processes, "servers": servers, "replicas": processes}
    trace = recorded(**SYNCHRONOUS, **counts, **given)
    assert (trace.side.processes, trace.side.settings.servers) == (processes, servers)
    assert_equal(towers, trace)


def test_two_replicas_in_each_process_are_four(run_both, recorded):
    towers = run_both(replicas=4, **STREAM)["tensorflow"]
    assert_equal(towers, recorded(**SYNCHRONOUS, processes=2, replicas=4))


@pytest.mark.parametrize("isolate", [False, True])
def test_an_encoder_and_a_decoder_have_the_numbers_of_the_towers(
    run_both, recorded, pairs, isolate
):
    given = {**PAIRS, "data": pairs, "isolate": isolate or None, "batching": None}
    towers = run_both(replicas=2, **given)["tensorflow"]
    assert_equal(towers, recorded(**SYNCHRONOUS, servers=2, replicas=2, **given))


def test_a_repeated_run_has_the_same_bits_with_any_number_of_servers(recorded):
    """Of three ranks, whose sum could be in another order each time."""
    three = SYNCHRONOUS | {"processes": 3, "replicas": 3}
    runs = [recorded(str(servers), **three, servers=servers) for servers in (1, 2)]
    assert differing(*runs) == []


def test_workers_by_a_schedule_have_the_bits_of_threads(run_both, recorded):
    given = {"replicas": 2, "schedule": "1", "staleness": 1, "steps": STEPS}
    threads = run_both(strategy="asynchronous", **STREAM, **given)["tensorflow"]
    processes = recorded(strategy="parameter-server", servers=2, **given)
    assert differing(threads, processes) == []
    assert compare_traces([threads, processes]).matches


def test_one_worker_has_the_bits_of_a_single_tower(run_both, recorded):
    """Its trace has the weights that it read, and its schedule, beside all that is compared."""
    tower = run_both(replicas=1, **STREAM)["tensorflow"]
    served = recorded(strategy="parameter-server", replicas=1, servers=2)
    for step in range(STEPS):
        first, second = tower.read(step), served.read(step)
        assert {name.split("/")[0] for name in second.keys() - first.keys()} <= ADDED
        assert [name for name in first if first[name].tobytes() != second[name].tobytes()] == []


def test_a_free_run_is_replayed(recorded):
    trace = recorded(
        strategy="parameter-server", processes=3, replicas=3, servers=2, steps=UPDATES
    )
    verdict = compare_traces([trace])
    assert verdict.matches, verdict.mismatches[0]
    for pair in verdict.pairs.values():
        assert max(distance.relative for distance in pair.values()) < 1e-11


def test_a_training_goes_on_with_another_number_of_servers(train, tmp_path):
    """To the bit, as one that never stopped."""

    def run(name, **given):
        values = SYNCHRONOUS | {"processes": 2, "servers": 2} | given
        status, _, errors = train(name, **values).wait()
        assert status == 0, errors
        return tmp_path / name

    whole, first = run("whole", steps=12), run("first", steps=8)
    last = run("last", steps=12, resume=first, servers=1)
    assert_goes_on(whole, (first, last), "step-00000012.safetensors")


@pytest.mark.parametrize(
    ("given", "killed", "name"),
    [
        (SYNCHRONOUS, 2, "ps 0"),
        (SYNCHRONOUS, 1, "rank 1"),
        ({"strategy": "parameter-server"}, 1, "worker 0"),
    ],
)
def test_a_killed_process_ends_all_and_is_named(train, tmp_path, given, killed, name):
    """Of two ranks and a server, or of a chief, two workers and a server."""
    job = train(**given, processes=2, replicas=2, checkpoint_every=5, epochs=50)
    wait_for(lambda: any((tmp_path / "run" / "checkpoints").glob("step-*")), seconds=120)
    members = ranks(job.pid)
    os.kill(members[killed], signal.SIGKILL)
    status, _, errors = job.wait()
    assert status == 4, errors
    (line,) = [each for each in errors.splitlines() if each.startswith("error: ")]
    assert re.fullmatch(rf"error: {name} \(.*\) is gone: its connection is closed", line)
    assert not any(Path(f"/proc/{member}").exists() for member in members)


def test_a_worker_has_one_replica(train):
    asked = {"strategy": "parameter-server", "processes": 2, "replicas": 4}
    status, _, errors = train(**asked).wait()
    assert "--replicas is 4 in 2 processes; allowed" in assert_one_line(status, errors)
    assert errors.count("\n") == 1, "processes were started"
