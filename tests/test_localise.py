"""Several mistakes in one step, of which `parity compare` names the first."""

import sys

import pytest
from conftest import assert_one_line
from test_align import ROOT, end, run, start

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
