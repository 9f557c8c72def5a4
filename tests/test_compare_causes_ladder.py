"""Confirmed causes in a verdict and in its report."""

import html
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest
from oracle_side import compare_sides, recorded_steps, share_of_rows, small_spec
from planted_step import Planted, specs

from parity.report.mismatch import confirmed_lines, first_lines, mismatch_text
from parity.report.verdict_page import report_html
from parity.twins.compare.causes.views import (
    clipped,
    given,
    in_replicas,
    scaled_by,
    summed,
    updated,
)
from parity.twins.compare.causes.wrong_step import Confirmed
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.oracle.training import replica_losses
from parity.twins.spec.replaceable import replacing

SIDES = {"paddle-2": "paddle", "tensorflow-2": "tensorflow"}
GATES = "gates i and f exchanged"


@pytest.fixture(scope="module")
def planted():
    return Planted(specs()["stream"], step=0)


def compared(spec, steps, cause_seconds=1e9, after=0, **values):
    """Return the verdict of the sides' first steps, label -> recorded steps."""
    count = len(steps["paddle-2"])
    sides = {side: steps[side][:count] for side in SIDES}
    return compare_sides(spec, sides, after, cause_seconds, **values)


def wrong_steps(planted, name, steps=2):
    """Return the steps of a side that makes a mistake from the first on."""
    with replacing(planted.suspect(name).ways[0].replacements):
        return recorded_steps(planted.spec, steps)


def causes_of(spec, wrong, **values):
    """Return the sentences confirmed where Paddle's side is wrong, over all its steps."""
    right = recorded_steps(spec, len(wrong))
    sides = {"paddle-2": wrong, "tensorflow-2": right}
    verdict = compared(spec, sides, after=len(wrong), **values)
    assert not verdict.matches
    return [each.sentence for each in verdict.confirmed]


def with_update(spec, steps, change):
    """Return the steps of a side whose weights are updated by another rule."""
    with replacing(updated(change)):
        return recorded_steps(spec, steps)


def nesterov(update, spec, snapshot, slots, gradients, rate):
    moments = {
        f"optimizer/{n}/m": 0.9 * slots[f"optimizer/{n}/m"] + 0.1 * gradient
        for n, gradient in gradients.items()
    }
    return dict(update(spec, snapshot, {**slots, **moments}, gradients, rate))


def test_nesterov_in_adam_is_no_other_rate():
    spec = small_spec(initial_scale=0.5, clip_norm=0.05)
    assert causes_of(spec, with_update(spec, 3, nesterov)) == ["Nesterov's momentum in Adam"]


def test_a_cause_must_hold_in_the_steps_after():
    """In step 0, and there alone, the update is 1.7 times as large."""
    spec = small_spec(initial_scale=0.5, clip_norm=0.05)

    def first_larger(update, spec, snapshot, slots, gradients, rate):
        is_first = float(snapshot["optimizer/beta1_power"]) == 0.9
        return update(spec, snapshot, slots, gradients, rate * (1.7 if is_first else 1.5))

    steps = with_update(spec, 3, first_larger)
    assert causes_of(spec, steps[:1]) == ["an update by 1.7 times the learning rate"]
    assert causes_of(spec, steps) == []


def test_a_cause_must_leave_the_steps_before_right():
    """The rate of the second epoch is lost once; in step 0 that would have been no other."""
    spec = small_spec(initial_scale=0.5, clip_norm=0.05, optimizer="sgd", decay=0.25)
    steps = recorded_steps(spec, 6)
    held = {n: a for n, a in steps[2].items() if n.startswith("weight/")}
    move = {n: 3 * (steps[3][n] - held[n]) for n in held}
    assert any(each.any() for each in move.values())
    wrong = [*steps[:3], steps[3] | {n: held[n] + move[n] for n in held}]
    verdict = compared(spec, {"paddle-2": wrong, "tensorflow-2": steps[:4]})
    assert verdict.mismatches[0].place.step == 3
    assert verdict.confirmed == []


def test_a_rate_a_step_late_is_told_from_that_of_the_first_epoch():
    spec = small_spec(initial_scale=0.5, clip_norm=0.05, optimizer="sgd")
    rates = []

    def late(update, spec, snapshot, slots, gradients, rate):
        rates.append(rate)
        return update(spec, snapshot, slots, gradients, rates[max(len(rates) - 2, 0)])

    found = causes_of(spec, with_update(spec, 6, late))
    assert found == ["an update by the learning rate of the step before (0.01, not 0.005)"]


