"""Paddle's `data-parallel`: the numbers of one process, computed by several."""

import pytest
from conftest import STEPS, TINY_SEQ2SEQ, flags
from equal_traces import assert_copies_equal, assert_equal, assert_goes_on, differing

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces

STREAM = {"optimizer": "adam", "batching": "stream"}
PAIRS = TINY_SEQ2SEQ | {"num_layers": 2, "bidirectional": True, "optimizer": "adam"}


@pytest.fixture
def data_parallel(frameworks, text, cache, tmp_path):
    """Return a function that records Paddle's `data-parallel` and returns the Trace."""

    def run(processes, replicas, again=0, **given) -> Trace:
        folder = tmp_path / f"{processes}-{replicas}-{again}"
        values = {"steps": STEPS, "dtype": "float64", "data": text, "cache": cache} | given
        values |= {"strategy": "data-parallel", "processes": processes, "replicas": replicas}
        job = frameworks["paddle"].train(*flags(**values), f"--trace={folder}")
        status, _, errors = job.wait()
        assert status == 0, errors
        return Trace(folder)

    return run


@pytest.fixture
def trained(frameworks, text, cache, tmp_path):
    """Return a function that trains without a trace and returns the folder of the run."""

    def run(name, **given):
        folder = tmp_path / name
        values = {"dtype": "float64", "data": text, "cache": cache, "out": folder} | given
        status, _, errors = frameworks["paddle"].train(*flags(**STREAM, **values)).wait()
        assert status == 0, errors
        return folder

    return run


@pytest.mark.parametrize(("processes", "replicas"), [(2, 2), (3, 3), (2, 4)])
def test_the_numbers_are_those_of_one_process(run_both, data_parallel, processes, replicas):
    """7 rows divide by none of 2, 3 and 4; in the fifth batch some replicas have no token."""
    single = run_both(replicas=replicas, **STREAM)["paddle"]
    trace = data_parallel(processes, replicas, **STREAM)
    assert trace.header["processes"] == processes
    assert_equal(single, trace)
    assert_copies_equal(trace, replicas)
    if replicas == 2:  # a sum of two has no order
        assert differing(single, trace) == []


@pytest.mark.parametrize("isolate", [False, True])
def test_an_encoder_and_a_decoder_have_the_numbers_of_one_process(
    run_both, data_parallel, pairs, isolate
):
    """Decoding included; and isolated, with the oracle's activations in every layer."""
    given = {**PAIRS, "data": pairs, "isolate": isolate or None}
    single = run_both(replicas=2, **given)["paddle"]
    assert differing(single, data_parallel(2, 2, **given)) == []


def test_a_repeated_run_has_the_same_bits(data_parallel):
    """Of three processes, where sums could be in another order each time."""
    runs = [data_parallel(3, 3, again, **STREAM) for again in range(2)]
    assert differing(*runs) == []


def test_single_precision_is_within_the_bounds_of_rounding(run_both, data_parallel):
    given = {**STREAM, "dtype": "float32"}
    verdict = compare_traces(
        [*run_both(replicas=3, **given).values(), data_parallel(3, 3, **given)]
    )
    assert verdict.matches, verdict.mismatches


def test_a_training_goes_on_in_one_process_and_back(trained):
    """Evaluations at the ends of epochs, and the losses of all steps, are those of one."""
    processes = {"strategy": "data-parallel", "processes": 2}
    single = trained("single", steps=12)
    first = trained("first", steps=3, **processes)
    second = trained("second", steps=8, resume=first)
    last = trained("last", steps=12, resume=second, **processes)
    assert_goes_on(single, (first, second, last), "step-00000012.safetensors")
