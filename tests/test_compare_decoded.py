"""The decode rung: other tokens, other scores, ties, and what cannot be compared."""

import copy
import json

import numpy as np
import pytest
from oracle_side import compare_sides, recorded_steps, small_pairs_spec

from parity.base.errors import NumericFailure, UsageError
from parity.compare.tensors import ONE_STEP
from parity.report.mismatch import describe_mismatch
from parity.twins.compare import decoded_answers
from parity.twins.compare.decoded_answers import (
    compare_searches,
    score_recorded,
    scores_again,
)
from parity.twins.compare.verdict import RunVerdict
from parity.twins.oracle.decode import OracleModel
from parity.twins.oracle.rounding import rounding_of_scores
from parity.twins.trace.decoded import SEARCHES, decode, decode_tensors

SIDES = {"paddle-2": "paddle", "tensorflow-2": "tensorflow"}
SOURCE = np.array([[4, 5, 6, 4], [6, 5, 0, 0], [5, 4, 4, 0]])
LENGTHS = np.array([4, 2, 3])
SETTINGS = 3, 0.6, 4  # beam, length penalty, most tokens
# Two tokens of the target vocabulary that are made twins.
A, B = 6, 7


def spec_of(dtype):
    return small_pairs_spec(dtype=dtype, initial_scale=1.5, learning_rate=1e-3)


def oracle(weights):
    weights = {
        n.split("/", 1)[1]: np.asarray(a, np.float64)
        for n, a in weights.items()
        if n.startswith("weight/")
    }
    return lambda model: OracleModel(model, weights)


def decoded(spec, tensors):
    """Return what a faithful side decodes with the weights in a step's tensors."""
    model = oracle(tensors)(spec.model)
    return decode_tensors(SOURCE, LENGTHS, decode(model, SOURCE, LENGTHS, *SETTINGS), *SETTINGS)


@pytest.fixture(scope="module", params=["float64", "float32"])
def faithful(request):
    """Return a spec and what a side without a fault records of a step, decoding included."""
    spec = spec_of(request.param)
    (tensors,) = recorded_steps(spec, 1)
    return spec, tensors | decoded(spec, tensors)


@pytest.fixture(scope="module")
def tied(faithful):
    """Return the same, where tokens A and B are the same but for 1e-13 nats."""
    spec, tensors = faithful
    tensors = dict(tensors)
    trained = {name: np.array(array) for name, array in tensors.items()}
    for name in ("weight/decoder/embed/table",):
        trained[name][B] = trained[name][A]
    trained["weight/softmax/kernel"][:, B] = trained["weight/softmax/kernel"][:, A]
    trained["weight/softmax/bias"][[A, B]] += 6.0
    trained["weight/softmax/bias"][B] = trained["weight/softmax/bias"][A]
    return spec, trained


def judged(spec, recorded, expected=None):
    """Compare what two sides decoded, the one as given, the other without a fault."""
    tensors = (recorded, recorded if expected is None else expected)
    pairs = [tuple(SIDES)] if spec.training.dtype == "float64" else []
    found = compare_searches(spec, 0, dict(zip(SIDES, tensors, strict=True)), pairs)
    verdict = RunVerdict(spec.training.dtype).with_checks(found)
    return verdict, list(verdict.mismatches)


def changed(tensors, **changes):
    tensors = {name: copy.deepcopy(array) for name, array in tensors.items()}
    for name, (index, value) in changes.items():
        tensors[f"decode/{name}"][index] = value
    return tensors


def test_a_faithful_side_matches(faithful):
    spec, tensors = faithful
    verdict = compare_sides(spec, {side: [tensors] for side in SIDES})
    assert verdict.matches
    assert not verdict.ties
    distance = verdict.pairs["paddle-2", ONE_STEP]["decode"]
    assert distance.used <= 0.5
    assert len(tensors["decode/beam_tokens"][0]) == 3
    assert (
        len({tuple(row) for row in tensors["decode/beam_tokens"].reshape(-1, 4).tolist()}) > 3
    )


def rank_with_tokens(tensors, kind="beam"):
    """Return (sentence, rank) of a hypothesis of two tokens at least."""
    written = (tensors[f"decode/{kind}_tokens"] >= 0).sum(axis=2)
    return tuple(map(int, np.argwhere(written >= 2)[-1]))