def test_momentum_in_sgd_is_confirmed_over_all_steps():
    """Step 0 is right; by step 3 the rate has been halved."""
    spec = small_spec(initial_scale=0.5, clip_norm=0.05, optimizer="sgd")
    velocity = {}

    def momentum(update, spec, snapshot, slots, gradients, rate):
        for name, gradient in gradients.items():
            velocity[name] = 0.9 * velocity.get(name, 0.0) + gradient
        return update(spec, snapshot, slots, velocity, rate)

    found = causes_of(spec, with_update(spec, 6, momentum))
    assert found == ["a momentum of 0.9 in SGD"]


def test_a_gradient_that_is_a_mean_is_no_multiple_of_the_sum():
    """Each replica divides by as many positions as its own rows have, padding included."""
    sgd = {"optimizer": "sgd", "batching": "sentences"}
    spec, name = small_spec(initial_scale=0.5, clip_norm=0.05, **sgd), "lstm_0/bias"
    counts = []  # of the replicas, one after another

    def counted(share):
        counts.append(share.batch["tokens"].size)
        return share

    def combine(parts):
        own = zip(parts, counts[-len(parts) :], strict=True)
        return summed([part | {name: part[name] / count} for part, count in own])

    with replacing(in_replicas(counted, combine)):
        wrong = recorded_steps(spec, 3)
    assert counts[0] != counts[1]
    assert causes_of(spec, wrong) == [
        f"the gradient of {name} a mean over each replica's positions, not a sum"
    ]


def norm_in_float32(gradients, limit):
    squares = [np.square(a, dtype=np.float32).sum() for a in gradients.values()]
    norm = np.float64(np.sqrt(np.sum(squares, dtype=np.float32)))
    return {n: a * (limit / max(limit, norm)) for n, a in gradients.items()}, norm


@pytest.mark.parametrize(
    ("limit", "change", "told"),
    [
        (
            *(0.5, scaled_by(factor=0.5)),
            "the limit divided by 2, the number of replicas, or of micro-batches (0.25)",
        ),
        (
            *(0.07, scaled_by(factor=float(np.float32(0.07)) / 0.07)),
            "the limit rounded to float32 (0.0700000003, not 0.07)",
        ),
        (0.05, norm_in_float32, "the norm of the gradient computed in float32"),
        (50.0, norm_in_float32, "the norm of the gradient computed in float32"),
    ],
)
def test_a_wrong_clipping_is_named_as_what_it_is(limit, change, told):
    spec = small_spec(initial_scale=0.5, clip_norm=limit, optimizer="sgd")
    with replacing(clipped(change)):
        wrong = recorded_steps(spec, 3)
    assert causes_of(spec, wrong, settings={"micro_batches": 2}) == [told]


@pytest.mark.parametrize("of_gradient", [np.float32, np.float64])
def test_a_sum_of_losses_computed_in_float32_is_named_as_that(of_gradient):
    @wraps(replica_losses)
    def summed_losses(token_loss, divisor, sizes):
        rows = share_of_rows(token_loss, sizes)
        return np.array([np.sum(each, dtype=np.float32) for each in rows]) / np.float64(divisor)

    spec = small_spec(initial_scale=0.5, clip_norm=0.5, optimizer="sgd")
    of = given(lambda share: replace(share, divisor=1 / np.float64(of_gradient(1 / 20))))
    with replacing({**of, replica_losses: summed_losses}, add=True):
        wrong = recorded_steps(spec, 3)
    assert causes_of(spec, wrong) == ["the sum of the losses computed in float32"]


def test_a_rate_rounded_to_float32_is_named_as_that():
    spec = small_spec(initial_scale=0.5, clip_norm=0.05, optimizer="sgd")
    wrong = with_update(
        spec, 3, lambda update, *rest: update(*rest[:-1], float(np.float32(rest[-1])))
    )
    (found,) = causes_of(spec, wrong)
    assert found.startswith("an update by the learning rate rounded to float32 (0.0099999998")


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
    page = report_html(values)
    assert 'id="confirmed"' in page


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


