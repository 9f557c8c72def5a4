"""Confirmed causes in a verdict and in its report."""

import numpy as np
import pytest
from oracle_side import header, recorded_steps
from planted_step import Planted, specs

from parity.base.replaceable import replacing
from parity.report.mismatch import LOOKS_LIKE, confirmed_lines, mismatch_text
from parity.report.verdict_page import report_html
from parity.twins.compare.causes.confirmed import Confirmed
from parity.twins.compare.run_comparison import RunComparison
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome

SIDES = {"paddle-2": "paddle", "tensorflow-2": "tensorflow"}
GATES = "gates i and f exchanged"


@pytest.fixture(scope="module")
def planted():
    return Planted(specs()["stream"], step=0)


def compared(spec, steps, cause_seconds=1e9):
    """Return the verdict of the sides' first steps, label -> recorded steps."""
    comparison = RunComparison(
        {side: header(spec, name) for side, name in SIDES.items()}, cause_seconds=cause_seconds
    )
    for step in range(2):
        comparison.step(step, {side: steps[side][step] for side in SIDES})
        if not comparison.verdict.matches:
            break
    return comparison.verdict


def wrong_steps(planted, name):
    """Return the steps of a side that makes a mistake from the first on."""
    with replacing(planted.suspect(name).ways[0].replacements):
        return recorded_steps(planted.spec, 2)


def values_of(verdict, spec):
    return report_values(Outcome(spec, verdict.sides, verdicts=[verdict]), "-", "")


def test_the_side_that_departs_is_reproduced(planted):
    right, wrong = recorded_steps(planted.spec, 2), wrong_steps(planted, GATES)
    verdict = compared(planted.spec, {"paddle-2": wrong, "tensorflow-2": right})
    (found,) = verdict.confirmed
    assert (found.suspect, found.sides) == (GATES, ("paddle-2",))
    assert "lstm-gates-i-f" in found.faults
    assert found.distance < 1e-14
    values = values_of(verdict, planted.spec)
    assert values["first_mismatch"]["confirmed"] == [found.to_json()]
    text = mismatch_text(values["first_mismatch"])
    assert f"confirmed: with {GATES}, the oracle reproduces paddle-2 " in text
    assert LOOKS_LIKE not in text
    page = report_html(values)
    assert 'id="confirmed"' in page
    assert 'id="causes"' not in page


def test_both_sides_alike_are_reproduced_together(planted):
    wrong = wrong_steps(planted, GATES)
    verdict = compared(planted.spec, dict.fromkeys(SIDES, wrong))
    (found,) = verdict.confirmed
    assert found.sides == ("paddle-2", "tensorflow-2")


def test_each_side_has_a_cause_of_its_own(planted):
    steps = {
        "paddle-2": wrong_steps(planted, GATES),
        "tensorflow-2": wrong_steps(planted, "gates i and o exchanged"),
    }
    verdict = compared(planted.spec, steps)
    assert [(each.suspect, each.sides) for each in verdict.confirmed] == [
        (GATES, ("paddle-2",)),
        ("gates i and o exchanged", ("tensorflow-2",)),
    ]


def test_no_seconds_no_search(planted):
    right, wrong = recorded_steps(planted.spec, 2), wrong_steps(planted, GATES)
    verdict = compared(planted.spec, {"paddle-2": wrong, "tensorflow-2": right}, 0.0)
    assert verdict.mismatches
    assert verdict.confirmed == []


def test_what_is_not_confirmed_looks_like(planted):
    right = recorded_steps(planted.spec, 2)
    wrong = [dict(step) for step in right]
    hidden = "forward/lstm_0/hidden"
    wrong[0][hidden] = wrong[0][hidden] + np.linspace(0.1, 0.2, wrong[0][hidden].size).reshape(
        wrong[0][hidden].shape
    )
    verdict = compared(planted.spec, {"paddle-2": wrong, "tensorflow-2": right})
    assert verdict.confirmed == []
    values = values_of(verdict, planted.spec)
    text = mismatch_text(values["first_mismatch"])
    assert "confirmed: with" not in text
    assert values["first_mismatch"]["confirmed"] == []
    page = report_html(values)
    assert 'id="confirmed"' not in page
    if values["first_mismatch"]["likely_causes"]:
        assert LOOKS_LIKE in text
        assert 'id="causes"' in page


def test_causes_that_cannot_be_told_apart_stand_in_one_line():
    def cause(sentence, distance, *sides):
        return Confirmed(sentence, sentence, (), distance, sides).to_json()

    assert confirmed_lines(
        [cause("one", 3e-16, "paddle-1"), cause("two", 2e-15, "paddle-1")]
    ) == [
        "confirmed: with one, or with two, the oracle reproduces paddle-1 to 2e-15; this step "
        "cannot tell these apart"
    ]
    assert confirmed_lines([cause("one", 0.0, "a", "b"), cause("two", 1e-9, "c")]) == [
        "confirmed: with one, the oracle reproduces a and b exactly",
        "confirmed: with two, the oracle reproduces c to 1e-09",
    ]
    assert confirmed_lines([]) == []
