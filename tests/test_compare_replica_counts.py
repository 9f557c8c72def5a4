"""Sides with different numbers of replicas, one of them wrong: real trainings, as recorded.

The losses of replicas belong to one side: another side, and the oracle's own step, may divide
the batch among fewer.
"""

import pytest
from conftest import FRAMEWORKS

from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.faults.small_runs import SETTINGS, write_texts
from parity.twins.launch.fork_server import record

SPEC = SETTINGS["sentences"].spec
COUNTS = (1, 2, 3)


@pytest.fixture(scope="module")
def record_sides(frameworks, cache, tmp_path_factory):
    """Return a function that trains both sides on some replicas with a fault in one of them."""
    text = write_texts(tmp_path_factory.mktemp("texts"))[SPEC.network]

    def run(name, wrong, counts=COUNTS):
        fault = next(fault for fault in CATALOGUE if fault.name == name)
        folder = tmp_path_factory.mktemp("traces")
        return [
            record(
                frameworks[side],
                SPEC,
                folder / f"{side}-{count}",
                edits=fault.edits_for("fast")[side] if side == wrong else (),
                data=text,
                cache=cache,
                replicas=count,
                steps=2,
            )
            for count in counts
            for side in FRAMEWORKS
        ]

    return run


@pytest.fixture(scope="module")
def verdict(record_sides):
    return compare_traces(record_sides("scale-on-first-replica", "paddle"))


def test_the_oracle_s_values_are_those_of_the_side_in_question(verdict):
    """Every mismatch, printed, shows what the oracle expects of that very replica's rows."""
    right = {
        count: verdict.oracle[f"tensorflow-{count}"]["loss/replicas"].tolist()
        for count in COUNTS
    }
    assert [len(losses) for losses in right.values()] == list(COUNTS)
    values = report_values(Outcome(SPEC, verdict.sides, verdicts=[verdict]), "-", "")
    first = values["first_mismatch"]
    (index,) = first["index"]
    (line,) = (line for line in first["story"].splitlines() if "oracle, free run " in line)
    assert float(line.split()[-1]) == right[2][index]
    side = verdict.oracle["paddle-2"]["loss/replicas"]
    assert side.tolist() == right[2], "an oracle has no fault, whatever the side's replicas do"
