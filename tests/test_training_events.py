"""What a training shows and leaves: event files, summary, progress, perplexity."""

import json
import re
import subprocess
import sys

import pytest
from conftest import FRAMEWORKS, ONE_FRAMEWORK, STREAM_BATCHES, ended, flags, run_python
from oracle_side import text_batch
from test_training_loop import SPEC, train

from parity.twins.launch.processes import ROOT
from parity.twins.spec.frameworks import FRAMEWORKS as REGISTRIES

# With this module there, TensorBoard's reader does without TensorFlow.
_READER = """
import json, sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}))
"""
STEPS = 2 * STREAM_BATCHES

# Threads of an engine may read the environment while events are written.
_ENVIRONMENT = """
import os, sys
from pathlib import Path
from parity.twins.training.events import EventWriter
with EventWriter(Path(sys.argv[1]), 0) as events:
    before = dict(os.environ)
    events.scalars(0, {"perplexity/valid": 1.0})
    assert dict(os.environ) == before, set(os.environ) - set(before)
"""


def test_event_files_hold_every_curve_once(tmp_path):
    """Though steps 6 and 7 are trained again, as if the run had been killed after step 7."""
    spec = SPEC.replace(batching="sentences")
    train(tmp_path, spec, STREAM_BATCHES, steps=8, checkpoint_every=3)
    (tmp_path / "checkpoints" / "step-00000008.safetensors").unlink()
    resumed, summary = train(tmp_path, spec, STREAM_BATCHES, resume="", checkpoint_every=3)
    events = json.loads(run_python("-c", _READER, tmp_path / "events", check=True).stdout)
    every_step = {"loss/global", "loss/replica_0", "loss/replica_1"}
    every_step |= {"learning_rate", "tokens_per_second"}
    assert set(events) == every_step | {"perplexity/valid", "perplexity/test"}
    for name in every_step:
        assert [step for step, _ in events[name]] == list(range(STEPS)), name
    rates = [rate for _, rate in events["learning_rate"]]
    assert rates == pytest.approx([0.01] * 5 + [0.005] * 5)
    assert all(speed > 0 for _, speed in events["tokens_per_second"])
    for step, losses in enumerate(resumed.losses, STEPS - resumed.done):
        assert events["loss/global"][step][1] == pytest.approx(losses.sum(), rel=1e-6)
        lengths = text_batch(spec, step, STREAM_BATCHES).lengths
        for replica, rows in enumerate((slice(0, 3), slice(3, 5))):
            share = losses[replica] * lengths.sum() / lengths[rows].sum()
            assert events[f"loss/replica_{replica}"][step][1] == pytest.approx(share, rel=1e-6)
    perplexities = dict(events["perplexity/valid"])
    assert list(perplexities) == [5, 10]
    assert summary.valid_perplexity == pytest.approx([*perplexities.values()], rel=1e-6)


def test_a_run_resumed_at_the_end_of_an_epoch_keeps_its_validation(tmp_path):
    train(tmp_path, per_epoch=STREAM_BATCHES, steps=STREAM_BATCHES)
    _, summary = train(tmp_path, per_epoch=STREAM_BATCHES, resume="")
    events = json.loads(run_python("-c", _READER, tmp_path / "events", check=True).stdout)
    perplexities = dict(events["perplexity/valid"])
    assert list(perplexities) == [STREAM_BATCHES, STEPS]
    assert summary.valid_perplexity == pytest.approx([*perplexities.values()], rel=1e-6)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_summaries_tell_what_ran(name, trainings):
    """Of what tests/test_strategies.py trains, too."""
    given = {"optimizer": "adam", "batching": "stream", "num_layers": 1, "steps": None}
    given |= {"epochs": 2, "checkpoint_every": 8, "strategy": None, "replicas": 2}
    (folder,) = trainings.run([name], "out", **given)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["versions"][name]
    (peak,) = summary["peak_memory"]
    assert 1e8 < peak < 1e11
    assert 0 < summary["seconds_to_first_step"] < 1000
    assert all(1e8 < summary["resident_memory"][when] < 1e11 for when in ("warm", "last"))
    assert summary["product_flops_per_second"] > 0
    assert (summary["bleu"], summary["exact_answers"]) == (None, None)  # it writes no text
    assert (summary["framework"], summary["replicas"]) == (name, 2)
    assert summary["strategy"] == REGISTRIES[name].strategies.default
    assert summary["kernels"] == "fast"
    assert (summary["dtype"], summary["steps"]) == ("float64", STEPS)
    assert summary["best_perplexity"] == {"valid": None, "test": None}


def test_writing_an_event_does_not_change_the_environment(tmp_path):
    command = [sys.executable, "-c", _ENVIRONMENT, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@ONE_FRAMEWORK
def test_a_training_that_diverges_to_finite_losses_shows_short_numbers(
    framework, text, cache, tmp_path
):
    given = flags(data=text, cache=cache, out=tmp_path, epochs=1, dtype="float64")
    said = ended(framework.train(*given, "--learning-rate=1e150"))
    lines = said.splitlines()
    assert re.search(
        r"step 5 of 5, loss \d\.\d+e\+\d+, perplexity inf, [\d,]+ tokens/s$", lines[0]
    )
    assert lines[1].startswith("epoch 1: validation perplexity inf; trained at ")
    assert lines[2] == "test perplexity inf"
    assert re.search(r": 5 steps; loss \d\.\d+e\+\d+; validation perplexity inf", lines[3])
    assert len(lines) == 4, "nothing but the project's own lines"


@pytest.mark.torch
def test_writing_events_does_not_load_pytorch(tmp_path):
    """Its import takes a second of every training's start."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from parity.twins.training.events import EventWriter\n"
        f"with EventWriter(Path({str(tmp_path)!r}), 0):\n"
        "    assert 'tensorboardX' in sys.modules\n"
        "    assert 'torch' not in sys.modules\n"
        "import torch\n"
        f"with EventWriter(Path({str(tmp_path / 'again')!r}), 0):\n"
        "    assert sys.modules['torch'] is torch\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
