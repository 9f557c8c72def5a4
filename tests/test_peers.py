"""The peers that are timed beside the sides: they train the same, on one replica and on two.

PyTorch's twin trains whole, too: validation, test, checkpoints, answers.
"""

import json
import os
import subprocess

import numpy as np
import pytest
from conftest import STEPS, TINY_SEQ2SEQ, assert_one_line, ended, flags

from parity.base.errors import UsageError
from parity.trace.reader import Trace
from parity.twins.launch.checkout import check_installed
from parity.twins.launch.processes import PEERS, ROOT, interpreter
from parity.twins.training.checkpoint import newest_checkpoint
from parity.twins.training.loss_table import read_losses

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
    "clipped sentences": {"batching": "sentences", "clip_norm": 0.05},
    "adam with dropout": {"optimizer": "adam", "learning_rate": 0.05, "keep": 0.7},
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
    return [loss for _, loss, _ in read_losses(out / "losses.csv")]


@pytest.fixture
def side_losses(trainings):
    """Return a function that trains Paddle's side, on one replica, and returns its losses."""

    def train(**values):
        (folder,) = trainings.run(["paddle"], "trace", **values | {"replicas": 1})
        return [float(tensors["loss/global"]) for _, tensors in Trace(folder).steps()]

    return train


def test_keras_trains_the_same(side_losses, text, cache, tmp_path):
    expected = side_losses(**PLAIN)
    words = flags(**PLAIN, replicas=2, data=text, cache=cache)
    found = peer_losses("keras", tmp_path, *words)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


try:
    check_installed(["pytorch"])
    HAS_TORCH = True
except UsageError:
    HAS_TORCH = False

REFUSED = [
    ("keras", "--keep=0.5", "keep 0.5"),
    ("keras", "--trace=trace", "not allowed for keras"),
]
if HAS_TORCH:
    REFUSED += [
        ("pytorch", "--strategy=hogwild", "allowed for pytorch: distributed-data-parallel"),
        ("pytorch", "--device=gpu", "for pytorch"),
        ("pytorch", "--profile=x", "for pytorch"),
    ]


@pytest.mark.parametrize(("name", "word", "said"), REFUSED)
def test_a_peer_says_what_it_cannot_do(name, word, said, text, cache, tmp_path):
    given = flags(**PLAIN, data=text, cache=cache, out=tmp_path)
    assert said in assert_one_line(*peer(name, *given, word))


# whole trainings

WHOLE = {"dtype": "float64", "optimizer": "adam", "epochs": 2, "decay": 0.5}
ANSWERING = {
    "lstm": {"cell": "lstm", "attention": "general", "bidirectional": True},
    "layers": {"cell": "lstm", "attention": "scaled", "num_layers": 2},
    "fed": {"cell": "gru", "attention": "dot", "num_layers": 2, "input_feeding": True},
    "bahdanau": {"cell": "gru", "attention": "bahdanau", "input_feeding": True},
}


def peer_summary(out, **values):
    status, errors = peer("pytorch", *flags(**values), f"--out={out}")
    assert status == 0, errors
    return json.loads((out / "summary.json").read_text())


@pytest.fixture
def side_summary(frameworks):
    """Return a function that trains Paddle's side and returns its summary."""

    def train(out, **values):
        ended(frameworks["paddle"].train(*flags(**values), f"--out={out}"))
        return json.loads((out / "summary.json").read_text())

    return train


if HAS_TORCH:  # it is in no lock: a user of the peers brings it, or names a Python that has it

    @pytest.mark.parametrize("name", NETWORKS)
    def test_pytorch_trains_the_same(name, side_losses, text, cache, tmp_path):
        values = PLAIN | NETWORKS[name]
        expected = side_losses(**values)
        found = peer_losses(
            "pytorch", tmp_path, *flags(**values, replicas=2, data=text, cache=cache)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_the_twin_reaches_the_same_perplexity(side_summary, text, cache, tmp_path):
        """On two replicas, of different numbers of tokens, that share the loss by rows."""
        values = WHOLE | {"loss_per": "row", "data": text, "cache": cache}
        expected = side_summary(tmp_path / "side", **values)
        found = peer_summary(tmp_path / "peer", **values, replicas=2)
        for name in ("valid_perplexity", "test_perplexity"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
        assert found["replicas"] == len(found["peak_memory"]) == 2

    def test_the_twin_resumes_itself_and_is_resumed(side_summary, text, cache, tmp_path):
        values = WHOLE | {"replicas": 1, "data": text, "cache": cache}
        whole = peer_summary(tmp_path / "whole", **values)
        out = tmp_path / "parts"
        peer_summary(out, **values, steps=7)
        assert newest_checkpoint(out / "checkpoints", []).framework == "pytorch"
        side = side_summary(tmp_path / "side", **values, resume=out)
        resumed = peer_summary(out, **values, resume=out)
        assert read_losses(out / "losses.csv") == read_losses(tmp_path / "whole/losses.csv")
        for each in (resumed, side):
            assert each["test_perplexity"] == pytest.approx(whole["test_perplexity"], rel=1e-5)

    @pytest.mark.parametrize("name", ANSWERING)
    def test_the_twin_trains_and_answers_pairs_the_same(
        name, side_summary, pairs, cache, tmp_path
    ):
        values = WHOLE | TINY_SEQ2SEQ | {"beam": 3} | ANSWERING[name]
        values |= {"data": pairs, "cache": cache, "newest": True}
        side_summary(tmp_path / "side", **values)
        found = peer_summary(tmp_path / "peer", **values, replicas=2)
        losses = (read_losses(tmp_path / of / "losses.csv") for of in ("peer", "side"))
        np.testing.assert_allclose(*losses, rtol=1e-5)
        # both answer from the weights of one checkpoint, the one that is resumed
        side = side_summary(tmp_path / "resumed", **values, resume=tmp_path / "peer")
        assert side["steps"] == 0
        assert found["test_perplexity"] == pytest.approx(side["test_perplexity"], rel=1e-9)
        files = (tmp_path / of / "answers.jsonl" for of in ("peer", "resumed"))
        answers = ([*map(json.loads, each.read_text().splitlines())] for each in files)
        for ours, theirs in zip(*answers, strict=True):
            assert ours | {"score": pytest.approx(ours["score"], rel=1e-9)} == theirs
