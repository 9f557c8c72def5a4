"""TensorFlow's `horovod`: the numbers of one process, computed by several.

It runs in an environment of its own; `make horovod-test` makes it and runs these tests.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import STEPS, flags

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.launch.edited_source import Edit
from parity.twins.launch.processes import ROOT, interpreter
from parity.twins.training.loss_table import read_losses

pytestmark = [pytest.mark.horovod, pytest.mark.thorough]

FILE = "tf_impl/strategies/horovod.py"
SHARED = "tf_impl/strategies/multi_process_base.py"
STREAM = {"optimizer": "adam", "batching": "stream"}
TWO = STREAM | {"strategy": "horovod", "processes": 2, "replicas": 2}


def test_a_record_names_its_version(trainings):
    (folder,) = trainings.run(["tensorflow"], "trace", **TWO)
    assert Trace(folder).header["versions"]["horovod"] == "0.28.1"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (FILE, "op=hvd.Sum,\n", "op=hvd.Average,\n", "gradient/"),
        # rank 1 trains on from the zeros that it began with
        (FILE, "        self._session.run(self._broadcast)", "        pass", "replicas/"),
        (
            SHARED,
            "        stop = [self.build",
            '        own = filled[placeholders["lengths"]].sum()\n'
            '        filled[placeholders["scale"]] = [1 / max(own, 1)]\n'
            "        stop = [self.build",
            "loss/",
        ),
        (FILE, "hvd.allreduce(report, op=hvd.Sum)", "report", "loss/"),
    ],
    ids=["average", "not broadcast", "loss per own tokens", "losses not summed"],
)
def test_a_mistake_is_found(run_both, trainings, file, old, new, said):
    towers = run_both(replicas=2, **STREAM)["tensorflow"]
    (folder,) = trainings.run(["tensorflow"], "trace", [Edit(file, old, new)], **TWO)
    verdict = compare_traces([towers, Trace(folder)])
    assert not verdict.matches
    assert any(said in str(each) for each in verdict.mismatches), verdict.mismatches


def test_towers_go_on_from_its_checkpoint(trainings):
    """To rounding: one process sums in another order."""
    (whole,) = trainings.run(["tensorflow"], "out", **TWO | {"steps": 12})
    (first,) = trainings.run(["tensorflow"], "out", **TWO | {"steps": 3})
    given = {"steps": 12, "resume": first, "replicas": 1}
    (one,) = trainings.run(["tensorflow"], "out", **STREAM | given)
    rest, others = (np.array(read_losses(each / "losses.csv")[-9:]) for each in (whole, one))
    np.testing.assert_allclose(others, rest, rtol=1e-11)


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


def test_parity_run_takes_the_environment_of_the_strategy(text, cache, tmp_path):
    words = flags(data=text, cache=cache, out=tmp_path / "run", steps=3, replicas="1,2")
    command = [sys.executable, "-m", "parity", "run", *words, "--no-throughput"]
    command += ["--strategy", "tensorflow=horovod", "--dtype", "float64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    strategies = {label: side["strategy"] for label, side in report["sides"].items()}
    assert strategies["tensorflow-2"] == "horovod"
    assert "horovod" in json.dumps(report["versions"])  # of the environment that it trained in
