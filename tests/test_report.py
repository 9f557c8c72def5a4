"""The report: what it takes from a verdict, and how it tells a mismatch."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asynchronous_side import SPEC, train

from parity.compare.step_series import History
from parity.compare.tensors import ONE_STEP, ORACLE, Distance, Mismatch, Place
from parity.report.mismatch import describe_mismatch, first_lines
from parity.report.table import WIDTH, wrapped
from parity.report.terminal import coloured, not_covered_line, report_text
from parity.report.verdict_tables import rung_table
from parity.trace.reader import Trace
from parity.twins.compare.first_mismatch import (
    is_every_gradient,
    last_agreeing,
    nearest_to_loss,
)
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.run_tables import UNSEEN, WITNESSES, staleness_table
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Evidence, Outcome, RunVerdict
from parity.twins.spec.spec import preset
from parity.twins.trace.side import TrainedSide

TENSOR = "gradient/lstm_0/bias"
SIDES = {
    f"{f}-{n}": TrainedSide(f, replicas=n) for n in (1, 2) for f in ("paddle", "tensorflow")
}


def distance(relative, used=None, step=3):
    return Distance(relative * 2, relative, Place(step, TENSOR, (1,)), used)


@pytest.fixture
def verdict():
    """A match in float32: frameworks far apart in a free run, each step close to the oracle."""
    return RunVerdict(
        "float32",
        {
            ("paddle-1", "tensorflow-1"): {"gradient": distance(1e-3)},
            ("paddle-2", "tensorflow-2"): {"gradient": distance(2e-3, step=7)},
            ("paddle-1", "paddle-2"): {"gradient": distance(5e-3)},
            ("paddle-1", ORACLE): {"gradient": distance(6e-3), "replicas": distance(0.0, 0.0)},
            ("tensorflow-2", ONE_STEP): {"gradient": distance(1e-7, used=0.25)},
        },
        steps=9,
        sides=SIDES,
    )


def columns(verdict):
    """Return the headers of the table of rungs, in a line each, and its first row."""
    outcome = Outcome(preset("language-model", "tiny"), verdict.sides, verdicts=[verdict])
    table = rung_table(report_values(outcome, "tiny", ""))
    return dict(zip(table.headers, table.rows[0], strict=True))


def test_columns_are_those_of_the_frameworks_whatever_the_sides_are_called(verdict):
    found = columns(verdict)
    assert found["Paddle-TF relative"] == "2.0e-03"
    assert found["Paddle-oracle"] == "6.0e-03"
    assert found["replica counts"] == "5.0e-03"
    assert "strategies" not in found
    assert "TF-oracle" not in found, "no free run of that side was compared"
    named = dict(zip(verdict.sides, ["one", "two", "three", "four"], strict=True))
    sides = {named[label]: side for label, side in verdict.sides.items()}
    verdict = replace(verdict, sides=sides)
    verdict = replace(
        verdict,
        pairs={(named[a], named.get(b, b)): rungs for (a, b), rungs in verdict.pairs.items()},
    )
    assert columns(verdict) == found


def test_a_third_framework_and_a_second_strategy_have_columns(verdict):
    verdict = replace(
        verdict,
        sides=SIDES
        | {
            "mxnet-2": TrainedSide("mxnet", replicas=2),
            "tensorflow-2 other": TrainedSide("tensorflow", "other", 2),
        },
    )
    verdict.pairs["tensorflow-2", "mxnet-2"] = {"gradient": distance(7e-3)}
    verdict.pairs["tensorflow-2", "tensorflow-2 other"] = {"gradient": distance(8e-3)}
    verdict.pairs["mxnet-2", ORACLE] = {"gradient": distance(9e-3)}
    found = columns(verdict)
    assert found["frameworks relative"] == "7.0e-03"
    assert (found["mxnet-oracle"], found["strategies"]) == ("9.0e-03", "8.0e-03")
    assert found["replica counts"] == "5.0e-03"


def test_each_bound_has_a_column(verdict):
    found = columns(verdict)
    assert found["rounding bound"] == "7 x"
    assert found["element bound"] is None, "float32 gradients are judged by one step alone"
    verdict = replace(verdict, dtype="float64")
    found = columns(verdict)
    bounds = [found[f"{name} bound"] for name in ("element", "tensor", "step", "rounding")]
    assert bounds == ["1e-11", "1e-11", "3e-16", "7 x"]


def mismatch(*sides, used=None):
    values = dict(zip(sides, (0.5, 0.25), strict=True))
    return Mismatch(sides, Place(4, TENSOR, (1,)), values, 1e-6, 3, 12)


def test_story_tells_tensor_step_index_values_and_ulp():
    oracle = {"paddle-2": {TENSOR: np.array([0.0, 0.5, 0.0])}}
    story = describe_mismatch(mismatch("paddle-2", "tensorflow-2"), oracle, "float32")
    assert "gradient: paddle-2 and tensorflow-2 differ in gradient/lstm_0/bias, step 4" in story
    assert "3 of 12 elements (25.0%)" in story
    assert "at [1]" in story
    assert story.count("0.5\n") == 2, (
        "the side that is right and the oracle hold the same value"
    )
    assert "oracle, free run" in story
    ulps = 0.25 / np.spacing(np.float32(0.5))
    assert f"difference 0.25, {ulps:.3g} units in the last place of float32" in story
    assert "allowed 1e-06" in story


def at(tensor, *sides):
    return Mismatch(sides, Place(4, tensor, (1,)), dict.fromkeys(sides, 0.0), 1e-6, 3, 12)


def test_of_gradients_the_first_on_the_way_down_is_named(verdict):
    verdict = replace(verdict, mismatches=[at("gradient/embed/table", "paddle-2", ORACLE)])
    wrong = ("gradient/embed/table", "gradient/lstm_0/bias", "gradient_norm", "weight/x")
    right = ("gradient/softmax/bias",)
    evidence = {"paddle-2": Evidence(compared=wrong + right, wrong=wrong)}
    verdict = replace(verdict, evidence=evidence)
    outcome = Outcome(preset("language-model", "tiny"), verdicts=[verdict])
    values = report_values(outcome, "tiny", "")
    assert values["first_mismatch"]["nearest_to_loss"] == "gradient/lstm_0/bias"
    assert "the first wrong one is gradient/lstm_0/bias" in " ".join(
        report_text(values).split()
    )
    assert not values["first_mismatch"]["is_every_gradient"]
    # another side is wrong from further up on
    other, above, right = wrong[:2], "gradient/softmax/kernel", "gradient/softmax/bias"
    history = History(pair=("paddle-2", "tensorflow-2"))
    names = [*other, above, right]
    distance = Distance(1.0, 1.0, Place(4, TENSOR, (1,)), 1.0)
    history.add(4, {}, dict.fromkeys(names, distance))
    both = {"paddle-2": Evidence(wrong=(*other, above)), "tensorflow-2": Evidence(wrong=other)}
    of_both = replace(verdict, evidence=both, history=history)
    assert (nearest_to_loss(of_both), last_agreeing(of_both)) == (above, right)
    every = replace(verdict, evidence={"paddle-2": Evidence(compared=wrong, wrong=wrong)})
    assert is_every_gradient(every)
    every = replace(every, sources={"paddle-2": {"replicas": "engine.py:9 (Executor)"}})
    outcome = Outcome(preset("language-model", "tiny"), every.sides, verdicts=[every])
    lines = first_lines(report_values(outcome, "tiny", "")["first_mismatch"])
    assert "  where the replicas meet: engine.py:9 (Executor), in paddle-2" in lines
    every = replace(every, mismatches=[at("forward/h", "paddle-2", ORACLE)])
    assert nearest_to_loss(every) == ""
    assert not is_every_gradient(every)


@pytest.mark.parametrize("matches", [True, False])
def test_report_holds_what_is_promised(verdict, matches):
    if not matches:
        verdict = replace(verdict, mismatches=[mismatch("paddle-2", ORACLE)])
    outcome = Outcome(preset("language-model", "tiny"), SIDES, verdicts=[verdict])
    outcome.versions = {"paddle": "1.2.3", "tensorflow": "1.2.3"}
    summary = {"framework": "paddle", "replicas": 2, "dtype": "float32", "steps": 20}
    summary |= {"tokens_per_second": {"median": 5.0, "low": 4.0, "high": 6.0}}
    summary |= {"waiting_share": 0.0, "test_perplexity": 8.0}
    outcome.trainings["paddle-2"] = summary | {"best_perplexity": {"test": 7.5, "valid": 7.4}}
    values = report_values(outcome, "tiny", "python -m parity run")
    assert values["verdict"] == ("match" if matches else "mismatch")
    assert (values["network"], values["preset"]) == ("language-model", "tiny")
    assert (values["dtype"], values["replicas"], values["steps"]) == ("float32", [1, 2], 9)
    assert values["versions"]["paddle"] == values["versions"]["tensorflow"] == "1.2.3"
    speed = values["throughput"]["paddle"]
    assert (speed["median"], speed["spread"]) == (5.0, [4.0, 6.0])
    text = report_text(values)
    assert text.splitlines()[-1] == f"verdict: {values['verdict']}"
    assert "7.500" in text
    assert ("only paddle-2 differs from the oracle" in text) is not matches
    if not matches:
        assert text.splitlines()[:2] == [
            f"mismatch of paddle-2 in {TENSOR}, step 4: 3 of 12 elements",
            "  who: only paddle-2 differs from the oracle; paddle-1, tensorflow-1 and",
        ]
        assert coloured(text, values).startswith("\x1b[31mmismatch of")


def long_values(verdict):
    """Return a report with all columns, long names and long stories."""
    verdict = replace(
        verdict,
        sides=SIDES
        | {
            "paddle-2 parallel-executor plain": TrainedSide(
                "paddle", "parallel-executor", 2, kernels="plain", processes=2
            ),
            "jax-2 of somebody's own": TrainedSide("mxnet", replicas=2),
        },
    )
    name = "gradient/" + "a-layer-with-a-long-name/" * 5 + "kernel"
    for a in list(verdict.sides)[1:]:
        for b in (ORACLE, ONE_STEP, "paddle-1"):
            place = Place(12345, name, (100, 100))
            verdict.pairs[a, b] = {"gradient": Distance(1e-3, 1e-3, place, 0.5)}
    found = mismatch("paddle-2", ORACLE)
    verdict = replace(verdict, mismatches=[replace(found, place=Place(4, name, (1,)))])
    outcome = Outcome(preset("language-model", "tiny"), verdict.sides, verdicts=[verdict])
    summary = {"framework": "paddle", "replicas": 2, "dtype": "float32", "steps": 10**9}
    summary |= {"tokens_per_second": {"median": 5e8, "low": 4e8, "high": 6e8}}
    summary |= {"waiting_share": 0.0, "test_perplexity": 8e9, "bleu": {"score": 10.0}}
    summary |= {"exact_answers": 0.5, "best_perplexity": {"test": 7.5, "valid": 7.4}}
    outcome.trainings["paddle-2 parallel-executor plain"] = summary
    values = report_values(outcome, "tiny", "")
    values["not_covered"] = [f"a case of many words, number {i}" for i in range(20)]
    return values, name


def test_the_text_fits_80_columns_and_loses_nothing(verdict):
    values, name = long_values(verdict)
    text = report_text(values)
    words = {word for line in text.splitlines() for word in [line] if len(line) > WIDTH}
    assert all(name in line and len(line.split()) <= 3 for line in words), words
    table = rung_table(values)
    assert len(table.headers) > 12
    for header in table.headers:
        assert all(word in text for word in header.replace("-", "- ").split())
    joined = re.sub(r"\s", "", text)
    for cell in table.rows[0]:
        assert re.sub(r"\s", "", cell or "-")[:40] in joined
    assert text.count("precision  rung") >= 2, "each part names its rows"
    assert wrapped(not_covered_line(values)) in text
    shown = coloured(text, values)
    assert "\x1b[33mnot covered by this run" in shown
    assert shown.count("\n") == text.count("\n")


def test_a_report_says_what_no_run_sees_and_which_tests_stand_for_it(verdict):
    outcome = Outcome(preset("language-model", "tiny"), SIDES, verdicts=[verdict])
    text = report_text(report_values(outcome, "tiny", ""))
    assert " ".join(UNSEEN.split()) in " ".join(text.split())
    tests = Path(__file__).parent
    assert all((tests / f"test_witness_{name}.py").exists() for name in WITNESSES)


# what a report says of asynchronous sides: how stale their updates were


def test_the_table_counts_the_updates_of_each_staleness(tmp_path):
    traces = []
    for framework in ("paddle", "tensorflow"):
        given = {"schedule": "1", "staleness": 3, "steps": 30, "evaluate": 0}
        train(tmp_path / "run", trace=tmp_path / framework, replicas=3, **given)
        trace = Trace(tmp_path / framework)
        trace.side = replace(trace.side, framework=framework)
        trace.header["framework"] = framework
        traces.append(trace)
    verdict = compare_traces(traces)
    values = report_values(Outcome(SPEC, verdict.sides, {}, [verdict]), "tiny", "")
    values = json.loads(json.dumps(values))
    counts = values["runs"][0]["staleness"]["paddle-3"]
    assert sum(counts.values()) == 30
    assert set(counts) == {"0", "1", "2", "3"}
    table = staleness_table(values)
    assert [row[:3] for row in table.rows] == [
        [f"{framework}-3", "float64", 30] for framework in ("paddle", "tensorflow")
    ]
    mean = sum(int(stale) * count for stale, count in counts.items()) / 30
    told = ", ".join(f"{stale}: {count}" for stale, count in counts.items())
    assert table.rows[0][3:] == [f"{mean:.2f}", told]


def test_what_is_trained_beyond_the_recorded_steps_is_said_to_be_reported_only(verdict):
    text = report_text(long_values(verdict)[0])
    assert "for two at the end, and seconds are reported, not judged." in " ".join(text.split())