@pytest.mark.parametrize("kind", SEARCHES)
def test_another_token_is_a_mismatch_at_its_place(faithful, kind):
    spec, tensors = faithful
    row, rank = rank_with_tokens(tensors, kind)
    before = int(tensors[f"decode/{kind}_tokens"][row, rank, 1])
    other = 4 if before != 4 else 5
    bad = changed(tensors, **{f"{kind}_tokens": ((row, rank, 1), other)})
    verdict, found = judged(spec, bad, tensors)
    first = found[0]
    assert not verdict.ties
    assert first.place.tensor == f"decode/{kind}_tokens"
    assert first.place.index == (row, rank, 1)
    assert first.values == {"paddle-2": other, ONE_STEP: before}
    story = describe_mismatch(first, {}, spec.training.dtype)
    assert story.startswith(
        f"first mismatch, on the rung decode: paddle-2 and {ONE_STEP} "
        f"differ in decode/{kind}_tokens, step 0: "
    )
    assert f"sentence {row}, rank {rank}, position 1: token {other} against {before}, " in story
    assert "no tie, decided by " in story
    sides = {mismatch.sides for mismatch in found}
    between = {("paddle-2", "tensorflow-2")} if spec.training.dtype == "float64" else set()
    assert sides == {("paddle-2", ONE_STEP)} | between


def test_a_score_beyond_the_tolerance_is_a_mismatch(faithful):
    spec, tensors = faithful
    row, rank = rank_with_tokens(tensors)
    score = tensors["decode/beam_scores"][row, rank]
    share = {"float64": 1e-11, "float32": 1e-5}[spec.training.dtype]
    for much, matches in ((0.9, True), (3.0, False)):
        bad = changed(tensors, beam_scores=((row, rank), score * (1 + much * share)))
        _, found = judged(spec, bad, tensors)
        assert (not found) == matches
    assert found[0].place.tensor == "decode/beam_scores"
    assert found[0].place.index == (row, rank)
    assert found[0].allowed < abs(found[0].values["paddle-2"] - score) < 4 * share * abs(score)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_is_a_numeric_failure(faithful, value):
    spec, tensors = faithful
    bad = changed(tensors, beam_scores=((2, 1), value))
    with pytest.raises(NumericFailure) as caught:
        judged(spec, tensors, bad)
    assert str(caught.value) == f"tensorflow-2: {value} in decode/beam_scores[2, 1], step 0"


def other_than(tensors, name, value):
    return dict(tensors) | {f"decode/{name}": np.asarray(value)}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("settings", [2.0, 0.6, 4.0], "decode/settings is [2.0, 0.6, 4.0] against [3.0, 0.6"),
        ("source_lengths", [4, 2, 2], "decode/source_lengths is [4, 2, 2] against [4, 2, 3]"),
        ("source", SOURCE + 1, "decode/source is [[5, 6, 7, 5], "),
    ],
)
def test_sides_that_decoded_otherwise_are_not_compared(faithful, name, value, said):
    spec, tensors = faithful
    with pytest.raises(UsageError) as caught:
        judged(spec, tensors, other_than(tensors, name, value))
    assert str(caught.value).startswith(f"tensorflow-2, step 0: {said}")
    assert str(caught.value).endswith("; allowed: one for all sides")


@pytest.mark.parametrize("lacking", SIDES)
def test_a_side_that_did_not_decode_is_named(faithful, lacking):
    spec, tensors = faithful
    steps = dict.fromkeys(SIDES, tensors)
    steps[lacking] = {n: a for n, a in tensors.items() if not n.startswith("decode/")}
    with pytest.raises(UsageError, match=f"{lacking}, step 0: decode/source is missing"):
        compare_sides(spec, {side: [steps[side]] for side in SIDES})


# ties


def broken_otherwise(spec, weights, apart):
    """Return what a side decoded whose rounding puts B a little above A."""
    other = dict(weights)
    other["weight/softmax/bias"] = np.array(weights["weight/softmax/bias"], np.float64)
    other["weight/softmax/bias"][B] += apart
    return dict(weights) | decoded(spec, other)


APART = {"float64": 1e-13, "float32": 1e-9}


