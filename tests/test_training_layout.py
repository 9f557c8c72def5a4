"""The layout of a run: chosen for the machine, measured if it is a long one, and kept."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import start, wait_for

from parity.base import machine
from parity.base.machine import replicas_at_once, usable_cores
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import preset
from parity.twins.spec.strategies import StrategySettings
from parity.twins.training.layout import (
    Calibration,
    Layout,
    choose_layout,
    fastest,
    layout_of_run,
    layout_text,
)
from parity.twins.training.text_source import read_text


def on(monkeypatch, tmp_path, cores, quota="max 100000"):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(machine, "_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")


@pytest.mark.parametrize(
    ("cores", "quota", "usable"),
    [
        (4, None, 4),
        (4, "max 100000", 4),
        (4, "150000 100000", 2),
        (4, "50000 100000", 1),
        (2, "400000 100000", 2),
        (4, "", 4),
    ],
)
def test_cores_are_those_allowed(cores, quota, usable, monkeypatch, tmp_path):
    on(monkeypatch, tmp_path, cores, quota)
    assert usable_cores() == usable


@pytest.mark.parametrize(
    ("cores", "given", "smallest", "chosen"),
    [
        (1, {}, 20, (1, 1)),
        (2, {}, 20, (2, 1)),
        (8, {}, 20, (8, 1)),
        (64, {}, 20, (8, 8)),
        (8, {}, 3, (3, 2)),
        (8, {"replicas": 2}, 20, (2, 4)),
        (8, {"replicas": 16}, 20, (16, 1)),
        (8, {"threads": 1}, 20, (8, 1)),
        (8, {"replicas": 1, "threads": 3}, 20, (1, 3)),
        (8, {"device": "gpu"}, 20, (2, 4)),
        (8, {"settings": StrategySettings(stages=2)}, 20, (4, 1)),
        (8, {"settings": StrategySettings(stages=3)}, 20, (2, 1)),
        (2, {"settings": StrategySettings(stages=3)}, 20, (1, 1)),
        (8, {"settings": StrategySettings(stages=2), "replicas": 1}, 20, (1, 4)),
        # one worker, which a launcher has started beside its server
        (8, {"settings": StrategySettings(servers=1)}, 20, (1, 8)),
    ],
)
def test_what_is_left_open_is_chosen(cores, given, smallest, chosen, monkeypatch, tmp_path):
    on(monkeypatch, tmp_path, cores)
    assert choose_layout(TrainOptions(**given), smallest) == Layout(*chosen)


def test_a_layout_says_what_changes_it(monkeypatch, tmp_path):
    on(monkeypatch, tmp_path, 2)
    said = layout_text(Layout(2, 1))
    assert said == "2 replicas, 1 thread each, on 2 cores; --replicas and --threads change it"


@pytest.mark.parametrize(
    ("cores", "replicas", "device", "at_once"),
    [(2, 1, "cpu", 1), (2, 2, "cpu", 2), (2, 8, "cpu", 2), (16, 8, "cpu", 8), (2, 8, "gpu", 8)],
)
def test_no_more_replicas_run_at_once_than_there_are_cores(
    cores, replicas, device, at_once, monkeypatch, tmp_path
):
    on(monkeypatch, tmp_path, cores)
    assert replicas_at_once(replicas, device) == at_once


ROOT = Path(__file__).resolve().parent.parent
LONG = ["--epochs", "5000", "--evaluate", "0"]  # of preset tiny: hours


def candidates(framework, strategy, smallest, **options):
    registry = FRAMEWORKS[framework].strategies
    settings = registry.settings(strategy, options.pop("settings", StrategySettings()))
    train = TrainOptions(settings=settings, **options)
    spec = preset("language-model", "tiny")
    calibration = Calibration(framework, registry.entry(strategy), spec)
    return [tuple(each) for each in calibration.candidates(train, smallest)]


@pytest.mark.parametrize(
    ("count", "framework", "strategy", "smallest", "options", "expected"),
    [
        (1, "paddle", None, 20, {}, [(1, 1)]),
        (2, "paddle", None, 20, {}, [(2, 1), (1, 2)]),
        (2, "paddle", None, 1, {}, [(1, 2)]),
        (8, "tensorflow", None, 20, {}, [(8, 1), (4, 2), (2, 4), (1, 8)]),
        (8, "tensorflow", None, 3, {}, [(3, 2), (2, 4), (1, 8)]),
        (8, "tensorflow", None, 20, {"threads": 1}, [(8, 1)]),
        (8, "tensorflow", None, 20, {"replicas": 2}, [(2, 4)]),
        (8, "tensorflow", None, 20, {"device": "gpu"}, [(2, 4)]),
        (8, "tensorflow", "layers", 20, {}, [(4, 1), (2, 2), (1, 4)]),
        # another number of replicas would be another training
        (8, "tensorflow", "asynchronous", 20, {}, [(8, 1)]),
        (8, "tensorflow", "asynchronous", 2, {}, [(2, 4), (2, 2), (2, 1)]),
        (8, "tensorflow", "average-gradients", 20, {}, [(8, 1), (4, 2), (2, 4), (1, 8)]),
        (
            *(8, "tensorflow", "average-gradients", 20),
            *({"settings": StrategySettings(shard_weights="equal")}, [(8, 1)]),
        ),
        # its processes are started before the text is read
        (8, "paddle", "data-parallel", 20, {}, [(8, 1)]),
    ],
)
def test_layouts_that_train_the_same_on_every_core_are_measured(
    count, framework, strategy, smallest, options, expected, monkeypatch, tmp_path
):
    on(monkeypatch, tmp_path, count)
    assert candidates(framework, strategy, smallest, **options) == expected


def test_the_default_is_left_only_for_a_layout_that_is_clearly_faster():
    assert fastest({Layout(2, 1): 1.0, Layout(1, 2): 0.97}) == Layout(2, 1)
    assert fastest({Layout(2, 1): 1.0, Layout(1, 2): 0.9}) == Layout(1, 2)
    assert fastest({Layout(2, 1): 1.0, Layout(1, 2): 2.0}) == Layout(2, 1)


def command(folder, *words):
    return [sys.executable, str(ROOT / folder / "train.py"), *map(str, words)]


def configuration(folder, environment, *words):
    """Return the replicas and threads that --print-config says."""
    done = subprocess.run(
        command(folder, *words, "--print-config"),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    values = yaml.safe_load(done.stdout)
    return values["replicas"], values["threads"]


def stopped(folder, environment, out, *words):
    """Train until a run has begun, stop it, and return what it said and its layout."""
    run = start([ROOT / folder / "train.py", "--out", out, *words], env=environment)
    events = out / "events"
    known = set(events.glob("*"))
    wait_for(lambda: run.poll() is not None or set(events.glob("*")) - known, 300)
    run.send_signal(signal.SIGINT)
    errors = run.communicate()[1]
    assert run.returncode == 130, errors
    values = yaml.safe_load((out / "config.yaml").read_text())
    return errors, Layout(values["replicas"], values["threads"])


@pytest.mark.thorough
@pytest.mark.parametrize("folder", ["paddle_impl", "tf_impl"])
def test_a_long_training_measures_once_and_a_resumed_one_keeps_its_layout(
    folder, tmp_path, cache
):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "user")}
    long = [*LONG, "--cache", cache]
    default = configuration(folder, environment, *long, "--no-calibrate")
    assert configuration(folder, environment, *long, "--steps", "1000") == default
    assert configuration(folder, environment, *long) == (None, None)

    said, layout = stopped(folder, environment, tmp_path / "run", *long)
    assert layout_text(layout).partition(";")[0] + "; measured: 2 x 1 " in said
    (path,) = (tmp_path / "user" / "training-parity").glob("layout-*/choice.json")
    kept = json.loads(path.read_text())
    assert Layout(*kept["choice"]) == layout == fastest_of(kept["measured"])
    assert layout in {Layout(2, 1), Layout(1, 2)}
    assert configuration(folder, environment, *long) == layout

    other = Layout(layout.threads, layout.replicas)
    path.write_text(json.dumps(kept | {"choice": list(other)}))
    assert configuration(folder, environment, *long, "--learning-rate", "0.5") == other
    said, resumed = stopped(folder, environment, tmp_path / "run", *long, "--resume")
    assert resumed == layout
    assert f"as {tmp_path / 'run' / 'config.yaml'} says" in said
    said, again = stopped(folder, environment, tmp_path / "again", *long)
    assert again == other
    assert "the fastest of 2 layouts measured here before" in said


def fastest_of(seconds):
    return fastest({Layout(*map(int, text.split(" x "))): s for text, s in seconds.items()})


def test_layouts_take_turns_and_the_faster_time_of_each_counts(tmp_path, cache, monkeypatch):
    on(monkeypatch, tmp_path, 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    taken, seconds = [], iter([0.5, 0.9, 1.0, 0.8])

    def measured(self, options, layout, steps):
        taken.append(layout)
        return next(seconds)

    monkeypatch.setattr(Calibration, "_measured", measured)
    spec = preset("language-model", "tiny").replace(epochs=5000)
    options = TrainOptions(cache=cache)
    calibration = Calibration("paddle", FRAMEWORKS["paddle"].strategies.entry(None), spec)
    read, text = read_text(spec, options)
    layout, why = calibration.layout(read, text, options, resumes=False)
    assert taken == [Layout(2, 1), Layout(1, 2)] * 2
    assert layout == Layout(2, 1)
    assert "2 x 1 500.0 ms a step, 1 x 2 800.0 ms a step" in why


def test_what_cannot_be_measured_is_left_at_the_default(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    spec = preset("language-model", "tiny").replace(epochs=5000)
    options = TrainOptions(cache=cache)
    read, text = read_text(spec, options)
    gone = TrainOptions(cache=cache, data=tmp_path / "gone")
    calibration = Calibration("paddle", FRAMEWORKS["paddle"].strategies.entry(None), spec)
    layout, why = calibration.layout(read, text, gone, resumes=False)
    assert layout == calibration.candidates(options, 20)[0]
    assert why.startswith("the default, as others could not be measured: ")
    assert "ended with status 2: error: " in why
    assert "gone" in why
    assert not (tmp_path / "user").exists()


@pytest.mark.parametrize(
    "damage", ["", "replicas: [", "replicas: many\nthreads: 1", "replicas: 0\nthreads: 1", "[]"]
)
def test_a_configuration_that_cannot_be_used_says_no_layout(damage, tmp_path):
    entry = FRAMEWORKS["paddle"].strategies.entry(None)
    options = TrainOptions(out=tmp_path, resume="")
    path = tmp_path / "config.yaml"
    header = "# The whole configuration of a run. --config reads it, and flags win over it.\n"
    common = f"strategy: {entry.name}\ndevice: cpu\n"
    path.write_text(f"{header}{common}replicas: 3\nthreads: 1\n")
    assert layout_of_run(options, entry, 20) == (Layout(3, 1), f"as {path} says")
    assert layout_of_run(options, entry, 2) is None
    given = TrainOptions(out=tmp_path, resume="", replicas=1)
    assert layout_of_run(given, entry, 20) is None
    assert layout_of_run(options, FRAMEWORKS["tensorflow"].strategies.entry(None), 20) is None
    path.write_text(f"{header}{common}{damage}")
    assert layout_of_run(options, entry, 20) is None
