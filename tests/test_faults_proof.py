"""Mistakes that only certain batches show are found on the preset that `parity run` trains.

Each is planted in one side, which is then compared with the correct other side, as `parity run`
compares them: on the built-in text, with the preset `proof`. Fewer steps than its 20 are enough
here: an epoch and two steps of the next one.
"""

import pytest

from parity.twins.compare.run_comparison import compare_traces
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.launch.fork_server import record
from parity.twins.spec.spec import Spec, preset

STEPS = {"language-model": 10, "seq2seq": 11}
REPLICAS = 3
pytestmark = pytest.mark.thorough

# fault -> network, side that it is planted in, the first step that can show it
CASES = {
    "not-clipped": ("language-model", "tensorflow", 0),
    "schedule-late": ("language-model", "paddle", 8),
    "state-not-reset": ("language-model", "tensorflow", 8),
    "partial-batch-untrained": ("language-model", "paddle", 7),
    "unknown-not-trained": ("language-model", "tensorflow", 0),
    "layer-not-carried": ("language-model", "paddle", 1),
    "last-replica-left-out": ("language-model", "tensorflow", 0),
    "not-reshuffled": ("seq2seq", "paddle", 9),
    "source-of-one": ("seq2seq", "tensorflow", 5),
}
BY_NAME = {fault.name: fault for fault in reversed(CATALOGUE)}


def spec_of(network: str) -> Spec:
    return preset(network, "proof").replace(dtype="float64")


@pytest.fixture(scope="module")
def train(frameworks, cache, tmp_path_factory):
    """Return a function that trains one side on the proof preset and returns its Trace."""

    def trained(framework, network, edits=()):
        return record(
            frameworks[framework],
            spec_of(network),
            tmp_path_factory.mktemp("proof") / framework,
            edits=edits,
            preset="proof",
            cache=cache,
            steps=STEPS[network],
            replicas=REPLICAS,
            threads=1,
            decode=0,
        )

    return trained


@pytest.fixture(scope="module")
def correct(train):
    """Return a function that trains one side without a fault, once."""
    traces = {}

    def of(framework, network):
        if (framework, network) not in traces:
            traces[framework, network] = train(framework, network)
        return traces[framework, network]

    return of


@pytest.mark.parametrize("name", CASES)
def test_the_default_run_finds_it(name, train, correct):
    network, side, first = CASES[name]
    fault = BY_NAME[name]
    other = "paddle" if side == "tensorflow" else "tensorflow"
    faulty = train(side, network, fault.edits_for("fast")[side])
    traces = [correct(other, network), faulty]
    verdict = compare_traces(traces)
    assert not verdict.matches
    place = verdict.mismatches[0].place
    assert place.step == first
    assert fault.is_at(place.tensor) or place.tensor.startswith("gradient")