def test_a_tie_is_told_with_both_scores_and_is_no_mismatch(tied):
    spec, weights = tied
    apart = APART[spec.training.dtype]
    recorded = broken_otherwise(spec, weights, apart)
    straight = dict(weights) | decoded(spec, weights)
    verdict, found = judged(spec, recorded, straight)
    assert not found
    assert {tie.place.tensor for tie in verdict.ties} == {
        "decode/greedy_tokens",
        "decode/beam_tokens",
    }
    for tie in verdict.ties:
        row, rank, at = tie.place.index
        pair = {int(each[tie.place.tensor][row, rank, at]) for each in (recorded, straight)}
        assert pair == {A, B}
        assert tie.side == "paddle-2"
        assert tie.scores == pytest.approx([tie.scores[0]] * 2, abs=1e-6)
        assert tie.margin <= 1e-9
        text = str(tie)
        assert f"sentence {row}, rank {rank}, position {at}: a tie that broke the other" in text
        assert f"scores {tie.scores[0]:.9g} and {tie.scores[1]:.9g} (oracle)" in text
        assert tie.to_json()["scores"] == list(tie.scores)


def test_the_same_by_more_than_rounding_is_a_mismatch(tied):
    spec, weights = tied
    apart = {"float64": 1e-6, "float32": 1e-2}[spec.training.dtype]
    weights = dict(weights)
    weights["weight/softmax/bias"] = np.array(weights["weight/softmax/bias"], np.float64)
    weights["weight/softmax/bias"][A] += apart
    recorded = broken_otherwise(spec, weights, 2 * apart)
    verdict, found = judged(spec, recorded)
    # A B and B A are a tie in the beam whatever the two are apart
    assert {tie.place.tensor for tie in verdict.ties} <= {"decode/beam_tokens"}
    assert found[0].place.tensor == "decode/greedy_tokens"
    assert "no tie, decided by " in found[0].problem


@pytest.mark.parametrize("what", ["scores", "tokens", "no such token", "a gap"])
def test_in_a_tie_the_sides_own_score_is_the_oracles_of_its_own_tokens(tied, what):
    """A tie excuses other tokens, not a score that does not belong to them."""
    spec, weights = tied
    recorded = broken_otherwise(spec, weights, APART[spec.training.dtype])
    row, rank = rank_with_tokens(recorded)
    name = "beam_scores"
    if what == "scores":
        value = recorded["decode/beam_scores"][row, rank] * (1 + 1e-3)
        bad = changed(recorded, beam_scores=((row, rank), value))
    else:
        token = {"tokens": 4, "no such token": 99, "a gap": -1}[what]
        bad = changed(recorded, beam_tokens=((row, rank, 0), token))
    verdict, found = judged(spec, bad)
    assert verdict.ties
    assert found[0].place.tensor == f"decode/{name}"
    assert found[0].place.index == (row, rank)
    if what in ("no such token", "a gap"):
        assert "against nan" in found[0].problem
        json.dumps(found[0].values, allow_nan=False)


def test_scores_of_weights_that_amplify_rounding_may_differ_by_as_much():
    """Not by more: of such weights the table's bound is too narrow."""
    spec = small_pairs_spec(dtype="float32", initial_scale=30.0)
    (tensors,) = recorded_steps(spec, 1)
    tensors = tensors | decoded(spec, tensors)
    row, rank = rank_with_tokens(tensors)

    def score(weights):
        dtype = next(iter(weights.values())).dtype.type
        return score_recorded(OracleModel(spec.model, weights, dtype), tensors, 9)("beam", row)

    rounding = rounding_of_scores(tensors, "float32", score)
    should = tensors["decode/beam_scores"][row, rank]
    assert 2 * rounding > 1e-5 + 1e-5 * abs(should), "or the table would do"
    for times, differs in ((2, False), (40, True)):
        moved = changed(tensors, beam_scores=((row, rank), should + times * rounding))
        assert bool(judged(spec, moved, tensors)[1]) == differs


def test_many_sentences_are_scored_at_a_time_as_each_by_itself(faithful, monkeypatch):
    """Also where one search has found fewer hypotheses, and one has a hole among its tokens."""
    spec, tensors = faithful
    row, rank = rank_with_tokens(tensors)
    tensors = changed(tensors, beam_tokens=((row, rank, 0), -1))
    tensors = changed(tensors, beam_tokens=((0, -1), -1), beam_finished=((0, -1), False))
    model = oracle(tensors)(spec.model)
    alone = score_recorded(model, tensors, 9)
    expected = [alone(search, row) for search in SEARCHES for row in range(len(SOURCE))]
    expected = np.concatenate(expected)
    assert np.isneginf(expected).any()
    assert np.isnan(expected).any()
    for at_a_time in (2, 64):
        monkeypatch.setattr(decoded_answers, "_AT_A_TIME", at_a_time)
        found = scores_again(spec.model, tensors, model.weights)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
