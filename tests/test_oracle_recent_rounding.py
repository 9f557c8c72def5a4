"""Steps whose rounding is not measured: which they are, and that no mismatch hides in them."""

import numpy as np
import pytest
from oracle_side import header, recorded_steps, small_pairs_spec, small_spec

from parity.trace.rungs import rung_of
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES
from parity.twins.compare.run_comparison import RunComparison
from parity.twins.compare.values import run_values
from parity.twins.oracle import recent_rounding
from parity.twins.oracle.recent_rounding import RecentRounding
from parity.twins.oracle.rounding import Rounding

STEPS = 12
SIDES = {"paddle-2": "paddle", "tensorflow-2": "tensorflow"}


@pytest.fixture(scope="module", params=["float64", "float32"])
def run(request):
    spec = small_spec(dtype=request.param, batching="stream")
    return spec, recorded_steps(spec, STEPS)


def compared(spec, steps, *, always=False):
    """Compare a side, and the same side as it should be, with the oracle; yield each step.

    Args:
      steps: of each side.
      always: whether to measure rounding in every step.
    """
    comparison = RunComparison({side: header(spec, name) for side, name in SIDES.items()})
    for step, recorded in enumerate(zip(*steps, strict=True)):
        if always:
            comparison._one_step._recent.clear()
        comparison.step(step, dict(zip(comparison.sides, recorded, strict=True)))
        yield comparison
        if not comparison.verdict.matches:
            return


def test_a_correct_side_is_measured_in_few_steps(run):
    spec, steps = run
    *_, comparison = compared(spec, (steps, steps))
    assert comparison.verdict.matches
    unmeasured = comparison.verdict.unmeasured
    assert not {0, 1, 2} & set(unmeasured), "nothing is known yet"
    assert 5 <= len(unmeasured) < STEPS - 3
    assert run_values(comparison.verdict)["rounding_not_measured"] == unmeasured


def test_what_exceeds_the_bound_of_an_unmeasured_step_is_found(run):
    spec, steps = run
    step, bounds = None, {}
    for comparison in compared(spec, (steps, steps)):
        if comparison.verdict.unmeasured:
            step = comparison.verdict.unmeasured[-1]
            rounding: Rounding = comparison.rounding["paddle-2"]
            kinds = ("forward/", "loss/", "gradient/")
            names = [name for name in rounding.exact if name.startswith(kinds)]
            assert all(rounding.expected(name) is not None for name in names)
            exact = rounding.exact
            bounds = {n: ONE_STEP_TIMES[rung_of(n)] * rounding.scale(n) for n in names}
            break
    of_rungs = {rung_of(name): name for name in names if np.size(exact[name])}
    assert set(of_rungs) == {"forward", "loss", "gradient"}
    for name in of_rungs.values():
        # twice, because sixteen runs may show more than two
        wrong = np.array(steps[step][name])
        most = np.argmax(np.abs(wrong))
        wrong.flat[most] = exact[name].flat[most] + 2 * bounds[name]
        other = [dict(each) for each in steps]
        other[step][name] = wrong
        *_, comparison = compared(spec, (other, steps))
        mismatches = comparison.verdict.mismatches
        assert comparison.verdict.steps == step + 1, name
        assert name in {each.place.tensor for each in mismatches if not each.problem}
        assert step not in comparison.verdict.unmeasured


def is_measured(spec, steps, name, share):
    """Let a tensor use a share of the bound that the last steps let expect of it, in a step
    that was not measured; return whether that step is measured then.
    """
    for comparison in compared(spec, (steps, steps)):
        if comparison.verdict.unmeasured:
            step, rounding = comparison.verdict.unmeasured[-1], comparison.rounding["paddle-2"]
            likely, _ = rounding.expected(name)
            apart = np.array(rounding.exact[name])
            break
    apart.flat[0] += share * ONE_STEP_TIMES[rung_of(name)] * likely
    other = [dict(each) for each in steps]
    other[step][name] = apart.astype(steps[step][name].dtype)
    *_, comparison = compared(spec, (other[: step + 1], steps[: step + 1]))
    return step not in comparison.verdict.unmeasured


@pytest.mark.parametrize(("share", "measured"), [(0.35, False), (0.65, True)])
def test_more_than_half_of_an_expected_bound_is_measured(run, monkeypatch, share, measured):
    """It may be far below the bound of a measurement: the report would show a near mismatch."""
    monkeypatch.setitem(recent_rounding._FALL, "gradient/", 1.0)
    assert is_measured(*run, "gradient/lstm_0/bias", share) == measured


@pytest.mark.parametrize(("share", "measured"), [(0.1, False), (0.3, True)])
def test_an_attention_has_less_of_its_bound_than_other_activations(share, measured):
    """Its rounding may become smaller within a few steps, as a softmax becomes sharper."""
    # so many rows that all batches have about as many tokens
    spec = small_pairs_spec(attention="scaled", num_layers=1, batch_size=96)
    steps = recorded_steps(spec, 6)
    assert is_measured(spec, steps, "forward/attention/context", share) == measured


def test_the_least_of_three_measurements_counts_for_seven_more_steps():
    recent = RecentRounding()
    for error in (2.0, 1.0, 3.0):
        recent.begin([100])
        assert recent.error("gradient/x", 1.0) is None
        recent.add({"gradient/x": (error, 10.0), "forward/x": (error, 10.0)})
    for _ in range(7):
        recent.begin([100])
        assert recent.error("forward/x", 20.0) == 2.0  # it grows with the activations
        assert recent.error("gradient/x", 20.0) == 1.0
        assert recent.error("gradient/x", 5.0) == 0.5
        assert recent.error("gradient/other", 5.0) is None
    recent.begin([100])
    assert recent.error("forward/x", 20.0) is None


@pytest.mark.parametrize(
    ("tokens", "alike"), [(65, False), (95, True), (175, True), (190, False)]
)
def test_batches_of_up_to_twice_as_many_tokens_are_alike(tokens, alike):
    recent = RecentRounding()
    for _ in range(3):
        recent.begin([128])
        recent.add({"gradient/x": (1.0, 10.0)})
    recent.begin([tokens])
    assert (recent.error("gradient/x", 10.0) is not None) == alike
