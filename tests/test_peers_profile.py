"""Where the time of a step of PyTorch's twin goes, beside the sides'."""

import json

import pytest
from conftest import flags, start

from parity.twins.launch.processes import ROOT
from parity.twins.training.timeline import PHASES

pytestmark = pytest.mark.torch

GIVEN = {"preset": "tiny", "steps": 15, "optimizer": "adam", "peers": True}


def profiled(folder, **more):
    """Run the command; return its status, what it said on stderr, and the profile."""
    given = flags(**GIVEN, **more, out=folder / "out", cache=folder / "cache")
    process = start(["-m", "parity", "profile", *given], cwd=ROOT)
    said, errors = process.communicate()
    found = folder / "out" / "profile.json"
    return process.returncode, errors, said, json.loads(found.read_text())["sides"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_pytorch_s_step_is_shared_out_beside_the_sides(replicas, tmp_path):
    status, errors, said, sides = profiled(tmp_path, replicas=replicas)
    assert status == 0, errors
    assert list(sides) == ["paddle", "tensorflow", "pytorch"]
    assert "pytorch: operation" in said
    table = sides["pytorch"]
    phases, whole = table["phases"], table["milliseconds_per_step"]
    # there is nothing to reduce between a replica and itself
    idle_phases = set() if replicas > 1 else {"all-reduce"}
    assert {phase for phase in PHASES if not phases[phase] > 0} == idle_phases
    # an operation counted twice would leave less than nothing
    assert -0.05 * whole < table["idle"] < whole
    of_phase = {}
    for each in table["operations"]:
        of_phase.setdefault(each["operation"], set()).add(each["phase"])
    assert of_phase["aten::log_softmax"] == {"forward"}
    assert of_phase["aten::_log_softmax_backward_data"] == {"backward"}
    (adam,) = (e for e in table["operations"] if "adam_" in e["operation"])
    assert (adam["phase"], adam["calls"]) == ("update", replicas)
    reduced = [e for e in table["operations"] if "all-reduce" in e["phase"]]
    assert bool(reduced) == (replicas > 1)
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {f"replica {number}" for number in range(replicas)} <= named
