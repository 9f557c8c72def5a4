"""TensorFlow's `horovod`: the numbers of one process, computed by several.

It runs in an environment of its own; `make horovod-test` makes it and runs these tests.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import STEPS, flags

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.launch.edited_source import Edit
from parity.twins.launch.processes import ROOT, interpreter
from parity.twins.training.loss_table import read_losses

pytestmark = [pytest.mark.horovod, pytest.mark.thorough]

STREAM = {"optimizer": "adam", "batching": "stream"}
TWO = STREAM | {"strategy": "horovod", "processes": 2, "replicas": 2}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("op=hvd.Sum,\n", "op=hvd.Average,\n", "gradient/"),
        # rank 1 trains on from the zeros that it began with
        ("        self._session.run(self._broadcast)", "        pass", "replicas/"),
        ("hvd.allreduce(report, op=hvd.Sum)", "report", "loss/"),
    ],
    ids=["average", "not broadcast", "losses not summed"],
)
def test_a_mistake_is_found(trainings, old, new, said):
    edit = Edit("tf_impl/strategies/horovod.py", old, new)
    (towers,) = trainings.run(["tensorflow"], "trace", replicas=2, **STREAM)
    (folder,) = trainings.run(["tensorflow"], "trace", [edit], **TWO)
    verdict = compare_traces([Trace(towers), Trace(folder)])
    assert not verdict.matches
    assert any(said in str(each) for each in verdict.mismatches), verdict.mismatches


def test_horovodrun_starts_it(tmp_path):
    """As users start it; rank 0 lets the others know by Horovod's server where it listens."""
    python = interpreter("tensorflow", "horovod")
    command = [Path(python).with_name("horovodrun"), "-np", "2", "--gloo"]
    command += ["-H", "localhost:2", "--network-interfaces", "lo"]
    command += [python, str(ROOT / "tf_impl" / "train.py"), "--strategy", "horovod"]
    # it would take --time, among other flags, for one of its own
    command += ["--preset", "tiny", "--steps", str(STEPS), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(read_losses(tmp_path / "run" / "losses.csv")) == STEPS


def test_parity_run_takes_its_environment_and_its_checkpoint(text, cache, tmp_path):
    """With two replicas in each process; Paddle and it go on from each other's checkpoint."""
    given = STREAM | {"steps": 3, "replicas": 4}
    words = flags(**given, data=text, cache=cache, out=tmp_path / "run")
    command = [sys.executable, "-m", "parity", "run", *words, "--no-throughput"]
    command += ["--strategy", "tensorflow=horovod", "--processes", "2"]
    command += ["--dtype", "float64", "--checks", "resume"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    side = report["sides"]["tensorflow-4"]
    assert (side["strategy"], side["processes"]) == ("horovod", 2)
    # of the environment that it trained in
    assert '"horovod": "0.28.1"' in json.dumps(report["versions"])
