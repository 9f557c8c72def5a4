"""Several mistakes in one step, of which `parity compare` names the first."""

import sys

import numpy as np
import pytest
from conftest import assert_one_line
from oracle_side import header, recorded_steps, small_spec, write_trace
from test_align import ROOT, end, run, start

from parity import Recorder
from parity.cli.command_line import main
from parity.cli.commands import parity

pytestmark = pytest.mark.torch

SCRIPT = ROOT / "tests" / "two_mistakes.py"
# what module 2, the activation, and module 4, the second normalisation, compute
WRONG = [
    *("forward/2", "forward/4", "activation_gradient/3", "activation_gradient/1"),
    *("gradient/4.weight",),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "original"
    end(start(SCRIPT, "torch", folder))
    return folder


def test_a_mistake_is_found_where_names_are_the_same(original, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = tmp_path / "port"
    command = [sys.executable, SCRIPT, "torch", folder]
    end(start(*command[1:]))
    shown = run(capsys, "localise", original, folder, "--", *command, status=1)
    assert sorted(each.split(": ")[1] for each in shown[:-1]) == sorted(WRONG)
    assert run(capsys, "localise", original, original, "--", "false") == ["verdict: match"]
    # the forward pass alone is wrong where gradients and what follows from them may differ
    kinds = ("activation_gradient/*", "gradient", "weight", "loss")
    far = [f"--tolerance={kind}=0.9,0.9" for kind in kinds]
    shown = run(capsys, "localise", original, folder, *far, "--", *command, status=1)
    assert [each.split(": ")[1] for each in shown[:-1]] == ["forward/2", "forward/4"]
    other = ["localise", original, folder, "--bounds", SCRIPT, "--", *command]
    said = assert_one_line(main(parity, list(map(str, other))), capsys.readouterr().err)
    assert SCRIPT.name in said


@pytest.mark.parametrize("port", ["paddle", pytest.param("keras", marks=pytest.mark.thorough)])
def test_both_of_two_mistakes_are_found_at_once(original, tmp_path, port, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    mapping, weights, folder = (tmp_path / name for name in ("map.yaml", "weights", "port"))
    end(start(SCRIPT, port, folder))
    for_map = ["--map", mapping]
    run(capsys, "align", original, folder, "-o", mapping)
    run(capsys, "weights", original, *for_map, "-o", weights)
    command = [sys.executable, SCRIPT, port, folder]
    status = main(
        parity, list(map(str, ["localise", original, folder, *for_map, "--", *command]))
    )
    said = assert_one_line(status, capsys.readouterr().err)
    assert "before anything is computed; allowed: sides that start alike" in said
    end(start(SCRIPT, port, folder, weights))
    shown = run(
        capsys, "localise", original, folder, *for_map, "--", *command, weights, status=1
    )
    assert sorted(each.split(": ")[1] for each in shown[:-1]) == sorted(WRONG)
    assert shown[-1].startswith("step 0, each module on its own: 5 wrong; ")


def test_what_no_watch_has_recorded_is_refused(tmp_path, capsys):
    spec = small_spec()
    write_trace(tmp_path / "a", header(spec, "paddle"), recorded_steps(spec, 1))
    words = ["localise", tmp_path / "a", tmp_path / "a", "--", "true"]
    said = assert_one_line(main(parity, list(map(str, words))), capsys.readouterr().err)
    assert "was recorded by a train.py of this project; allowed: watched trainings" in said


@pytest.mark.parametrize("packages", [("jax", "flax"), ("keras", "jax"), ("keras", "torch")])
def test_what_takes_over_nothing_is_refused_before_it_trains(packages, tmp_path, capsys):
    for side, value in (("original", 1), ("port", 2)):
        versions = dict.fromkeys(packages, "1")
        given = {"framework": side, "dtype": "float64", "versions": versions}
        with Recorder(tmp_path / side, **given) as recorder:
            recorder.step(0, {"forward/fc": np.full(3, value)})
    trains = ["touch", tmp_path / "trained"]
    words = ["localise", tmp_path / "original", tmp_path / "port", "--", *trains]
    said = assert_one_line(main(parity, list(map(str, words))), capsys.readouterr().err)
    assert "its modules take over nothing from the other side; allowed: PyTorch" in said
    assert not (tmp_path / "trained").exists()
