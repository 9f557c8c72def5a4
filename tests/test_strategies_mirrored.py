"""TensorFlow's `mirrored`: the numbers of the towers, and copies that stay equal to the bit."""

import json

import numpy as np
import pytest
from conftest import STEPS, TINY_SEQ2SEQ, flags
from equal_traces import assert_copies_equal, assert_equal
from oracle_side import TextBatch

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.initial import zero_state
from parity.twins.spec.presets import preset
from parity.twins.spec.step_arrays import step_inputs
from parity.twins.training.strategy import Build
from parity.twins.training.timeline import PHASES

STREAM = {"optimizer": "adam", "batching": "stream"}
PAIRS = TINY_SEQ2SEQ | {"num_layers": 2, "bidirectional": True, "optimizer": "adam"}
SPEC = preset("language-model", "tiny").replace(
    vocabulary_size=12, embedding_size=3, hidden_size=4, batch_size=7, time=5, dtype="float64"
)


@pytest.fixture
def mirrored(frameworks, text, cache, tmp_path):
    """Return a function that records TensorFlow's `mirrored` and returns the Trace."""

    def run(replicas, edits=(), **given) -> Trace:
        folder = tmp_path / f"{replicas}"
        values = {"steps": STEPS, "dtype": "float64", "data": text, "cache": cache} | given
        words = flags(replicas=replicas, strategy="mirrored", **values)
        job = frameworks["tensorflow"].train(*words, f"--trace={folder}", edits=edits)
        status, _, errors = job.wait()
        assert status == 0, errors
        return Trace(folder)

    return run


@pytest.mark.parametrize(
    ("replicas", "given"),
    [(1, {}), (2, {"kernels": "plain"}), (3, {}), (4, {"optimizer": "sgd"})],
)
def test_the_numbers_are_those_of_the_towers(run_both, mirrored, replicas, given):
    """7 rows divide by none of 2, 3 and 4; in the fifth batch some replicas have no token."""
    given = STREAM | given
    towers = run_both(replicas=replicas, **given)["tensorflow"]
    trace = mirrored(replicas, **given)
    assert_equal(towers, trace)
    assert_copies_equal(trace, replicas)
    if replicas == 4:
        assert trace.read(4)["loss/replicas"][2:].tolist() == [0, 0]


@pytest.mark.parametrize("fed", [False, True])
def test_an_encoder_and_a_decoder_have_the_numbers_of_the_towers(
    run_both, mirrored, pairs, fed
):
    """Decoding included; and isolated, with the oracle's activations in every layer."""
    given = {**PAIRS, "data": pairs}
    if fed:
        given |= {"cell": "gru", "attention": "bahdanau", "input_feeding": True}
        given |= {"isolate": True}
    towers = run_both(replicas=2, **given)["tensorflow"]
    assert_equal(towers, mirrored(2, **given))


def test_a_copy_that_is_not_updated_is_found(run_both, mirrored):
    once = next(each for each in CATALOGUE if each.name == "first-replica-updated-alone")
    towers = run_both(replicas=2, **STREAM)["tensorflow"]
    verdict = compare_traces([towers, mirrored(2, edits=once.edits["tensorflow"], **STREAM)])
    assert verdict.mismatches[0].rung == "replicas"
    assert verdict.departing() == ["tensorflow-2 mirrored"]


def test_its_profile_has_every_phase(frameworks, text, cache, tmp_path):
    values = {"data": text, "cache": cache, "hidden_size": 64, "optimizer": "adam"}
    values |= {"strategy": "mirrored", "profile": tmp_path, "steps": 15}
    status, _, errors = frameworks["tensorflow"].train(*flags(**values)).wait()
    assert status == 0, errors
    table = json.loads((tmp_path / "profile.json").read_text())
    assert set(table["phases"]) == set(PHASES)
    assert all(table["phases"].values())
    assert -0.05 * table["milliseconds_per_step"] < table["idle"]
    phases = {}
    for each in table["operations"]:
        operation = each["operation"].removeprefix("_Mkl")
        phases.setdefault(operation, set()).add(each["phase"])
    assert phases["ResourceApplyAdam"] == {"update"}
    assert {"forward", "backward"} <= phases["MatMul"]
    assert "all-reduce" in phases["AddN"]


# What follows up to the next rule runs in a process of the framework.


def _loads_on_every_replica() -> dict[str, list[list[float]]]:
    strategy = FRAMEWORKS["tensorflow"].strategies.make("mirrored", SPEC, Build(3))
    draw = np.random.default_rng(0)
    tokens, targets = draw.integers(0, 12, (2, 7, 5))
    batch = TextBatch(tokens, targets, np.full(7, 5), carry=False)
    before = strategy.snapshot()
    losses = []
    for _ in range(2):
        strategy.load(before)
        result = strategy.step(step_inputs(SPEC, 0, batch), zero_state(SPEC, 7), 0.1)
        losses.append(result.losses.tolist())
    devices = {
        name: [copy.device[-5:] for copy in variable.values]
        for name, variable in strategy._variables.items()
    }
    return {"losses": losses, "devices": devices}


# ------------------------------------------------------------------------------------------


def test_every_replica_has_copies_on_its_device_and_loads_them(frameworks):
    found = frameworks["tensorflow"].call(_loads_on_every_replica)
    assert found["losses"][0] == found["losses"][1]
    assert all(devices == ["CPU:0", "CPU:1", "CPU:2"] for devices in found["devices"].values())
