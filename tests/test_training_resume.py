"""An interrupted training continues as if nothing had happened, in either framework."""

import os
import time
from contextlib import suppress

import numpy as np
import pytest
from conftest import FRAMEWORKS, SIGNALS, STEPS, assert_one_line, flags, wait_for

from parity.trace.reader import Trace
from parity.twins.training.checkpoint import load_checkpoint

BROKEN_OFF = 3  # of 7 steps, in the middle of an epoch of the stream
OPTIMIZER = {"dtype": "float64", "optimizer": "adam"}


@pytest.fixture(scope="module")
def checkpoints(frameworks, text, cache, tmp_path_factory):
    """Train some steps in each framework, with 2 replicas; return the folders of the runs."""
    folders = {name: tmp_path_factory.mktemp("broken") / name for name in frameworks}
    jobs = [
        frameworks[name].train(
            *flags(**OPTIMIZER, data=text, cache=cache, out=out, steps=BROKEN_OFF, replicas=2)
        )
        for name, out in folders.items()
    ]
    assert [job.wait()[0] for job in jobs] == [0, 0]
    return folders


def test_a_run_goes_on_in_the_other_framework(
    frameworks, run_both, checkpoints, text, cache, tmp_path
):
    """With another number of replicas, too."""
    whole = run_both(replicas=2, batching="stream", optimizer="adam")
    jobs, other = {}, dict(zip(FRAMEWORKS, reversed(FRAMEWORKS), strict=True))
    for name in FRAMEWORKS:
        jobs[name] = frameworks[name].train(
            *flags(**OPTIMIZER, data=text, cache=cache, steps=STEPS, replicas=3),
            f"--resume={checkpoints[other[name]]}",
            f"--trace={tmp_path / name}",
        )
    for name, job in jobs.items():
        status, _, said = job.wait()
        assert status == 0, said
        assert f"resumed at step 3, from a checkpoint that {other[name]} wrote" in said
        trace = Trace(tmp_path / name)
        assert (trace.header["first_step"], trace.header["steps"]) == (3, 4)
        assert [line["step"] for line in trace.index()] == [3, 4, 5, 6]
        for step in range(BROKEN_OFF, STEPS):
            resumed, expected = trace.read(step), whole[name].read(step)
            for tensor in expected:
                if tensor.startswith("replicas/") or tensor in ("batch/sizes", "loss/replicas"):
                    continue
                scale = float(np.abs(expected[tensor]).max()) or 1.0
                worst = float(np.abs(resumed[tensor] - np.float64(expected[tensor])).max())
                assert worst <= 1e-10 * scale, (tensor, step)


def test_the_last_checkpoint_is_that_of_an_unbroken_run(
    frameworks, checkpoints, run_both, text, cache, tmp_path
):
    """Paddle, TensorFlow, Paddle: the file holds what the trace of one run holds."""
    last = run_both(replicas=2, batching="stream", optimizer="adam")["paddle"].read(STEPS - 1)
    given = {"data": text, "cache": cache} | OPTIMIZER
    start, out = checkpoints["paddle"], tmp_path
    for framework, steps in (("tensorflow", 5), ("paddle", STEPS)):
        job = frameworks[framework].train(
            *flags(**given, out=out / framework, steps=steps, resume=start)
        )
        assert job.wait()[0] == 0
        start = out / framework
    final = load_checkpoint(start / "checkpoints" / "step-00000007.safetensors")
    assert (final.step, final.framework) == (STEPS, "paddle")
    for name, array in final.snapshot.items():
        np.testing.assert_allclose(array, last[name], rtol=1e-10, atol=1e-14, err_msg=name)
    assert set(final.state) == {"h", "c"}
    for name, array in final.state.items():
        np.testing.assert_allclose(array, last[f"forward/{name}"], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_writes_a_checkpoint_and_the_run_goes_on(
    framework, text, cache, tmp_path, number
):
    """Stopped anywhere in 300 epochs, then completed: the same weights as of one go."""
    given = {"data": text, "cache": cache, "epochs": 300, "dtype": "float64", "replicas": 1}
    out = tmp_path / "run"
    job = framework.train(*flags(**given, out=out, checkpoint_every=7))
    wait_for((out / "checkpoints" / "latest").exists)
    for _ in range(3):  # within two seconds: the same request
        with suppress(ProcessLookupError):  # it has ended
            os.kill(job.pid, number)
        time.sleep(0.05)
    status, _, said = job.wait()
    line = assert_one_line(status, said, SIGNALS[number])
    stopped = int((out / "checkpoints" / "latest").read_text()[5:13])
    assert line == (
        f"error: stopped at step {stopped}; a checkpoint is written, --resume continues from it"
    )
    assert 0 < stopped < 1500
    assert not (out / "summary.json").exists()
    end = stopped + 20
    resumed = framework.train(*flags(**given, out=out, steps=end, resume=True))
    unbroken = framework.train(*flags(**given, out=tmp_path / "whole", steps=end))
    for job in (resumed, unbroken):
        assert job.wait()[0] == 0
    name = f"checkpoints/step-{end:08d}.safetensors"
    ours, theirs = (load_checkpoint(folder / name) for folder in (out, tmp_path / "whole"))
    for tensor, array in theirs.snapshot.items():
        assert np.array_equal(ours.snapshot[tensor], array), tensor
