"""The benchmark: real runs in turn; what it says of them, never how fast they are."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.base.errors import UsageError
from parity.bench.cases import Case, cases_of
from parity.bench.ratios import check_losses, ratios_to_peers, scaling
from parity.bench.timing import bench
from parity.bench.zipf_text import write_zipf_text
from parity.cli.options import BenchOptions
from parity.launch.processes import PEERS
from parity.spec.presets import preset
from parity.training.flops import product_flops
from parity.training.meter import WARM_UP

ROOT = Path(__file__).resolve().parent.parent


def test_generated_text_has_the_vocabulary_asked_for(tmp_path):
    spec = preset("language-model", "bench").replace(vocabulary_size=300, batch_size=4, time=5)
    _, folder = write_zipf_text(spec, 3, tmp_path)
    words = set((folder / "train.txt").read_text().split())
    assert len(words) == 298, "and <unk> and <eos> beside them"
    assert set((folder / "test.txt").read_text().split()) <= words


def test_gain_is_taken_round_by_round():
    # the machine halves its speed from the first round to the second: the gain does not change
    readings = {"paddle-1x1": [100.0, 50.0], "paddle-2x1": [190.0, 95.0]}
    readings |= {"tensorflow-1x1": [10.0, 20.0], "tensorflow-2x1": [10.0, 30.0]}
    readings |= {"paddle-1x2": [1.0, 1.0]}
    cases = [Case("paddle", 1, 1), Case("tensorflow", 1, 1), Case("paddle", 2, 1)]
    cases += [Case("tensorflow", 2, 1), Case("paddle", 1, 2)]
    found = scaling(readings, cases)
    assert found["paddle"] == {"1": 1.0, "2": 1.9}
    assert found["tensorflow"]["2"] == pytest.approx(1.25)


def test_a_side_is_compared_with_each_peer_and_the_fastest_round_by_round():
    readings = {"paddle-2x1": [120.0, 60.0], "pytorch-2x1": [60.0, 30.0]}
    readings |= {"pytorch-1x2": [100.0, 40.0]}
    cases = [Case("paddle", 2, 1), Case("pytorch", 2, 1), Case("pytorch", 1, 2)]
    assert ratios_to_peers(readings, cases) == {
        "paddle-2x1": {"pytorch-2x1": 2.0, "pytorch-1x2": 1.35, "best": 1.35}
    }
    assert ratios_to_peers({"paddle-2x1": [1.0]}, cases[:1]) == {}


def test_a_peer_that_trains_something_else_is_refused():
    cases = [Case("paddle", 2, 1), Case("pytorch", 2, 1)]
    losses = {"paddle-2x1": [5.0] * WARM_UP + [4.0], "pytorch-2x1": [5.0001] * WARM_UP + [9.0]}
    assert check_losses(losses, cases) == {"pytorch-2x1": pytest.approx(2e-5)}
    losses["pytorch-2x1"][WARM_UP - 1] = 5.001
    with pytest.raises(
        UsageError,
        match=r"^pytorch-2x1: its losses differ from those of paddle-2x1 by up to 0.0002 of",
    ):
        check_losses(losses, cases)
    losses["pytorch-2x1"][0] = float("nan")
    with pytest.raises(UsageError, match="by up to nan of them"):
        check_losses(losses, cases)


def test_a_peer_that_is_not_installed_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.setitem(PEERS, "pytorch", ("parity.peers.pytorch_peer", "no_such_module"))
    options = BenchOptions(out=tmp_path / "bench", peers=True)
    with pytest.raises(
        UsageError, match=r"no_such_module is not installed for .*PARITY_PYTORCH"
    ):
        bench(preset("language-model", "bench"), options, "")
    assert not options.out.exists()


def test_keras_is_left_out_where_it_has_no_twin():
    options = BenchOptions(peers=True, replicas=(1, 2))
    of_text = cases_of(preset("language-model", "bench"), options, 2)
    assert [case.label for case in of_text if case.name == "keras"] == [
        "keras-2x1",
        "keras-1x2",
    ]
    assert [case.label for case in of_text if case.name == "paddle"] == [
        f"paddle-{layout}" for layout in ("1x1", "2x1", "1x2")
    ]
    of_pairs = cases_of(preset("seq2seq", "chatbot"), options, 2)
    assert {case.name for case in of_pairs} == {"paddle", "tensorflow", "pytorch"}


def test_the_products_of_a_step_are_those_of_its_real_tokens():
    model = preset("language-model", "bench")
    batch = {"lengths": np.array([3, 0, 2])}
    layers = 2 * (200 + 200) * 800
    assert product_flops(model, batch) == 3 * 2 * 5 * (layers + 200 * 10_000)
    pairs = preset("seq2seq", "tiny-nmt")
    batch = {"lengths": np.array([3, 2]), "source_lengths": np.array([4, 1])}
    encoder = (64 + 128) * 3 * 128 + 128 * 128
    decoder = (64 + 128 + 128) * 3 * 128 + 128 * 128 + 256 * 128 + 128 * 1_000
    attention = 2 * 128 * (3 * 4 + 2 * 1)
    assert product_flops(pairs, batch) == 3 * 2 * (5 * encoder + 5 * decoder + attention)


def test_bench_times_both_sides(tmp_path):
    command = [sys.executable, "-m", "parity", "bench", "--preset", "tiny", "--rounds", "1"]
    command += ["--steps", "12", "--replicas", "2", "--vocabulary-size", "300"]
    command += ["--out", str(tmp_path / "bench"), "--cache", str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert set(values["throughput"]) == {"paddle-2x1", "tensorflow-2x1"}
    assert values["checked_steps"] == 2
    assert {"paddle", "tensorflow", "numpy"} <= set(values["versions"])
    page = (tmp_path / "bench" / "bench.html").read_text()
    for speed in values["throughput"].values():
        assert f"<td>{speed['median']:,.0f}</td>" in page
    assert not (tmp_path / "bench" / "checked" / "paddle-2x1").exists()
    for label in values["throughput"]:
        assert 0 < values["share_of_limit"][label] < 1
        assert 1e8 < sum(values["peak_memory"][label]) < 1e10
        assert 0.5 < values["seconds_to_first_step"][label] < 120
    for speed in values["throughput"].values():
        low, high = speed["spread"]
        assert 0 < low <= speed["median"] <= high
    for side in ("paddle", "tensorflow"):
        assert any(line.startswith(side) for line in done.stdout.splitlines())
