"""Whole runs: what a faithful side records passes; each kind of fault is found, and where.

The traces come from the oracle itself, each step rounded to the precision of the run, as a
framework without a fault would round.
"""

import copy

import numpy as np
import pytest
from oracle_side import (
    compare_sides,
    header,
    recorded_steps,
    small_pairs_spec,
    small_spec,
    write_trace,
)

from parity.base.errors import UsageError
from parity.compare.findings import find_in_exact_check
from parity.compare.tensors import ONE_STEP, ORACLE, Mismatch, Place
from parity.report.mismatch import first_lines
from parity.trace.reader import Trace
from parity.trace.rungs import CHECKS, WITNESS, rung_of, rungs
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES
from parity.twins.compare.run_comparison import RunComparison, compare_traces
from parity.twins.compare.values import run_values
from parity.twins.trace.contents import tensor_names

SIDES = {"paddle-2": "paddle", "tensorflow-2": "tensorflow"}
STEPS = 6  # over the end of an epoch of four


def spec_of(dtype, batching="stream"):
    return small_spec(dtype=dtype, batching=batching, decay_after=1)


@pytest.fixture(scope="module", params=["float64", "float32"])
def run(request):
    spec = spec_of(request.param)
    return spec, recorded_steps(spec, STEPS)


def climbed(spec, left, right):
    """Return the verdict on two sides' steps."""
    return compare_sides(spec, {"paddle-2": left, "tensorflow-2": right})


def both_at(spec, steps):
    """Return the verdict on both frameworks, given a side's steps by number of replicas."""
    sides = {f"{name}-{count}": a for name in SIDES.values() for count, a in steps.items()}
    return compare_sides(spec, sides)


def changed(steps, step, name, change):
    """Return a copy of recorded steps with one tensor of one step changed."""
    steps = [dict(tensors) for tensors in steps]
    steps[step][name] = change(copy.deepcopy(np.asarray(steps[step][name])))
    return steps


def in_float64(steps):
    """Return recorded steps with room for less than a step of float32; sides share one type."""
    return [
        {
            name: np.asarray(array, np.float64 if np.asarray(array).dtype.kind == "f" else None)
            for name, array in tensors.items()
        }
        for tensors in steps
    ]


