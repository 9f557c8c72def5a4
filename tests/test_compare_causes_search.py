"""Mistakes planted in a step are confirmed, and nothing else is."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from planted_step import Planted, specs

from parity.twins.compare.causes.suspects import suspects
from parity.twins.compare.causes.views import scaled_gradients
from parity.twins.compare.causes.wrong_step import FORWARD, LOSS, Change
from parity.twins.oracle.training import Oracle, as_float64
from parity.twins.spec.replaceable import replacing
from parity.twins.trace.side import TrainedSide

# For each spec: mistakes of every kind that it allows.
MISTAKES = {
    "stream": [
        "gates i and f exchanged",
        "gates i and o exchanged",
        "gates in the order f, g, i, o",
        "each layer's bias added twice",
        "no dropout at embedded",
        "the dropout mask of lstm_0 at lstm_1",
        "the dropout masks of step 0",
        "dropout that does not scale what it keeps",
        "the state not carried from the batch before",
        "h and c read as each other",
        "h and c passed on as each other",
        "softmax/bias left out",
        "targets one step too late",
        "divided by the rows",
        "the loss multiplied by 2, the number of replicas, or summed twice",
        "the gradient divided by 2, the number of replicas",
        "the gradient of replica 1 alone",
        "no gradient through h from a time step to the one before",
        "each replica's gradient clipped to the limit (0.05) before the sum",
        "no clipping",
        "each gradient clipped by its own norm",
        "a norm that leaves out softmax/kernel",
        "clipping that divides by the norm plus 1e-06",
        "an update by the learning rate of the next epoch",
        "the update multiplied by 2, the number of replicas, or applied twice",
    ],
    "sentences": [
        "a state that goes on changing past the end of each row",
        "divided by all positions, padding included",
        "no gradient through h and c from a time step to the one before",
        "each replica's loss divided by its own tokens and by the number of replicas",
        "an epsilon of 1e-07, not 1e-08",
        "an epsilon added before the bias correction",
        "the bias correction of beta1 one step too late",
        "the bias correction of beta2 left out",
        "Adam's constants rounded to float32",
    ],
    "general": [
        "a decoder that starts from zeros",
        "the decoder's layers starting from the encoder's in the other order",
        "attention that also looks at padding",
        "attention/memory_kernel transposed",
    ],
    "scaled, fed": [
        "attention/scale left out",
    ],
    "bahdanau": [
        "gates r and z exchanged",
        "no gradient through h from a time step to the one before",
        "attention/query_kernel transposed",
    ],
}


@cache
def planted(name: str, dtype: str = "float64", step: int = 1) -> Planted:
    return Planted(specs()[name].replace(dtype=dtype), step)


@pytest.mark.parametrize(
    ("spec", "name"), [(spec, name) for spec, names in MISTAKES.items() for name in names]
)
def test_a_planted_mistake_is_confirmed(spec, name):
    step = planted(spec)
    case = step.with_mistake(step.suspect(name).ways[0])
    assert case.wrong, "the mistake changes something"
    found, _ = step.confirmed(case)
    assert name in [each.suspect for each in found]
    for each in found:
        # what else is confirmed is the same mistake, as far as this step shows
        same = step.with_mistake(_way(step, each.suspect, case))
        for tensor, array in case.recorded.items():
            np.testing.assert_allclose(
                same.recorded[tensor], array, rtol=1e-9, atol=1e-12, err_msg=each.suspect
            )
        assert each.distance < 1e-12


def _way(step, name, case):
    """Return the first way of making a mistake that reproduces a case."""
    suspect = next(each for each in suspects(case) if each.name == name)
    assert suspect.solve is None, "a solved number is no better than a mistake without one"
    return min(
        suspect.ways,
        key=lambda way: np.abs(
            step.with_mistake(way).recorded[case.first] - case.recorded[case.first]
        ).max(),
    )


def test_a_factor_names_all_that_there_are_so_many_of():
    case = planted("stream").case
    workers = replace(case, side=TrainedSide("paddle", replicas=3, synchronous=False))
    assert workers.factors()[3] == "multiplied by 3, the number of replicas"
    in_processes = replace(case, side=TrainedSide("paddle", replicas=4, processes=2))
    assert in_processes.factors("summed twice")[2] == (
        "multiplied by 2, the number of processes, or of replicas in a process, or summed twice"
    )


def test_parameters_without_a_gradient_are_named():
    step, names = planted("stream"), ["lstm_1/bias", "softmax/kernel"]
    case = step.with_mistake(Change(scaled_gradients(names, 0)))
    found, _ = step.confirmed(case)
    assert [each.suspect for each in found] == [f"no gradient of {', '.join(names)}"]


@pytest.mark.parametrize(
    "name", ["gates i and f exchanged", "no clipping", "divided by the rows"]
)
def test_a_mistake_in_float32_is_confirmed(name):
    step = planted("stream", "float32")
    found, _ = step.confirmed(step.with_mistake(step.suspect(name).ways[0]))
    assert [each.suspect for each in found] == [name]
    assert found[0].distance < 1e-5


@pytest.mark.parametrize(
    ("spec", "name", "number"),
    [
        ("stream", "a constant added to gate g", 0.3),
        ("stream", "the loss divided by another number", 17.5),
        ("stream", "the gradient multiplied by a factor", 0.37),
        ("stream", "each element of the gradient clipped to a limit", 2e-3),
        ("stream", "an update by a multiple of the learning rate", 0.3),
        ("stream", "a weight decay in the update", 1e-4),
        ("stream", "a constant added to gate f", 1.0),
        ("sentences", "another beta2", 0.99),
        ("general", "embeddings multiplied by a factor", 1.7),
        ("general", "embeddings multiplied by a factor", 1.0000001),
        ("general", "scores multiplied by a factor", 0.5),
        ("bahdanau", "a constant added to gates r and z", 1.0),
    ],
)
def test_a_number_is_solved_for(spec, name, number):
    step = planted(spec)
    case = step.with_mistake(step.suspect(name).solve(number))
    found, _ = step.confirmed(case)
    assert name in [each.suspect for each in found]
    sentence = next(each.sentence for each in found if each.suspect == name)
    assert f"{number:.9g}" in sentence
    assert "{}" not in sentence


@pytest.mark.parametrize("spec", ["stream", "general"])
@pytest.mark.parametrize(
    "tensor", ["forward/token_loss", "gradient/softmax/kernel", "clipped_gradient/softmax/bias"]
)
def test_a_difference_that_no_mistake_explains_is_not_confirmed(spec, tensor):
    step = planted(spec)
    moved = np.array(step.case.recorded[tensor])
    moved[0] *= 1 + 1e-9
    case = step.recording({tensor: moved})
    assert case.wrong
    assert step.confirmed(case)[0] == []


def test_two_mistakes_at_once_are_not_taken_for_one():
    step = planted("stream")
    first, second = (
        step.suspect(name).ways[0].replacements
        for name in ("gates i and f exchanged", "no clipping")
    )
    case = step.with_mistake(
        replace(step.suspect("no clipping").ways[0], replacements={**first, **second})
    )
    assert step.confirmed(case)[0] == []


def test_a_difference_near_its_bound_confirms_nothing():
    step = planted("stream")
    added = step.suspect("a constant added to gate g").solve
    number = 2.0**-52
    while not (case := step.with_mistake(added(number))).wrong:
        number *= 2
    assert step.confirmed(case)[0] == []
    found, _ = step.confirmed(step.with_mistake(added(1000 * number)))
    assert "a constant added to gate g" in [each.suspect for each in found]


def test_few_wrong_elements_decide_no_number():
    step = planted("stream")
    norm = np.array(step.case.recorded["gradient_norm"]) * 1.25
    case = step.recording({"gradient_norm": norm})
    assert case.wrong == ("gradient_norm",)
    assert step.confirmed(case)[0] == []


def test_a_number_that_no_run_may_have_ends_no_search():
    step = planted("sentences")
    before, recorded = step.case.snapshot, step.case.recorded
    moments = {
        name: 2 * before[name] - recorded[f"clipped_gradient/{name[10:-2]}"]
        for name in before
        if name.endswith("/m")  # as with a beta1 of 2
    }
    assert step.confirmed(step.recording(moments))[0] == []


def test_a_search_ends_when_its_budget_is_spent():
    step = planted("stream")
    case = step.with_mistake(step.suspect("a constant added to gate g").solve(0.02))

    def seconds():
        ticks = iter(range(10**6))
        return lambda: float(next(ticks))

    found, budget = step.confirmed(case, seconds=0.0, clock=seconds())
    assert (found, budget.trials) == ([], 0)
    found, budget = step.confirmed(case, seconds=10.0, clock=seconds())
    assert found == []
    assert 0 < budget.trials < 30
    found, all_tried = step.confirmed(case)
    assert found
    assert all_tried.trials > 30


def test_a_schedule_that_was_wrong_before_is_no_suspect():
    """At step 1, decaying by step and decaying an epoch early have the same rate."""
    step = planted("stream")
    rate = step.suspect("a learning rate that decays with every step").ways[0]
    found, _ = step.confirmed(step.with_mistake(rate))
    assert [each.suspect for each in found] == ["a learning rate that decays with every step"]


# a mistake in the forward pass changes the gradients as its own derivative does


# What these do has no derivative, or leaves it out on purpose.
WITHOUT = ("rounded to", "replica's loss reported")
BY = 1e-6


def loss_and_gradients(case, snapshot):
    oracle = Oracle(case.spec, snapshot)
    oracle.state = {name: as_float64(part) for name, part in case.state.items()}
    found = oracle.step(case.inputs, case.rate, case.sizes)
    return found["loss/replicas"].sum(), found


@pytest.mark.parametrize("spec", ["stream", "sentences", "general", "scaled, fed", "bahdanau"])
def test_gradients_are_those_of_central_differences(spec):
    case = Planted(specs()[spec]).case
    draw = np.random.default_rng(4)
    names = [name for name in case.snapshot if name.startswith("weight/")]
    moves = {name: draw.normal(size=case.snapshot[name].shape) for name in names}
    moved = {
        sign: dict(case.snapshot)
        | {name: case.snapshot[name] + sign * BY * moves[name] for name in names}
        for sign in (1, -1)
    }
    tried = 0
    for suspect in suspects(case):
        if suspect.starts not in (FORWARD, LOSS) or any(
            each in suspect.name for each in WITHOUT
        ):
            continue
        # the orders of gates are alike: exchanges of two are enough
        if "gates in the order" in suspect.name:
            continue
        change = suspect.solve(suspect.guesses[1]) if suspect.solve else suspect.ways[0]
        with replacing(change.replacements):
            _, found = loss_and_gradients(case, case.snapshot)
            above, below = (loss_and_gradients(case, moved[sign])[0] for sign in (1, -1))
        slope = sum(
            float(np.vdot(found[f"gradient/{name[7:]}"], moves[name])) for name in names
        )
        np.testing.assert_allclose(
            slope, (above - below) / (2 * BY), rtol=2e-6, atol=2e-8, err_msg=suspect.name
        )
        tried += 1
    assert tried > 40
