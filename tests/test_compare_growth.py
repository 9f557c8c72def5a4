"""After the first wrong step, a difference is followed; the verdict stays what it was."""

import json

import numpy as np
import pytest
from oracle_side import compare_sides, recorded_steps, small_spec

from parity.base.errors import NumericFailure
from parity.compare.growth import GROWS, STAYS, VANISHES, Growth
from parity.compare.tensors import Distance, Place
from parity.report.charts import losses
from parity.report.mismatch import growth_sentence
from parity.report.terminal import report_text
from parity.report.verdict_page import report_html
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome

SIDES = {"paddle-2": "paddle", "tensorflow-2": "tensorflow"}
STEPS, WRONG = 9, 2
SPEC = small_spec()


@pytest.fixture(scope="module")
def right():
    return recorded_steps(SPEC, STEPS)


@pytest.fixture(scope="module")
def drifting(right):
    """A side that trains with three times the learning rate from one step on."""
    other = recorded_steps(SPEC.replace(learning_rate=0.03), STEPS)
    kept = {name: tensors["batch/learning_rate"] for name, tensors in enumerate(right)}
    return [t | {"batch/learning_rate": kept[step]} for step, t in enumerate(other)]


def once(steps, name="gradient/lstm_0/bias", by=1e-3):
    """Return steps of which one has a wrong element, which nothing later depends on."""
    steps = [dict(tensors) for tensors in steps]
    steps[WRONG][name] = np.array(steps[WRONG][name])
    steps[WRONG][name].flat[1] += by
    return steps


def climbed(left, other, after=5):
    return compare_sides(SPEC, {"paddle-2": left, "tensorflow-2": other}, after)


def values_of(verdict):
    values = report_values(Outcome(SPEC, verdict.sides, verdicts=[verdict]), "small", "")
    return json.loads(json.dumps(values, allow_nan=False))


def test_a_wrong_update_grows(right, drifting):
    verdict = climbed(right, drifting)
    assert (verdict.mismatches[0].place.step, verdict.steps) == (0, 1)
    growth = verdict.growth.to_json()
    assert growth["steps"] == [0, 1, 2, 3, 4, 5]
    assert growth["tensor"].startswith("weight/")
    assert growth["trend"] == GROWS
    series = growth["of_tensor"]["between_sides"]
    assert series == growth["series"]
    assert series[-1] > 2 * series[0]
    assert growth["of_tensor"]["free_run"] == series, "the other side is the oracle"
    assert max(growth["of_rungs"]["forward"]["one_step"]) < 1e-14, "each forward pass is right"
    values = values_of(verdict)
    said = f"the difference grows: {series[0]:.2g} in step 0, {series[-1]:.2g} in step 5"
    text, page = report_text(values), report_html(values)
    assert said in text
    assert said in page
    assert "growth-float64" in page
    assert "the first wrong step and those after it" in text
    drawn = losses(
        "float64", values["history"]["float64"], dict.fromkeys(SIDES, "paddle"), "token"
    )
    assert drawn.table.headers[0] == "step"
    assert [row[0] for row in drawn.table.rows] == growth["steps"]
    assert all(isinstance(loss, float) for row in drawn.table.rows for loss in row[1:])


def test_what_goes_wrong_once_vanishes(right):
    verdict = climbed(right, once(right))
    growth = verdict.growth.to_json()
    assert growth["steps"] == [2, 3, 4, 5, 6, 7]
    assert growth["trend"] == VANISHES
    assert growth["ended"] is None
    assert growth_sentence(growth).startswith("the difference vanishes: ")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_wrong_alike_at_every_step_stays(dtype):
    spec = small_spec(dtype=dtype)
    right = recorded_steps(spec, STEPS)
    scaled = [t | {"loss/global": t["loss/global"] * np.float32(1.5)} for t in right]
    verdict = compare_sides(spec, dict.fromkeys(SIDES, scaled), 5)
    assert verdict.growth.trend == STAYS
    assert max(verdict.growth.to_json()["of_tensor"]["between_sides"]) == 0.0


def test_the_verdict_is_that_of_the_first_wrong_step(right, drifting):
    first, followed = climbed(right, drifting, after=0), climbed(right, drifting, after=5)
    assert first.growth is None
    assert first.mismatches == followed.mismatches
    assert first.steps == followed.steps
    assert first.pairs == followed.pairs
    history = followed.history.to_json()
    assert history.pop("after")["steps"] == [1, 2, 3, 4, 5]
    assert first.history.to_json() == history
    assert first.evidence.keys() == followed.evidence.keys()
    told = [values_of(each)["first_mismatch"] for each in (first, followed)]
    assert told[0].pop("growth") is None
    assert len(told[1].pop("growth")["steps"]) == 6
    assert told[0] == told[1]


def test_a_nan_after_a_mismatch_leaves_the_mismatch(right):
    bad = once(right)
    bad[4]["forward/h"] = np.full_like(bad[4]["forward/h"], np.nan)
    verdict = climbed(right, bad)
    assert verdict.mismatches[0].place.step == WRONG
    assert verdict.growth.ended.startswith("tensorflow-2: nan in forward/h[0, 0, 0], step 4")
    assert len(verdict.growth.steps) == 2
    assert "verdict: mismatch" in report_text(values_of(verdict))
    with pytest.raises(NumericFailure):
        climbed(right, [*right[:4], *bad[4:]])


def test_a_number_that_is_missing_in_a_step_is_none():
    growth = Growth("decode/greedy_tokens")
    pair = ("paddle-2", "tensorflow-2")
    place = Place(0, "", ())
    growth.add(0, {pair: {"forward/h": Distance(0.5, 0.5, place)}})
    growth.add(1, {pair: {growth.tensor: Distance(0.25, 0.25, place), "loss/x": Distance()}})
    found = growth.to_json()
    assert found["of_tensor"]["between_sides"] == [None, 0.25]
    assert found["of_rungs"]["forward"]["between_sides"] == [0.5, None]
    assert (found["trend"], growth_sentence(found)) == (None, "")
