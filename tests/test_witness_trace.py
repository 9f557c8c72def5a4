"""Traces read by safetensors and JSON alone, and compared with what the training returned.

One module writes the traces of both sides, and one reads them for the comparison: values that
are lost, altered or recorded under another name there would be so for both sides.
"""

import dataclasses
import json
import zlib

import numpy as np
import pytest
from oracle_side import Batches, OracleStrategy, small_spec, train_with
from safetensors.numpy import load_file

from parity.trace.reader import Trace
from parity.twins.cli.options import TrainOptions

STEPS = 6


class Remembering(OracleStrategy):
    """Keeps what it returned for each step, and the rate that it was given."""

    def __init__(self, spec, build):
        super().__init__(spec, build)
        self.results, self.rates = [], []

    def step(self, inputs, state, learning_rate, record=False):
        result = super().step(inputs, state, learning_rate, record)
        # a side returns the recurrent state once, as `state`
        of_step = {n: a for n, a in result.tensors.items() if n[8:] not in result.state}
        result = dataclasses.replace(result, tensors=of_step)
        copies = {name: np.array(array) for name, array in result.tensors.items()}
        copies |= {f"forward/{name}": np.array(array) for name, array in result.state.items()}
        copies |= {
            "loss/replicas": np.array(result.losses),
            "loss/global": result.losses[0] + result.losses[1],
            "gradient_norm": np.array(result.gradient_norm, self.spec.training.dtype),
        }
        self.results.append(copies)
        self.rates.append(learning_rate)
        return result


@pytest.fixture(params=["float32", "float64"])
def recorded(request, tmp_path):
    """Record a short run over the end of an epoch; return its strategy and its folder."""
    spec = small_spec(dtype=request.param, learning_rate=1 / 3)
    options = TrainOptions(
        out=tmp_path / "run", trace=tmp_path / "trace", replicas=2, threads=1, steps=STEPS
    )
    trained, _ = train_with(Remembering, spec, options)
    return trained, tmp_path / "trace"


def test_a_trace_holds_what_the_training_returned(recorded):
    strategy, folder = recorded
    for step, expected in enumerate(strategy.results):
        tensors = load_file(folder / f"step-{step:06d}.safetensors")
        for name, array in expected.items():
            np.testing.assert_array_equal(tensors[name], array, err_msg=name)
            assert tensors[name].dtype == array.dtype, name


def test_a_trace_holds_the_batch_that_each_step_read(recorded):
    """With the shares of the replicas, and the rate at which the step was trained."""
    strategy, folder = recorded
    batches = Batches(strategy.spec, 4)
    for step in range(STEPS):
        tensors = load_file(folder / f"step-{step:06d}.safetensors")
        inputs = ("tokens", "targets", "lengths", "carry", "sizes", "learning_rate")
        of_batch = {name for name in tensors if name.startswith("batch/")}
        assert of_batch == {f"batch/{name}" for name in inputs}
        batch = batches.batch(step)
        for name in ("tokens", "targets", "lengths"):
            np.testing.assert_array_equal(tensors[f"batch/{name}"], getattr(batch, name))
        assert bool(tensors["batch/carry"]) is (step not in (0, 4))
        assert tensors["batch/sizes"].tolist() == [3, 2]
        assert float(tensors["batch/learning_rate"]) == strategy.rates[step]
    assert strategy.rates == [1 / 3] * 4 + [1 / 6] * 2


def test_the_reader_returns_what_the_files_hold(recorded):
    strategy, folder = recorded
    trace = Trace(folder)
    assert trace.numbers() == list(range(STEPS))
    assert trace.header["spec"]["training"]["learning_rate"] == 1 / 3
    for step, expected in enumerate(strategy.results):
        read = trace.read(step)
        assert set(read) == set(load_file(folder / f"step-{step:06d}.safetensors"))
        for name, array in expected.items():
            np.testing.assert_array_equal(read[name], array, err_msg=name)


def test_digests_are_of_type_shape_and_bytes(recorded):
    """As TRACE.md says, worked out without the code that writes them."""
    _, folder = recorded
    lines = (folder / "steps.jsonl").read_text().splitlines()
    assert len(lines) == STEPS
    for step, line in enumerate(map(json.loads, lines)):
        tensors = load_file(folder / f"step-{step:06d}.safetensors")
        assert line["step"] == step
        assert set(line["crc32"]) == set(tensors)
        for name, digest in line["crc32"].items():
            array = tensors[name]
            content = f"{array.dtype.str}{array.shape}".encode() + array.tobytes()
            assert digest == f"{zlib.crc32(content):08x}", name
