"""The layout of a run: chosen for the machine, and kept where it is resumed."""

import os
import shutil

import pytest
from oracle_side import OracleStrategy, small_spec, train_with

from parity.base import machine
from parity.base.machine import replicas_at_once, usable_cores
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.strategies import StrategySettings
from parity.twins.training.layout import Layout, choose_layout, layout_of_run


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
        (8, {"device": "gpu"}, 20, (1, 8)),
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


@pytest.mark.parametrize(
    ("cores", "replicas", "device", "at_once"),
    [(2, 1, "cpu", 1), (2, 2, "cpu", 2), (2, 8, "cpu", 2), (16, 8, "cpu", 8), (2, 8, "gpu", 8)],
)
def test_no_more_replicas_run_at_once_than_there_are_cores(
    cores, replicas, device, at_once, monkeypatch, tmp_path
):
    on(monkeypatch, tmp_path, cores)
    assert replicas_at_once(replicas, device) == at_once


ENTRY = OracleStrategy.entry


def test_a_resumed_run_keeps_its_layout(tmp_path, capsys):
    spec = small_spec()

    def layout(**options):
        options = TrainOptions(out=tmp_path, **options)
        trained, _ = train_with(OracleStrategy, spec, options, entry=ENTRY)
        return Layout(trained.build.replicas, trained.build.threads)

    assert layout(steps=2, replicas=3, threads=2) == Layout(3, 2)
    capsys.readouterr()
    assert layout(steps=4, resume="") == Layout(3, 2)
    said = capsys.readouterr().err
    assert said.startswith("3 replicas, 2 threads each, on ")
    assert f"; as {tmp_path / 'config.yaml'} says; --replicas and --threads change it" in said
    shutil.rmtree(tmp_path / "checkpoints")  # as if killed before the first one
    assert layout(steps=4, resume="") == Layout(3, 2)
    assert layout(steps=6, resume="", replicas=2, threads=1) == Layout(2, 1)


@pytest.mark.parametrize(
    "damage", ["", "replicas: [", "replicas: many\nthreads: 1", "replicas: 0\nthreads: 1", "[]"]
)
def test_a_configuration_that_cannot_be_used_says_no_layout(damage, tmp_path):
    options = TrainOptions(out=tmp_path, resume="")
    path = tmp_path / "config.yaml"
    header = "# The whole configuration of a run. --config reads it, and flags win over it.\n"
    common = f"strategy: {ENTRY.name}\ndevice: cpu\n"
    path.write_text(f"{header}{common}replicas: 3\nthreads: 1\n")
    assert layout_of_run(options, ENTRY, 20) == (Layout(3, 1), f"as {path} says")
    assert layout_of_run(options, ENTRY, 2) is None
    given = TrainOptions(out=tmp_path, resume="", replicas=1)
    assert layout_of_run(given, ENTRY, 20) is None
    assert layout_of_run(options, FRAMEWORKS["tensorflow"].strategies.entry(None), 20) is None
    path.write_text(f"{header}{common}{damage}")
    assert layout_of_run(options, ENTRY, 20) is None
