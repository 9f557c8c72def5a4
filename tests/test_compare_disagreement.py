"""Who differs from whom: one side, one framework, all alike, or each in its own way."""

import numpy as np
import pytest
from oracle_side import compare_sides, recorded_steps, small_spec

from parity.compare.findings import Finding
from parity.compare.tensors import ONE_STEP, ORACLE, Distance, Mismatch, Place
from parity.report.terminal import report_text
from parity.report.verdict_page import report_html
from parity.twins.compare.disagreement import (
    ALL_ALIKE,
    BATCH,
    BETWEEN_SIDES,
    DIFFERENTLY,
    ONE_FRAMEWORK,
    ONE_SIDE,
    REPLICAS,
    SEVERAL,
    find_disagreement,
)
from parity.twins.compare.first_mismatch import blame
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.trace.side import TrainedSide

TENSOR = "gradient/lstm_0/bias"
LOSSES = "loss/replicas"


def mistaken(tensors, by, name=TENSOR):
    """Change one element of a tensor by an amount."""
    array = np.array(tensors[name], np.float64)
    array.flat[1 % array.size] += by
    return tensors | {name: array.astype(tensors[name].dtype)}


def climbed(changes, dtype="float64"):
    """Compare sides, named framework-replicas, each with its own change at step 1."""
    spec, sides = small_spec(dtype=dtype), {}
    for label, change in changes.items():
        right, other = recorded_steps(spec, 2, int(label[-1]))
        sides[label] = [right, other if change is None else change(other)]
    return spec, compare_sides(spec, sides)


def halved(tensors):
    """Halve the loss, as a side does that takes the mean over two replicas."""
    return tensors | {name: tensors[name] / 2 for name in ("loss/global", LOSSES)}


def of_first_replica(tensors):
    """Report the first replica's loss as that of each."""
    losses = tensors[LOSSES][:1].repeat(len(tensors[LOSSES]))
    return tensors | {LOSSES: losses, "loss/global": losses.sum()}


def report(spec, verdict):
    return report_values(Outcome(spec, verdict.sides, verdicts=[verdict]), "small", "")


