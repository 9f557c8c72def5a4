"""The peers that are timed beside the sides: they train the same, on one replica and on two."""

import csv
import os
import subprocess
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import STEPS, TINY_SEQ2SEQ, assert_one_line, ended, flags

from parity.trace.reader import Trace
from parity.twins.launch.processes import PEERS, ROOT, interpreter

pytestmark = pytest.mark.thorough

# with small values, losses would not show whether the updates of all layers are right
PLAIN = {
    "keep": 1.0,
    "dtype": "float32",
    "optimizer": "sgd",
    "learning_rate": 5.0,
    "initial_scale": 0.5,
    "clip_norm": 5.0,
    "steps": STEPS,
}
NETWORKS = {
    "language model": {},
    "sentences": {"batching": "sentences"},
    "adam": {"optimizer": "adam", "learning_rate": 0.05},
    "dropout": {"keep": 0.7},
    "clipped": {"clip_norm": 0.05},
}
PAIRS = TINY_SEQ2SEQ | {"optimizer": "adam", "dtype": "float32", "steps": STEPS}
OF_PAIRS = {
    "lstm": {"cell": "lstm", "attention": "general", "keep": 0.7, "bidirectional": True},
    "gru": {"cell": "gru", "attention": "dot", "num_layers": 2, "input_feeding": True},
    "bahdanau": {"cell": "gru", "attention": "bahdanau", "input_feeding": True, "keep": 0.7},
    "scaled": {"cell": "lstm", "attention": "scaled", "num_layers": 2, "keep": 0.7},
}


def peer(name, *words):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [interpreter(name), "-m", PEERS[name][0], *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def peer_losses(name, out, *words):
    status, errors = peer(name, *words, f"--out={out}")
    assert status == 0, errors
    return losses_of(out)


def losses_of(out):
    with (out / "losses.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def side_losses(traces):
    trace = traces["tensorflow"]
    return [float(trace.read(step)["loss/global"]) for step in range(STEPS)]


def test_keras_trains_the_same(run_both, text, cache, tmp_path):
    expected = side_losses(run_both(**PLAIN, replicas=1))
    words = flags(**PLAIN, replicas=2, data=text, cache=cache)
    found = peer_losses("keras", tmp_path, *words)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_keras_says_what_it_has_no_twin_of(text, cache, tmp_path):
    given = flags(**PLAIN | {"keep": 0.5}, data=text, cache=cache, out=tmp_path)
    assert "keep 0.5" in assert_one_line(*peer("keras", *given))


def test_a_peer_takes_no_trace(text, cache, tmp_path):
    given = flags(**PLAIN, data=text, cache=cache, trace=tmp_path / "trace")
    assert "not allowed for keras" in assert_one_line(*peer("keras", *given))


# it is in no lock: a benchmark's user brings it, or names a Python that has it
if find_spec("torch") or "PARITY_PYTORCH_PYTHON" in os.environ:

    @pytest.mark.parametrize(
        ("name", "replicas"), [("language model", 1), *((name, 2) for name in NETWORKS)]
    )
    def test_pytorch_trains_the_same(name, replicas, run_both, text, cache, tmp_path):
        values = PLAIN | NETWORKS[name]
        expected = side_losses(run_both(**values, replicas=1))
        found = peer_losses(
            "pytorch", tmp_path, *flags(**values, replicas=replicas, data=text, cache=cache)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    @pytest.mark.parametrize("name", OF_PAIRS)
    def test_pytorch_trains_the_same_on_pairs(name, frameworks, pairs, cache, tmp_path):
        given = PAIRS | OF_PAIRS[name] | {"data": pairs, "cache": cache}
        job = frameworks["tensorflow"].train(*flags(**given), f"--trace={tmp_path / 'trace'}")
        ended(job)
        expected = side_losses({"tensorflow": Trace(tmp_path / "trace")})
        found = peer_losses("pytorch", tmp_path / "peer", *flags(**given, replicas=2))
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_pytorch_has_one_strategy(text, cache, tmp_path):
        given = flags(**PLAIN, data=text, cache=cache, out=tmp_path, strategy="hogwild")
        said = "'hogwild'; allowed for pytorch: distributed-data-parallel"
        assert said in assert_one_line(*peer("pytorch", *given))
