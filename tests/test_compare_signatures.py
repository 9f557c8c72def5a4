"""What mismatches look like, and the faults that look like them."""

import numpy as np
import pytest

from parity.compare.signatures import (
    Evidence,
    Signature,
    likely_causes,
    narrower,
    signature,
    signatures,
)
from parity.report.mismatch import cause_lines
from parity.twins.faults.catalogue import CATALOGUE

RANDOM = np.random.default_rng(3)
EXPECTED = RANDOM.normal(size=(6, 4, 4))

RELATIONS = {
    "zero": np.zeros_like(EXPECTED),
    "smaller": 0.5 * EXPECTED,
    "larger": 3 * EXPECTED,
    "negated": -EXPECTED,
    "transposed": np.swapaxes(EXPECTED, 1, 2),
    "shifted": np.roll(EXPECTED, 1, axis=1),
    "permuted": EXPECTED[[1, 0, 2, 5, 4, 3]],
    "offset": EXPECTED + 0.25,
    "close": EXPECTED * (1 + 1e-4 * RANDOM.normal(size=EXPECTED.shape)),
    "other": RANDOM.normal(size=EXPECTED.shape),
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_how_two_tensors_relate(relation, dtype):
    found = RELATIONS[relation].astype(dtype)
    seen = signature(Evidence(0, "gradient/x/kernel", found, EXPECTED))
    assert seen.relation == relation


def rows(*changed):
    found = EXPECTED.copy()
    for index in changed:
        found[index] += RANDOM.normal(size=found[index].shape)
    return found


REGIONS = {
    "some replicas": (rows(4, 5), (4, 2), None),
    "some rows": (rows(1), (3, 3), None),
    "last steps": (rows(*((r, n - 1) for r, n in enumerate([4, 2, 3, 4, 1, 2]))), (6,), True),
    "after the first step": (rows((slice(None), slice(1, None))), (3, 3), True),
    "first step": (rows((slice(None), 0)), (3, 3), True),
    "whole": (RANDOM.normal(size=EXPECTED.shape), (3, 3), None),
}


@pytest.mark.parametrize("region", REGIONS)
def test_where_two_tensors_differ(region):
    found, sizes, timed = REGIONS[region]
    if region == "some rows":
        found, sizes = rows(1, 4), (3, 3)
    lengths = np.array([4, 2, 3, 4, 1, 2]) if timed else None
    evidence = Evidence(0, "forward/x/hidden", found, EXPECTED, (), sizes, lengths)
    assert signature(evidence).region == region


def entry(fault, **values):
    given = {"tensor": "forward/lstm/hidden", "relation": "other", "region": "whole"}
    topic = values.pop("topic", f"topic of {fault}")
    kept = Signature(**given | {"wrong": frozenset(["forward/h"]), "late": False} | values)
    cause = f"cause of {fault}"
    given = {"fault": fault, "cause": cause, "topic": topic, "only_in": "seq2seq"}
    return given | {"signature": kept.to_json()}


def test_causes_are_ranked_and_unlike_ones_left_out():
    known = [
        entry("far", tensor="loss/global", relation="smaller"),
        entry("near", late=True),
        entry("same"),
        entry("same", relation="larger"),
    ]
    seen = Signature.from_json(entry("seen")["signature"])
    found = likely_causes(seen, known=known)
    assert [cause.fault for cause in found] == ["same", "near"]
    assert found[0].fit == 1.0
    assert found[0].cause == "cause of same"


def test_a_language_model_has_no_attention_to_be_wrong():
    known = [entry("encoder"), entry("layer")]
    del known[1]["only_in"]
    seen = Signature.from_json(entry("seen")["signature"])
    for network, named in (
        ("third", ["layer"]),
        ("seq2seq", ["encoder", "layer"]),
        ("", ["encoder", "layer"]),
    ):
        causes = likely_causes(seen, network, known)
        assert [cause.fault for cause in causes] == named


def test_a_fault_of_another_strategy_is_not_named():
    known = [entry("of all"), entry("of stages") | {"strategy": "layers"}]
    seen = Signature.from_json(entry("seen")["signature"])
    for strategy, named in (("towers", ["of all"]), ("layers", ["of all", "of stages"])):
        causes = likely_causes(seen, known=known, strategy=strategy)
        assert [cause.fault for cause in causes] == named
    assert len(likely_causes(seen, known=known)) == 2


def test_of_one_topic_all_are_named_and_of_topics_a_few():
    known = [entry(f"alike {n}") | {"topic": "gates"} for n in range(9)]
    known += [entry(f"other {n}") for n in range(9)]
    seen = Signature.from_json(entry("seen")["signature"])
    causes = likely_causes(seen, known=known)
    assert [cause.fault for cause in causes[:9]] == [f"alike {n}" for n in range(9)]
    assert len({cause.topic for cause in causes}) == 3
    told = cause_lines([cause.to_json() for cause in causes])
    assert told[0] == (
        "gates: cause of alike 0 (alike 0); cause of alike 1 (alike 1); "
        "cause of alike 2 (alike 2); or, as likely, alike 3, alike 4, alike 5, alike 6, "
        "alike 7, alike 8"
    )
    assert told[1] == "topic of other 0: cause of other 0 (other 0)"
    assert len(told) == 3


def test_a_mistake_that_the_run_cannot_have_is_not_named():
    known = [
        entry("epsilon", topic="Adam ε"),
        entry("rate"),
        entry("gates", topic="LSTM gates"),
    ]
    seen = Signature.from_json(entry("seen")["signature"])
    for traits, named in (
        ({"sgd", "lstm"}, ["rate", "gates"]),
        ({"adam", "gru"}, ["epsilon", "rate"]),
    ):
        causes = likely_causes(seen, known=known, traits=frozenset(traits))
        assert [cause.fault for cause in causes] == named


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_tensor_without_the_digits_of_its_precision_was_rounded(dtype):
    rounded = EXPECTED.astype(dtype).astype("float64")
    assert narrower(Evidence(0, "gradient/x/kernel", rounded, EXPECTED)) == dtype
    assert narrower(Evidence(0, "gradient/x/kernel", EXPECTED * 1.01, EXPECTED)) == ""
    assert narrower(Evidence(0, "gradient/x/kernel", np.round(EXPECTED), EXPECTED)) == ""


def test_a_difference_of_the_size_of_a_rounding_is_named_as_that():
    norm = np.array(1.2345678901)
    for share, named in ((1e-8, "float32"), (1e-4, ""), (1e-12, "")):
        assert narrower(Evidence(0, "gradient_norm", norm * (1 + share), norm)) == named


def test_nothing_is_named_for_a_mismatch_like_none():
    unlike = Signature("decode/beam_scores", "zero", "some rows", frozenset(), True)
    assert likely_causes(unlike, known=[entry("a"), entry("b")]) == []


def test_the_kept_signatures_are_of_the_catalogue():
    causes = {fault.name: fault.cause for fault in CATALOGUE}
    topics = {(fault.name, fault.topic) for fault in CATALOGUE}
    kept = signatures()
    assert {each["fault"] for each in kept} <= set(causes)
    assert len({each["fault"] for each in kept}) >= 60
    for each in kept:
        assert each["cause"] == causes[each["fault"]]
        assert (each["fault"], each["topic"]) in topics
        mine = likely_causes(Signature.from_json(each["signature"]))
        assert mine[0].fit == 1.0