def wrong(by, name=TENSOR):
    return lambda tensors: mistaken(tensors, by, name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_side_is_blamed_alone(dtype):
    changes = {"paddle-2": None, "tensorflow-2": wrong(0.1)}
    spec, verdict = climbed(changes, dtype)
    found = verdict.disagreement
    assert (found.kind, found.groups, found.right) == (
        ONE_SIDE,
        (("tensorflow-2",),),
        ("paddle-2",),
    )
    first = report(spec, verdict)["first_mismatch"]
    assert first["blame"].startswith(
        "only tensorflow-2 differs from the oracle by 1 times the tensor's largest "
    )
    assert first["disagreement"]["sides"] == ["tensorflow-2"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("count", [2, 4])
def test_sides_that_are_wrong_alike_accuse_the_oracle_or_what_they_share(dtype, count):
    sides = ["paddle-2", "tensorflow-2", "paddle-1", "tensorflow-1"][:count]
    spec, verdict = climbed(dict.fromkeys(sides, wrong(0.1)), dtype)
    assert verdict.disagreement.kind == ALL_ALIKE
    assert (
        verdict.disagreement.within < 1e-6 < 1e-2 < verdict.disagreement.from_oracle[sides[0]]
    )
    values = report(spec, verdict)
    first, both = values["first_mismatch"], "both" if count == 2 else "all 4"
    assert first["blame"].startswith("the sides agree with each other to ")
    assert f"and {both} differ from the oracle by " in first["blame"]
    assert "suspect the oracle, or a mistake that they share" in first["blame"]
    assert first["disagreement"]["kind"] == ALL_ALIKE
    for shown in (report_text(values), report_html(values)):
        assert "suspect the oracle" in " ".join(shown.split())
        assert "docs/witnesses.md" in shown


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sides_that_are_wrong_in_different_ways_are_said_to_be(dtype):
    changes = {"paddle-2": wrong(0.1), "tensorflow-2": wrong(-0.2)}
    spec, verdict = climbed(changes, dtype)
    found = verdict.disagreement
    assert (found.kind, found.groups) == (DIFFERENTLY, (("paddle-2",), ("tensorflow-2",)))
    assert found.apart > max(found.from_oracle.values())
    first = report(spec, verdict)["first_mismatch"]
    assert "in different ways: paddle-2 by " in first["blame"]


FOUR = ("paddle-1", "tensorflow-1", "paddle-2", "tensorflow-2")


def test_one_framework_with_all_its_sides():
    changes = {label: wrong(0.1) if "paddle" in label else None for label in FOUR}
    spec, verdict = climbed(changes)
    assert verdict.disagreement.kind == ONE_FRAMEWORK
    said = report(spec, verdict)["first_mismatch"]["blame"]
    assert said.startswith("all sides of Paddle (paddle-1 and paddle-2) differ ")
    assert said.endswith("; no side of TensorFlow does")


def test_replicas_of_different_number_are_compared_by_their_sum():
    """A mean over replicas in place of a sum, in all sides that have several."""
    found = climbed({"paddle-1": None, "paddle-2": halved, "paddle-3": halved})[1]
    assert found.mismatches[0].place.tensor == LOSSES
    assert found.disagreement.groups == (("paddle-2", "paddle-3"),)


def test_the_values_shown_of_the_oracle_are_those_of_the_side_in_question():
    """Other sides may divide the batch among fewer replicas."""
    changes = {"paddle-1": None, "paddle-2": of_first_replica, "paddle-3": None}
    spec, verdict = climbed(changes)
    right = {label: verdict.oracle[label][LOSSES].tolist() for label in changes}
    assert [len(losses) for losses in right.values()] == [1, 2, 3]
    first = report(spec, verdict)["first_mismatch"]
    assert (first["tensor"], first["index"]) == (LOSSES, [1])
    (line,) = (line for line in first["story"].splitlines() if "oracle, free run " in line)
    assert float(line.split()[-1]) == right["paddle-2"][1]


def test_sides_that_differ_from_each_other_alone():
    sides = {label: TrainedSide(label) for label in ("paddle", "tensorflow")}
    mismatch = Mismatch(
        tuple(sides), Place(0, TENSOR, (0,)), dict.fromkeys(sides, 0.0), 1e-6, 1, 1
    )
    tensors = {"paddle": {TENSOR: np.ones(2)}, "tensorflow": {TENSOR: np.full(2, 0.5)}}
    found = find_disagreement([mismatch], sides, "float64", tensors, {})
    assert (found.kind, found.apart, found.departing) == (BETWEEN_SIDES, 0.5, [])


def test_what_was_not_measured_is_not_said_to_be_different():
    sides = {label: TrainedSide(label) for label in ("paddle", "tensorflow")}
    found = find_disagreement(
        [Mismatch((label, ORACLE), Place(0, TENSOR, (0,))) for label in sides], sides, "float64"
    )
    assert (found.kind, found.departing) == (SEVERAL, list(sides))


def test_a_batch_and_the_replicas_of_one_side():
    other = {"paddle-2": None, "tensorflow-2": wrong(1, "batch/targets")}

    def targets(tensors):
        array = tensors["batch/targets"].copy()
        array[0, 0] = (array[0, 0] + 1) % 7
        return tensors | {"batch/targets": array}

    other["tensorflow-2"] = targets
    assert climbed(other)[1].disagreement.kind == BATCH
    drift = {"paddle-2": wrong(1e-9, "replicas/weight/softmax/bias"), "tensorflow-2": None}
    found = climbed(drift)[1].disagreement
    assert (found.kind, found.departing) == (REPLICAS, ["paddle-2"])


@pytest.mark.parametrize("by_oracle", [True, False])
def test_a_check_that_two_sides_fail_is_not_about_the_first_alone(by_oracle):
    _, verdict = climbed({"paddle-2": None, "tensorflow-2": None})
    place, told = Place(1, "perplexity/test", ()), "paddle-2 without recording"
    found = []
    for side in ("paddle-2", "tensorflow-2"):
        other, within = (ONE_STEP, "") if by_oracle else (f"{side} counted anew", side)
        given = {"within": within, "check": "untraced", "note": f"{side} without recording"}
        found.append(Mismatch((side, other), place, **given))
    findings = [Finding(each.sides, {"untraced": Distance()}, (each,)) for each in found]
    assert blame(verdict.with_checks(findings[:1])) == told
    both = blame(verdict.with_checks(findings))
    suspected = "the oracle, or a mistake" if by_oracle else "a mistake that they share"
    assert both.startswith(
        f"{told}; the same check fails for tensorflow-2: suspect {suspected}"
    )
