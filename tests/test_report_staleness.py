"""What a report says of asynchronous sides: how stale their updates were."""

import json
from dataclasses import replace

import pytest
from asynchronous_side import SPEC, train

from parity.report.verdict_tables import staleness_table
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome

UPDATES = 30


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Return the values of two reports: of a drawn schedule, and of sides that ran freely."""
    folder, found = tmp_path_factory.mktemp("traces"), {}
    for schedule in ("1", "free"):
        traces = []
        for framework in ("paddle", "tensorflow"):
            path = folder / f"{schedule}-{framework}"
            given = {"schedule": schedule, "staleness": 3 if schedule == "1" else None}
            train(folder / "run", trace=path, steps=UPDATES, evaluate=0, replicas=3, **given)
            trace = Trace(path)
            trace.side = replace(trace.side, framework=framework)
            trace.header["framework"] = framework
            traces.append(trace)
        verdict = compare_traces(traces)
        outcome = Outcome(SPEC, verdict.sides, {}, [verdict])
        found[schedule] = json.loads(json.dumps(report_values(outcome, "tiny", "parity run")))
    return found


def test_the_table_counts_the_updates_of_each_staleness(reports):
    values = reports["1"]
    counts = values["runs"][0]["staleness"]["paddle-3"]
    assert sum(counts.values()) == UPDATES
    assert set(counts) == {"0", "1", "2", "3"}
    table = staleness_table(values)
    assert [row[:3] for row in table.rows] == [
        ["paddle-3", "float64", 30],
        ["tensorflow-3", "float64", 30],
    ]
    mean = sum(int(stale) * count for stale, count in counts.items()) / UPDATES
    told = ", ".join(f"{stale}: {count}" for stale, count in counts.items())
    assert table.rows[0][3:] == [f"{mean:.2f}", told]
