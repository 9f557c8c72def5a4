"""TensorFlow's `multi-worker`: the numbers of one process, computed by several."""

import re

import pytest
from conftest import STEPS, TINY_SEQ2SEQ, assert_one_line, flags
from equal_traces import assert_copies_equal, assert_equal, assert_goes_on, differing

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces

STREAM = {"optimizer": "adam", "batching": "stream"}
# how a line begins that TensorFlow logs, by absl, glog or Python
LOGGED = re.compile(r"^(\d{4}-\d\d-\d\d |[IWEF]\d{4} |INFO|WARNING|ERROR)", re.MULTILINE)
PAIRS = TINY_SEQ2SEQ | {"num_layers": 2, "bidirectional": True, "optimizer": "adam"}


@pytest.fixture
def multi_worker(frameworks, text, cache, tmp_path):
    """Return a function that records TensorFlow's `multi-worker` and returns the Trace."""

    def run(processes, again=0, edits=(), **given) -> Trace:
        folder = tmp_path / f"{processes}-{again}"
        values = {"steps": STEPS, "dtype": "float64", "data": text, "cache": cache} | given
        values |= {"strategy": "multi-worker", "processes": processes, "replicas": processes}
        words = [*flags(**values), f"--trace={folder}"]
        status, _, errors = frameworks["tensorflow"].train(*words, edits=edits).wait()
        assert status == 0, errors
        assert not LOGGED.search(errors), errors
        return Trace(folder)

    return run


@pytest.fixture
def trained(frameworks, text, cache, tmp_path):
    """Return a function that trains without a trace and returns the folder of the run."""

    def run(name, **given):
        folder = tmp_path / name
        values = {"dtype": "float64", "data": text, "cache": cache, "out": folder} | given
        status, _, errors = frameworks["tensorflow"].train(*flags(**STREAM, **values)).wait()
        assert status == 0, errors
        assert not LOGGED.search(errors), errors
        return folder

    return run


@pytest.mark.parametrize(
    ("processes", "given"),
    [(1, {}), (2, {"kernels": "plain"}), (3, {}), (4, {"optimizer": "sgd"})],
)
def test_the_numbers_are_those_of_the_towers(run_both, multi_worker, processes, given):
    """7 rows divide by none of 2, 3 and 4; in the fifth batch some replicas have no token."""
    given = STREAM | given
    towers = run_both(replicas=processes, **given)["tensorflow"]
    trace = multi_worker(processes, **given)
    assert trace.header["processes"] == processes
    assert_equal(towers, trace)
    assert_copies_equal(trace, processes)


@pytest.mark.parametrize("isolate", [False, True])
def test_an_encoder_and_a_decoder_have_the_numbers_of_the_towers(
    run_both, multi_worker, pairs, isolate
):
    """Decoding included; and isolated, with the oracle's activations in every layer."""
    given = {**PAIRS, "data": pairs, "isolate": isolate or None}
    towers = run_both(replicas=2, **given)["tensorflow"]
    assert_equal(towers, multi_worker(2, **given))


def test_a_repeated_run_has_the_same_bits(multi_worker):
    """Of three processes, where sums could be in another order each time."""
    runs = [multi_worker(3, again, **STREAM) for again in range(2)]
    assert differing(*runs) == []


def test_single_precision_is_within_the_bounds_of_rounding(run_both, multi_worker):
    given = {**STREAM, "dtype": "float32"}
    verdict = compare_traces(
        [*run_both(replicas=3, **given).values(), multi_worker(3, **given)]
    )
    assert verdict.matches, verdict.mismatches


def test_a_training_goes_on_in_one_process_and_back(trained):
    """The losses of all steps and the evaluations are those of one process."""
    processes = {"strategy": "multi-worker", "processes": 2}
    single = trained("single", steps=12, strategy="mirrored")
    first = trained("first", steps=3, **processes)
    second = trained("second", steps=8, resume=first, strategy="mirrored")
    last = trained("last", steps=12, resume=second, **processes)
    assert_goes_on(single, (first, second, last), "step-00000012.safetensors")


def test_two_replicas_in_one_process_are_refused(frameworks, text, cache, tmp_path):
    values = {"data": text, "cache": cache, "out": tmp_path, "strategy": "multi-worker"}
    words = flags(**values, replicas=4, processes=2)
    status, _, errors = frameworks["tensorflow"].train(*words).wait()
    complaint = assert_one_line(status, errors)
    assert (
        "--replicas is 4 and --processes is 2; allowed on CPUs: one replica per process"
        in complaint
    )