def test_what_is_not_confirmed_is_described(planted):
    right = recorded_steps(planted.spec, 2)
    wrong = [dict(step) for step in right]
    hidden = "forward/lstm_0/hidden"
    wrong[0][hidden] = right[0][hidden][[1, 0, *range(2, len(right[0][hidden]))]]
    verdict = compared(planted.spec, {"paddle-2": wrong, "tensorflow-2": right})
    assert verdict.confirmed == []
    values = values_of(verdict, planted.spec)
    told = "why: paddle-2 is the oracle with rows 0 and 1 exchanged"
    *_, after, why = first_lines(values["first_mismatch"])
    assert after == "  last right: forward/embedded"
    assert told in why
    assert "confirmed" not in mismatch_text(values["first_mismatch"])
    assert 'id="confirmed"' not in report_html(values)


def test_what_a_step_leaves_as_it_was_is_described(planted):
    right = recorded_steps(planted.spec, 2)
    wrong = [right[0], right[1] | {"weight/softmax/bias": right[0]["weight/softmax/bias"]}]
    verdict = compared(planted.spec, {"paddle-2": wrong, "tensorflow-2": right})
    values = values_of(verdict, planted.spec)
    told = "  why: paddle-2 leaves it as it was before the step"
    assert told in first_lines(values["first_mismatch"])


def test_a_wrong_gradient_without_a_known_cause(planted):
    """Its place is that of the wrong gradient nearest to the loss, which is computed first."""
    right = recorded_steps(planted.spec, 1)
    lowest, nearest = "gradient/embed/table", "gradient/softmax/kernel"
    noise = np.random.default_rng(0)
    wrong = [
        right[0]
        | {name: right[0][name] + noise.normal(size=right[0][name].shape) for name in names}
        for names in ([nearest], [lowest, nearest])
    ]
    near = f"  begin at: {nearest}, the first wrong on the way back from the loss"
    where = "  where: in the backward pass of layers.py:9 (linear), in paddle-2"
    told = [where, "  last right: gradient/softmax/bias"]
    why = ["  why: unknown: none of the 25 mistakes that the oracle tried reproduces it"]
    sources = {nearest: "layers.py:9 (linear)"}
    for step, lines in zip(wrong, (told, [near, *told]), strict=True):
        sides = {"paddle-2": [step], "tensorflow-2": right}
        for seconds, more in ((0.0, []), (1e9, why)):
            verdict = compared(planted.spec, sides, seconds, sources=sources)
            values = values_of(verdict, planted.spec)
            assert first_lines(values["first_mismatch"])[2:] == lines + more
            page, tried = report_html(values), values["first_mismatch"]["causes_tried"]
            assert ("25 mistakes, none of which" in page) == bool(more)
            assert not more or "; ".join(tried) in html.unescape(page)
    # nothing was sought for what a check of whole runs may find later
    assert compared(planted.spec, dict.fromkeys(SIDES, right)).causes_tried is None


def test_other_tokens_than_those_of_the_batch_are_told(planted):
    right = recorded_steps(planted.spec, 2)
    table = {**planted.case.snapshot}["weight/embed/table"]
    wrong = [{**right[0], "forward/embedded": np.array(right[0]["forward/embedded"])}, right[1]]
    wrong[0]["forward/embedded"][:2, 0] = table[[3, 4]]
    verdict = compared(planted.spec, {"paddle-2": wrong, "tensorflow-2": right})
    first = values_of(verdict, planted.spec)["first_mismatch"]
    told = "why: paddle-2 has embeddings of other tokens than those of its batch"
    assert told in first_lines(first)[-1]


def test_causes_that_cannot_be_told_apart_stand_in_one_line():
    def cause(sentence, distance, *sides):
        return Confirmed(sentence, sentence, (), distance, sides, steps=(0, 4)).to_json()

    assert confirmed_lines(
        [cause("one", 3e-16, "paddle-1"), cause("two", 2e-15, "paddle-1")]
    ) == [
        "confirmed: with one, or with two, the oracle reproduces paddle-1 to 2e-15 in every "
        "step from 0 to 4; which of these, no step tells"
    ]
    assert confirmed_lines([cause("one", 0.0, "a", "b"), cause("two", 1e-9, "c")]) == [
        "confirmed: with one, the oracle reproduces a and b exactly in every step from 0 to 4",
        "confirmed: with two, the oracle reproduces c to 1e-09 in every step from 0 to 4",
    ]
    assert confirmed_lines([]) == []