# what the oracle's own traces do not hold
NOT_RECORDED = ("replicas", "decode", *CHECKS, WITNESS)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("batching", ["stream", "sentences"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("keep", [1.0, 0.75])
def test_a_faithful_side_matches(dtype, batching, optimizer, keep):
    spec = spec_of(dtype, batching).replace(optimizer=optimizer, keep=keep)
    steps = recorded_steps(spec, STEPS)
    verdict = climbed(spec, steps, steps)
    assert verdict.matches
    assert verdict.steps == STEPS
    judged = ORACLE if dtype == "float64" else ONE_STEP
    assert "decode" not in verdict.pairs["paddle-2", judged]  # it writes no text
    for rung in rungs():
        if rung not in (*NOT_RECORDED, "optimizer" if optimizer == "sgd" else ""):
            distance = verdict.pairs["paddle-2", judged][rung]
            assert distance.where is not None
            assert distance.used <= 0.5
    assert verdict.pairs["paddle-2", "tensorflow-2"]["weight"].absolute == 0.0


PAIRS = {
    "lstm": {"cell": "lstm", "attention": "general", "bidirectional": True},
    "gru": {"cell": "gru", "attention": "bahdanau", "input_feeding": True},
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", PAIRS)
def test_a_faithful_side_of_pairs_matches(dtype, case):
    spec = small_pairs_spec(dtype=dtype, **PAIRS[case])
    verdict = both_at(spec, {count: recorded_steps(spec, 3, count) for count in (1, 2)})
    assert verdict.matches
    judged = ORACLE if dtype == "float64" else ONE_STEP
    for rung in rungs():
        if rung not in NOT_RECORDED:
            distance = verdict.pairs["paddle-2", judged][rung]
            assert distance.where is not None
            assert distance.used <= 0.5


def test_what_is_right_with_one_replica_is_laid_to_the_strategy():
    spec = spec_of("float64")
    sources = {"gradient": "layers.py:9 (lstm)", "replicas": "towers.py:7 (Towers)"}
    right = recorded_steps(spec, 1, 1)
    wrong = changed(recorded_steps(spec, 1, 2), 0, "gradient/embed/table", lambda a: a * 2)

    def where(one):
        verdict = compare_sides(spec, {"paddle-1": one, "paddle-2": wrong}, sources=sources)
        return run_values(verdict)["first_mismatch"]["sources"]

    assert where(right) == {
        "paddle-2": "towers.py:7 (Towers), with several replicas of layers.py:9 (lstm)"
    }
    both = changed(right, 0, "gradient/embed/table", lambda a: a * 2)
    assert set(where(both).values()) == {"layers.py:9 (lstm)"}


def test_a_wrong_part_is_told_in_words_of_the_network():
    spec, right = spec_of("float64"), recorded_steps(spec_of("float64"), 1)
    rows, gate = int(right[0]["batch/sizes"][0]), right[0]["gradient/lstm_0/bias"].size // 4

    def told(name, places):
        def times(array):
            array[places] *= 1.7
            return array

        sides = {"paddle-2": right, "tensorflow-2": changed(right, 0, name, times)}
        (each,) = compare_sides(spec, sides).explanations
        return each.sentence

    assert "alone, those of replica 1" in told("forward/lstm_0/hidden", np.s_[rows:])
    assert "from time step 2 of" in told("forward/lstm_0/hidden", np.s_[:, 2:])
    assert "those of gate g" in told("gradient/lstm_0/bias", np.s_[2 * gate : 3 * gate])
    assert "in token 3 of" in told("gradient/embed/table", 3)
    assert "is 1.7 times the oracle" in told("gradient/softmax/bias", np.s_[:])


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_fails_says_what_computes_its_tensor_and_what_was_right(check):
    spec = spec_of("float64")
    sources = {check: "loop.py:7 (run)", "evaluate": "loop.py:7 (run)", "loss": "loss.py:1"}
    verdict = compare_sides(spec, {"paddle-1": recorded_steps(spec, 1, 1)}, sources=sources)
    place = Place(1, "evaluate/valid/losses" if check == "evaluation" else "loss/global", ())
    sides = "paddle-1", f"paddle-1 {check}"
    wrong = Mismatch(
        sides, place, dict.fromkeys(sides, 1.0), 0, 1, 1, "", "paddle-1", check, "so"
    )
    verdict = verdict.with_checks([find_in_exact_check(check, sides, wrong)])
    assert first_lines(run_values(verdict)["first_mismatch"])[1:] == [
        "  who: so",
        "  where: loop.py:7 (run), in paddle-1",
        "  last right: every tensor of the recorded steps, which this check comes after",
        f"  next: the same command with --checks {check} checks this alone",
    ]


def test_an_activation_of_another_shape_is_a_mismatch_of_that_side(run):
    """As where a side takes other positions of the batch for real than its lengths say."""
    spec, steps = run
    wrong = changed(steps, 1, "forward/logits", lambda a: a.reshape(-1, a.shape[-1])[1:])
    verdict = climbed(spec, steps, wrong)
    first = verdict.mismatches[0]
    assert (first.place.tensor, first.place.step) == ("forward/logits", 1)
    assert first.problem == "shape [19, 7] in tensorflow-2, [5, 4, 7] in the oracle"
    assert verdict.departing() == ["tensorflow-2"]


# faults


def test_what_comes_near_to_the_bound_is_measured_with_more_runs(run):
    """Two runs can say half of what sixteen do."""
    spec, steps = run[0], in_float64(run[1])
    comparison = RunComparison({side: header(spec, name) for side, name in SIDES.items()})
    comparison.step(0, dict.fromkeys(SIDES, steps[0]))
    rounding = comparison.rounding["paddle-2"]
    name = "gradient/lstm_0/bias"
    by = ONE_STEP_TIMES["gradient"] * rounding.scale(name)
    assert rounding.refine(name), "it was far from the bound"
    assert not rounding.refine(name)
    assert not rounding.refine("weight/lstm_0/bias"), "counted, not measured"
    near = changed(steps, 0, name, lambda a: a + 0.7 * by)
    comparison = RunComparison({side: header(spec, name) for side, name in SIDES.items()})
    comparison.step(0, {"paddle-2": near[0], **dict.fromkeys(list(SIDES)[1:], steps[0])})
    assert not comparison.rounding["paddle-2"].refine(name), "done already"


CASES = {
    "float64": lambda: spec_of("float64"),
    "float32": lambda: spec_of("float32"),
    "pairs": lambda: small_pairs_spec(**PAIRS["lstm"], num_layers=1),
}


@pytest.mark.parametrize("case", CASES)
def test_one_element_beyond_what_is_allowed_is_found_in_every_tensor(case):
    """At its rung, its tensor and its index. One oracle for many sides.

    Each side has one element changed, in one tensor. They are copies of one side: they share
    the oracle's step, and the measurement of its rounding.
    """
    spec, step = CASES[case](), 1
    steps = in_float64(recorded_steps(spec, 2))
    left_out = ("batch/", "evaluate/", "decode/")
    names = [name for name in tensor_names(spec) if not name.startswith(left_out)]

    def compared(tensors):
        comparison = RunComparison({label: header(spec, "paddle") for label in tensors})
        for number in range(step):
            comparison.step(number, dict.fromkeys(tensors, steps[number]))
        comparison.step(step, tensors)
        return comparison

    right = compared({"right": steps[step]})
    rounding = right.rounding["right"]
    rounding.refine("loss/global")  # as before a side is said to differ
    sides, indices = {"right": steps[step]}, {}
    for number, name in enumerate(names):
        moved = np.array(steps[step][name])
        indices[name] = tuple(number % size for size in moved.shape)
        by = 1e-30
        if rung_of(name) in ONE_STEP_TIMES:
            scale = np.broadcast_to(rounding.scale(name), moved.shape)
            by = ONE_STEP_TIMES[rung_of(name)] * scale[indices[name]]
        moved[indices[name]] += 2 * by
        sides[name] = steps[step] | {name: moved}
    verdict = compared(sides).verdict
    first: dict = {}
    for mismatch in verdict.mismatches:
        if mismatch.sides[1] == ONE_STEP or mismatch.within:
            first.setdefault(mismatch.within or mismatch.sides[0], mismatch)
    assert "right" not in first
    assert verdict.steps == step + 1
    for name in names:
        found = first[name]
        assert (found.place.tensor, found.place.index) == (name, indices[name])
        assert (found.place.step, found.rung) == (step, rung_of(name))


def test_of_two_faults_the_earlier_in_computation_is_told_first(run):
    spec, steps = run
    late = changed(steps, 2, "weight/embed/table", lambda a: a + 0.01)
    early = changed(steps, 2, "forward/embedded", lambda a: a + 0.01)
    for sides in ((late, early), (early, late)):
        verdict = climbed(spec, *sides)
        assert verdict.mismatches[0].place.tensor == "forward/embedded"
        assert verdict.mismatches[-1].place.tensor == "weight/embed/table"


@pytest.mark.parametrize("name", ["tokens", "targets", "lengths", "learning_rate"])
def test_another_batch_is_found_first(run, name):
    spec, steps = run
    steps = recorded_steps(spec_of(spec.training.dtype, "sentences"), 2)
    spec = spec_of(spec.training.dtype, "sentences")

    def other(array):
        return array * (1 + 1e-15) + 1e-16 if name == "learning_rate" else np.roll(array, 1)

    verdict = climbed(spec, steps, changed(steps, 1, f"batch/{name}", other))
    assert verdict.mismatches[0].place.tensor == f"batch/{name}"
    assert verdict.mismatches[0].place.step == 1


def test_a_learning_rate_off_the_schedule_is_found_though_both_sides_have_it(run):
    spec, steps = run
    steps = changed(steps, 4, "batch/learning_rate", lambda a: a * 2)  # decay forgotten
    verdict = climbed(spec, steps, steps)
    assert verdict.mismatches[0].place.tensor == "batch/learning_rate"
    judged = ORACLE if spec.training.dtype == "float64" else ONE_STEP
    assert verdict.mismatches[0].sides[1] == judged


def test_one_side_without_logits_is_a_mismatch(run):
    spec, steps = run
    fewer = [dict(tensors) for tensors in steps]
    del fewer[1]["forward/logits"]
    verdict = climbed(spec, steps, fewer)
    assert verdict.mismatches[0].problem == "only paddle-2 has it"


def test_batches_of_other_sizes_are_a_mismatch_that_ends_the_comparison(run):
    spec, steps = run
    small = recorded_steps(spec.replace(batch_size=3), STEPS)
    verdict = climbed(spec, steps, [*steps[:2], *small[2:]])
    first = verdict.mismatches[0]
    assert (first.rung, first.place.tensor, first.place.step) == ("batch", "batch/tokens", 2)
    assert first.problem == "shape [5, 4] in paddle-2, [3, 4] in tensorflow-2"
    assert verdict.steps == 3


# recorded traces


def traces(tmp_path, spec, left, right, **values):
    return [
        Trace(write_trace(tmp_path / name, header(spec, name) | values.get(name, {}), steps))
        for name, steps in (("paddle", left), ("tensorflow", right))
    ]


def test_different_numbers_of_steps_are_bad_input(tmp_path, run):
    spec, steps = run
    with pytest.raises(UsageError, match="paddle-2 has 6, tensorflow-2 has 5"):
        compare_traces(traces(tmp_path, spec, steps, steps[:-1]))
    with pytest.raises(UsageError, match="paddle-2 has 0, tensorflow-2 has 0"):
        compare_traces(traces(tmp_path, spec, [], []))


def test_different_specs_are_bad_input_listed_field_by_field(tmp_path, run):
    spec, steps = run
    other = spec.replace(keep=0.5, clip_norm=1.0)
    with pytest.raises(UsageError) as caught:
        compare_traces(
            traces(tmp_path, spec, steps, steps, tensorflow={"spec": other.to_json()})
        )
    assert str(caught.value) == (
        "paddle-2 and tensorflow-2 are not of the same run: spec differs: "
        "keep 0.75 against 0.5; clip_norm 0.05 against 1.0"
    )


_UNSTABLE_STEPS = 24  # enough for a last bit to become more than free runs may differ by


def unstable(fault=False):
    """Return a training that amplifies rounding from step to step, and two sides of it.

    The right side's weights are off by the last bit after the first step. With a fault, its
    gradient is off at a later step, too, by less than the free runs have drifted by then.
    """
    wild = {"optimizer": "sgd", "learning_rate": 40.0, "clip_norm": 1e3, "decay": 1.0}
    spec = spec_of("float64").replace(**wild)
    left = recorded_steps(spec, _UNSTABLE_STEPS)
    trainer_steps = recorded_steps(spec, _UNSTABLE_STEPS, nudge=2.0**-52)
    if fault:
        trainer_steps = changed(
            trainer_steps, -1, "gradient/softmax/bias", lambda a: a * (1 + 1e-13)
        )
    return spec, left, trainer_steps


def test_amplified_rounding_is_no_mismatch():
    verdict = climbed(*unstable())
    assert verdict.matches
    assert verdict.steps == _UNSTABLE_STEPS
    assert verdict.amplified is not None, (
        "the free runs must have drifted, or this tests nothing"
    )
    assert verdict.amplified.place.step > 0
    shares = verdict.history.to_json()["used"]
    assert max(share for row in shares.values() for share in row) <= 1, (
        "what is not judged has no share of a bound"
    )
    assert shares["weight/embed/table"][verdict.amplified.place.step - 1] > 0


def test_a_fault_behind_amplified_rounding_is_found():
    verdict = climbed(*unstable(fault=True))
    assert not verdict.matches
    assert verdict.amplified is not None
    first = verdict.mismatches[0]
    assert first.place.tensor == "gradient/softmax/bias"
    assert first.place.step == _UNSTABLE_STEPS - 1
