"""The benchmark: real runs in turn; what it says of them, never how fast they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parity.bench import _generated_text, _scaling
from parity.options import BenchOptions
from parity.presets import preset

ROOT = Path(__file__).resolve().parent.parent


def test_generated_text_has_the_vocabulary_asked_for(tmp_path):
    spec = preset("language-model", "bench").replace(vocabulary_size=300, batch_size=4, time=5)
    folder = _generated_text(spec, BenchOptions(out=tmp_path))
    words = set((folder / "train.txt").read_text().split())
    assert len(words) == 298, "and <unk> and <eos> beside them"
    assert set((folder / "test.txt").read_text().split()) <= words


def test_gain_is_taken_round_by_round():
    # the machine halves its speed from the first round to the second: the gain does not change
    readings = {"paddle-1": [100.0, 50.0], "paddle-2": [190.0, 95.0]}
    readings |= {"tensorflow-1": [10.0, 20.0], "tensorflow-2": [10.0, 30.0]}
    found = _scaling(readings, (1, 2))
    assert found["paddle"] == {"1": 1.0, "2": 1.9}
    assert found["tensorflow"]["2"] == pytest.approx(1.25)


def test_bench_times_both_sides(tmp_path):
    command = [sys.executable, "-m", "parity", "bench", "--preset", "tiny", "--rounds", "1"]
    command += ["--steps", "12", "--replicas", "2", "--vocabulary-size", "300"]
    command += ["--out", str(tmp_path / "bench"), "--cache", str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert set(values["throughput"]) == {"paddle-2", "tensorflow-2"}
    for speed in values["throughput"].values():
        low, high = speed["spread"]
        assert 0 < low <= speed["median"] <= high
    for side in ("paddle", "tensorflow"):
        assert any(line.startswith(side) for line in done.stdout.splitlines())
