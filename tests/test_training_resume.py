"""A training that is interrupted by a signal continues as if nothing had happened."""

import os
import signal
import time
from contextlib import suppress

import numpy as np
import pytest
from conftest import SIGNALS, assert_one_line, flags, wait_for

from parity.twins.training.checkpoint import load_checkpoint


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in (signal.SIGINT, signal.SIGHUP)
        ),
    ],
    ids=lambda number: number.name,
)
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
    line = assert_one_line(*job.wait()[::2], SIGNALS[number])
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
