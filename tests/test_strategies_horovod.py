"""TensorFlow's `horovod`: the numbers of one process, computed by several.

It runs in an environment of its own; `make horovod-test` makes it and runs these tests.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import STEPS, TINY_SEQ2SEQ, flags
from equal_traces import assert_copies_equal, assert_equal, assert_goes_on, differing
from test_processes_lost import kill

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.launch.edited_source import Edit
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.processes import ROOT, interpreter
from parity.twins.training.checkpoint import newest_checkpoint
from parity.twins.training.loss_table import read_losses

pytestmark = [pytest.mark.horovod, pytest.mark.thorough]

FILE = "tf_impl/strategies/horovod.py"
SHARED = "tf_impl/strategies/several_processes.py"
STREAM = {"optimizer": "adam", "batching": "stream"}
PAIRS = TINY_SEQ2SEQ | {"num_layers": 2, "bidirectional": True, "optimizer": "adam"}
# how a line begins that TensorFlow or Horovod logs
LOGGED = re.compile(
    r"^(rank \d: )?(\d{4}-\d\d-\d\d |[IWEF]\d{4} |INFO|WARNING|ERROR|\[)", re.MULTILINE
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server that starts trainings in the environment with Horovod."""
    with ForkServer("tensorflow", tmp_path_factory.mktemp("h"), strategy="horovod") as started:
        yield started


@pytest.fixture
def horovod(server, text, cache, tmp_path):
    """Return a function that records a training with Horovod and returns the Trace."""

    def run(processes, again=0, edits=(), **given) -> Trace:
        folder = tmp_path / f"{processes}-{again}"
        values = {"steps": STEPS, "dtype": "float64", "data": text, "cache": cache}
        values |= {"strategy": "horovod", "processes": processes, "replicas": processes} | given
        words = [*flags(**values), f"--trace={folder}"]
        status, _, errors = server.train(*words, edits=edits).wait()
        assert status == 0, errors
        assert not LOGGED.search(errors), errors
        return Trace(folder)

    return run


@pytest.fixture
def train(server, text, cache, tmp_path):
    """Return a function that starts a training in two processes and returns its Job."""

    def start(out="run", **given):
        values = {"strategy": "horovod", "processes": 2, "data": text, "cache": cache}
        values |= {"out": tmp_path / out, "dtype": "float64", **STREAM}
        return server.train(*flags(**values | given))

    return start


@pytest.mark.parametrize(
    ("processes", "given"),
    [(1, {}), (2, {"kernels": "plain"}), (3, {}), (4, {"optimizer": "sgd"})],
)
def test_the_numbers_are_those_of_the_towers(run_both, horovod, processes, given):
    """7 rows divide by none of 2, 3 and 4; in the fifth batch some replicas have no token."""
    given = STREAM | given
    towers = run_both(replicas=processes, **given)["tensorflow"]
    trace = horovod(processes, **given)
    assert trace.header["processes"] == processes
    assert trace.header["versions"]["horovod"] == "0.28.1"
    assert_equal(towers, trace)
    assert_copies_equal(trace, processes)


@pytest.mark.parametrize("isolate", [False, True])
def test_an_encoder_and_a_decoder_have_the_numbers_of_the_towers(
    run_both, horovod, pairs, isolate
):
    """With two replicas in each process; isolated too, by the oracle's activations."""
    given = {**PAIRS, "data": pairs, "isolate": isolate or None, "replicas": 4}
    towers = run_both(**given)["tensorflow"]
    trace = horovod(2, **given)
    assert_equal(towers, trace)
    assert_copies_equal(trace, 4)


def test_a_repeated_run_has_the_same_bits(horovod):
    """Of three processes, where sums could be in another order each time."""
    runs = [horovod(3, again, **STREAM) for again in range(2)]
    assert differing(*runs) == []


def test_single_precision_is_within_the_bounds_of_rounding(run_both, horovod):
    given = {**STREAM, "dtype": "float32"}
    verdict = compare_traces([*run_both(replicas=3, **given).values(), horovod(3, **given)])
    assert verdict.matches, verdict.mismatches


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
def test_a_mistake_is_found(run_both, horovod, file, old, new, said):
    towers = run_both(replicas=2, **STREAM)["tensorflow"]
    trace = horovod(2, edits=[Edit(file, old, new)], **STREAM)
    verdict = compare_traces([towers, trace])
    assert not verdict.matches
    assert any(said in str(each) for each in verdict.mismatches), verdict.mismatches


def test_a_training_goes_on_from_a_checkpoint(train, tmp_path):
    """To the bit with as many processes, and to rounding with one, which sums otherwise."""
    runs = {
        "whole": {"steps": 12},
        "first": {"steps": 3},
        "last": {"steps": 12, "resume": tmp_path / "first"},
        "one": {"steps": 12, "resume": tmp_path / "first", "strategy": "towers"},
    }
    runs["one"] |= {"processes": None, "replicas": 1}
    for name, given in runs.items():
        status, _, errors = train(name, **given).wait()
        assert status == 0, errors
    whole, first, last, one = (tmp_path / name for name in runs)
    assert_goes_on(whole, (first, last), "step-00000012.safetensors")
    rest, others = (np.array(read_losses(each / "losses.csv")[-9:]) for each in (whole, one))
    np.testing.assert_allclose(others, rest, rtol=1e-11)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_training_and_it_goes_on(rank, train, tmp_path):
    job = train(steps=60, checkpoint_every=5)
    kill(job.pid, tmp_path / "run", rank, 9)
    status, _, errors = job.wait()
    assert status == 4, errors
    lines = [each for each in errors.splitlines() if each.startswith("error: ")]
    assert len(lines) == 1, errors
    assert not LOGGED.search(errors), errors
    expected = r"rank 0 was killed by SIGKILL" if rank == 0 else r"rank 1 \(.*\) is gone: .*"
    assert re.fullmatch(f"error: {expected}", lines[0])
    notes: list[str] = []
    saved = newest_checkpoint(tmp_path / "run" / "checkpoints", notes)
    assert saved is not None
    assert not notes, "a checkpoint is not whole"
    status, _, errors = train(steps=60, checkpoint_every=5, resume="").wait()
    assert status == 0, errors
    assert f"resumed at step {saved.step}" in errors
    assert train("whole", steps=60, checkpoint_every=5).wait()[0] == 0
    tables = [(tmp_path / name / "losses.csv").read_bytes() for name in ("run", "whole")]
    assert tables[0] == tables[1]


def test_a_training_starts_again_by_itself(train, tmp_path):
    job = train(steps=60, checkpoint_every=5, max_restarts=2)
    kill(job.pid, tmp_path / "run", 1, 9)
    status, _, errors = job.wait()
    assert status == 0, errors
    assert "starting again from the newest checkpoint, 1 of 2 times" in errors
    assert len(read_losses(tmp_path / "run" / "losses.csv")) == 60


def test_a_signal_to_a_single_rank_stops_all_after_the_same_step(train, tmp_path):
    job = train(steps=60, checkpoint_every=5)
    kill(job.pid, tmp_path / "run", 1, 15)
    status, _, errors = job.wait()
    assert status == 143, errors
    step = int(re.search(r"error: stopped at step (\d+); a checkpoint is written", errors)[1])
    saved = newest_checkpoint(tmp_path / "run" / "checkpoints", [])
    assert saved is not None
    assert saved.step == step


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
