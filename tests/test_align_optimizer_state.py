"""Trainings that go on from the middle, in their own framework and in another."""

import json
import shutil

import numpy as np
import pytest
from conftest import assert_one_line
from optimizer_states import KINDS, STEPS
from safetensors.numpy import load_file, save_file
from test_align import ROOT, end, run, start

from parity import Recorder, Trace
from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity

pytestmark = pytest.mark.torch

SCRIPT = ROOT / "tests" / "optimizer_states.py"
GIVERS = {
    "torch": ("torch", "paddle", "keras"),
    "paddle": ("paddle", "torch"),
    "keras": ("keras", "torch"),
}


@pytest.fixture(scope="module")
def trained(once):
    """Return the folder in which all have trained, and gone on from each other's middle."""
    return once.fill(["states"], lambda folders: train(*folders))[0]


def train(folder):
    end(*(start(SCRIPT, framework, folder) for framework in GIVERS))
    for framework, givers in GIVERS.items():
        for name, kind in ((giver, kind) for giver in givers for kind in KINDS):
            given, own = folder / name / kind, folder / framework / kind
            file = folder / framework / f"{kind}-from-{name}.safetensors"
            mapping = file.with_suffix(".yaml")
            assert main(parity, ["align", str(given), str(own), "-o", str(mapping)]) == 0
            words = ["weights", given, "--map", mapping, "--after", STEPS - 1, "-o", file]
            assert main(parity, list(map(str, words))) == 0
    end(*(start(SCRIPT, name, folder, *givers) for name, givers in GIVERS.items()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("framework", GIVERS)
def test_a_training_goes_on_as_if_it_had_not_stopped(trained, framework, kind):
    whole = Trace(trained / framework / kind)
    for step, tensors in Trace(trained / framework / f"{kind}-from-{framework}").steps():
        expected = whole.read(STEPS + step)
        for name, array in tensors.items():
            if not name.startswith("initial/"):
                np.testing.assert_array_equal(array, expected[name], name, strict=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("framework", "giver"),
    [(name, giver) for name, givers in GIVERS.items() for giver in givers if giver != name],
)
def test_a_training_goes_on_in_another_framework(trained, framework, giver, kind, capsys):
    there = trained / framework / f"{kind}-from-{giver}"
    own = trained / giver / f"{kind}-from-{giver}"
    # Keras's velocity, which has no partner, is left out by the map
    shown = run(capsys, "compare", own, there, "--map", there.with_suffix(".yaml"))
    assert shown[-1].startswith("verdict: match")


def refused(trained, tmp_path, capsys, *words):
    """Return the one line in which the state of a trace is not written."""
    mapping = trained / "keras" / "sgd-from-keras.yaml"
    words = ["weights", *words, "--map", mapping, "-o", tmp_path / "file"]
    status = main(parity, list(map(str, words)))
    assert not (tmp_path / "file").exists()
    return assert_one_line(status, capsys.readouterr().err)


def test_what_cannot_be_carried_to_the_bit_is_refused(trained, tmp_path, capsys):
    def edited(change, name="sgd"):
        folder = tmp_path / "edited"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(trained / "keras" / name, folder)
        with Recorder(folder, framework="keras", dtype="float64", **given(folder)) as recorder:
            recorder.step(0, change(Trace(trained / "keras" / name).read(0)))
        return folder

    def given(folder):
        header = json.loads((folder / "trace.json").read_text())
        return {name: header[name] for name in ("versions", "facts")}

    def with_tensors(**more):
        return lambda tensors: tensors | {f"optimizer/{n}": x for n, x in more.items()}

    cases = {
        "holds the rate, 0.01, and": with_tensors(**{"model/learning_rate": np.float64(0.01)}),
        "SGD keeps 'model/other'; allowed: 'momentum'": with_tensors(
            **{"model/other": np.zeros(1)}
        ),
        "iteration of SGD is '-1.0', from which": with_tensors(
            **{"model/iteration": np.int64(-1)}
        ),
        "the step lacks 'weight/sequential/dense": lambda tensors: {
            name: x for name, x in tensors.items() if not name.startswith("weight/")
        },
    }
    for says, change in cases.items():
        line = refused(trained, tmp_path, capsys, edited(change), "--after", 0)
        assert says in line
    whole = trained / "keras" / "sgd"
    assert "step 9 was never" in refused(trained, tmp_path, capsys, whole, "--after", 9)


@pytest.mark.parametrize("case", ["none", "weights alone", "kind", "shape", "steps"])
def test_a_state_that_does_not_fit_is_refused(trained, tmp_path, case):
    import torch

    import parity.torch

    tensors = load_file(trained / "torch" / "adam-from-torch.safetensors")
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    ).double()
    optimizer, says = torch.optim.Adam(model.parameters()), ""
    if case == "none":
        optimizer, says = None, "has an optimiser's state; allowed: `load` with it"
    elif case == "weights alone":
        tensors = {n: x for n, x in tensors.items() if not n.startswith("optimizer/")}
        says = "lacks an optimiser's state; allowed: `load` with none"
    elif case == "kind":
        optimizer = torch.optim.SGD(model.parameters())
        says = "'optimizer/0.bias/mean' does not fit; allowed: momentum"
    elif case == "shape":
        tensors["optimizer/0.bias/mean"] = np.zeros(4)
        says = "'optimizer/0.bias/mean' does not fit; allowed: mean, square"
    else:
        tensors["optimizer/steps"] = np.zeros(2)
        says = "'optimizer/steps' is no number of steps"
    save_file(tensors, tmp_path / "file")
    with pytest.raises(UsageError) as caught:
        parity.torch.load(model, tmp_path / "file", optimizer)
    assert says in str(caught.value)
