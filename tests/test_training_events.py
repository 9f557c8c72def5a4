"""What a training shows and leaves: event files, summary, progress, perplexity."""

import json
import re
import subprocess
import sys

import pytest
from conftest import STREAM_BATCHES, flags

from parity.twins.launch.processes import ROOT

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
    events.perplexity("valid", 0, 1.0)
    assert dict(os.environ) == before, set(os.environ) - set(before)
"""


@pytest.fixture(scope="module")
def runs(frameworks, text, cache, tmp_path_factory):
    """Train two epochs on each side, the second half of it resumed; return what each left.

    {framework: (events, summary, stderr of the second half)}
    """
    given = {"data": text, "cache": cache, "replicas": 3, "epochs": 2, "decay": 0.5}
    given |= {"checkpoint_every": 3, "dtype": "float64"}
    folders = {name: tmp_path_factory.mktemp("run") / name for name in frameworks}

    def train(**values):
        jobs = {
            n: f.train(*flags(**given, **values, out=folders[n])) for n, f in frameworks.items()
        }
        ended = {name: job.wait() for name, job in jobs.items()}
        assert [status for status, _, _ in ended.values()] == [0, 0], ended
        return {name: said for name, (_, _, said) in ended.items()}

    train(steps=8)
    for folder in folders.values():  # as if the run had been killed after step 7
        (folder / "checkpoints" / "step-00000008.safetensors").unlink()
    said = train(resume=True)
    readers = {
        name: subprocess.Popen(
            [sys.executable, "-c", _READER, folder / "events"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name, folder in folders.items()
    }
    return {
        name: (
            json.loads(readers[name].communicate()[0]),
            json.loads((folder / "summary.json").read_text()),
            said[name],
        )
        for name, folder in folders.items()
    }


def test_event_files_hold_every_curve_once(runs):
    for events, summary, _ in runs.values():
        replicas = [f"loss/replica_{replica}" for replica in range(3)]
        every_step = {"loss/global", *replicas, "learning_rate", "tokens_per_second"}
        assert set(events) == every_step | {"perplexity/valid", "perplexity/test"}
        for name in every_step:
            # steps 6 and 7 were trained twice, and are there once
            assert [step for step, _ in events[name]] == list(range(STEPS)), name
        assert [rate for _, rate in events["learning_rate"]] == pytest.approx(
            [0.05] * 5 + [0.025] * 5
        )
        assert all(speed > 0 for _, speed in events["tokens_per_second"])
        for step in range(STREAM_BATCHES - 1):  # where each row has as many tokens
            losses = [events[name][step][1] for name in replicas]
            mean = (3 * losses[0] + 2 * losses[1] + 2 * losses[2]) / 7
            assert events["loss/global"][step][1] == pytest.approx(mean, rel=1e-5)
        perplexities = dict(events["perplexity/valid"])
        assert list(perplexities) == [5, 10]
        assert summary["valid_perplexity"] == pytest.approx([perplexities[10]])


def test_summaries_tell_what_ran(runs):
    for name, (_, summary, _) in runs.items():
        assert summary["versions"][name]
        (peak,) = summary["peak_memory"]
        assert 1e8 < peak < 1e11
        assert 0 < summary["seconds_to_first_step"] < 1000
        # measured after the warm-up, which these few steps do not outlast
        assert (summary["resident_memory"], summary["product_flops_per_second"]) == ({}, None)
        assert (summary["bleu"], summary["exact_answers"]) == (None, None)  # it writes no text
        assert (summary["framework"], summary["replicas"]) == (name, 3)
        assert summary["strategy"] in {"parallel-executor", "towers"}
        assert summary["kernels"] == "fast"
        assert (summary["dtype"], summary["steps"]) == ("float64", 4)
        assert summary["best_perplexity"] == {"valid": None, "test": None}


def test_writing_an_event_does_not_change_the_environment(tmp_path):
    command = [sys.executable, "-c", _ENVIRONMENT, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_training_that_diverges_to_finite_losses_shows_short_numbers(
    framework, text, cache, tmp_path
):
    given = flags(data=text, cache=cache, out=tmp_path, epochs=1, dtype="float64")
    status, _, said = framework.train(*given, "--learning-rate=1e150").wait()
    assert status == 0, said
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
