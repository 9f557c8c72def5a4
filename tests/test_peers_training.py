"""PyTorch's twin trains whole, as `train.py` does: validation, test, checkpoints, answers."""

import json
import os
import subprocess

import numpy as np
import pytest
from conftest import TINY_SEQ2SEQ, assert_one_line, ended, flags

from parity.base.errors import UsageError
from parity.twins.launch.checkout import check_installed
from parity.twins.launch.processes import PEERS, ROOT, interpreter
from parity.twins.training.checkpoint import newest_checkpoint
from parity.twins.training.loss_table import read_losses

pytestmark = pytest.mark.thorough

WHOLE = {"dtype": "float64", "optimizer": "adam", "epochs": 2, "decay": 0.5}
OF_PAIRS = TINY_SEQ2SEQ | {"beam": 3}
NETWORKS = {
    "lstm": {"cell": "lstm", "attention": "general", "bidirectional": True},
    "layers": {"cell": "lstm", "attention": "scaled", "num_layers": 2},
    "fed": {"cell": "gru", "attention": "dot", "num_layers": 2, "input_feeding": True},
    "bahdanau": {"cell": "gru", "attention": "bahdanau", "input_feeding": True},
}


def run_peer(*words):
    """Run the twin's command; return its status and what it wrote to stderr."""
    done = subprocess.run(
        [interpreter("pytorch"), "-m", PEERS["pytorch"][0], *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def peer_summary(out, **values):
    status, errors = run_peer(*flags(**values), f"--out={out}")
    assert status == 0, errors
    return json.loads((out / "summary.json").read_text())


@pytest.fixture
def side_summary(frameworks):
    """Return a function that trains TensorFlow's side and returns its summary."""

    def train(out, **values):
        ended(frameworks["tensorflow"].train(*flags(**values), f"--out={out}"))
        return json.loads((out / "summary.json").read_text())

    return train


try:
    check_installed(["pytorch"])
    _HAS_TORCH = True
except UsageError:
    _HAS_TORCH = False

if _HAS_TORCH:  # it is in no lock: a user of the peers brings it

    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize("loss_per", ["token", "row"])
    def test_the_twin_reaches_the_same_perplexity(
        loss_per, replicas, side_summary, text, cache, tmp_path
    ):
        values = WHOLE | {"loss_per": loss_per, "data": text, "cache": cache}
        expected = side_summary(tmp_path / "side", **values)
        found = peer_summary(tmp_path / "peer", **values, replicas=replicas)
        for name in ("valid_perplexity", "test_perplexity"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
        assert found["replicas"] == len(found["peak_memory"]) == replicas

    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_the_twin_resumes_itself_and_is_resumed(
        optimizer, side_summary, text, cache, tmp_path
    ):
        values = WHOLE | {"optimizer": optimizer, "replicas": 1, "data": text, "cache": cache}
        whole = peer_summary(tmp_path / "whole", **values)
        out = tmp_path / "parts"
        peer_summary(out, **values, steps=7)
        assert newest_checkpoint(out / "checkpoints", []).framework == "pytorch"
        side = side_summary(tmp_path / "side", **values, resume=out)
        resumed = peer_summary(out, **values, resume=out)
        assert read_losses(out / "losses.csv") == read_losses(tmp_path / "whole/losses.csv")
        for each in (resumed, side):
            assert each["test_perplexity"] == pytest.approx(whole["test_perplexity"], rel=1e-5)

    @pytest.mark.parametrize("name", NETWORKS)
    def test_the_twin_writes_the_same_answers(name, side_summary, pairs, cache, tmp_path):
        # both answer from the weights of one checkpoint, the one that is resumed
        values = WHOLE | OF_PAIRS | NETWORKS[name]
        values |= {"data": pairs, "cache": cache, "newest": True}
        side = side_summary(tmp_path / "side", **values)
        found = peer_summary(tmp_path / "peer", **values, resume=tmp_path / "side")
        assert found["steps"] == 0
        assert found["test_perplexity"] == pytest.approx(side["test_perplexity"], rel=1e-9)
        assert (found["bleu"], found["exact_answers"]) == (side["bleu"], side["exact_answers"])

    @pytest.mark.parametrize(
        "word",
        ["--device=gpu", "--profile=x"],
        ids=lambda word: word[2:7],
    )
    def test_the_twin_says_what_it_cannot_do(word, text, cache, tmp_path):
        words = flags(**WHOLE, data=text, cache=cache, out=tmp_path)
        line = assert_one_line(*run_peer(*words, *word.split()))
        assert "for pytorch" in line
