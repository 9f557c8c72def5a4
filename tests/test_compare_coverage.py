"""Coverage: each case is counted where a step meets it, and named where none does."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracle_side import (
    compare_sides,
    recorded_steps,
    small_pairs_spec,
    small_spec,
    text_batch,
)

from data.load import load_pair_text, load_stream_text
from parity.compare.coverage import Fact, join_facts, not_covered
from parity.report.terminal import coloured, report_text
from parity.report.verdict_page import report_html
from parity.twins.compare.step_coverage import (
    SOFTMAX_ENDS,
    StepCoverage,
    answer_facts,
    staleness_fact,
)
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.decoding.hypotheses import Hypotheses, Hypothesis
from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import preset
from parity.twins.spec.step_arrays import step_inputs
from parity.twins.spec.strategies import StrategySettings
from parity.twins.spec.training import learning_rate
from parity.twins.trace.side import TrainedSide

LOADS = {"language-model": load_stream_text, "seq2seq": load_pair_text}
SIDES = {
    f"{name}-{count}": TrainedSide(name, "one-copy", count, "fast")
    for name in ("paddle", "tensorflow")
    for count in (1, 2, 3)
}
DECODING = {
    "answer ended by <eos>",
    "answer cut off at the limit",
    "beam search ended early",
    "tie between answers",
}


# of these, the first five are decided by tensors; resumed steps meet them
LIMITS = {
    "denormal gradient",
    "zero gradient",
    "loss beyond 63 nats",
    "hidden unit saturated",
    "embedding longer than 1",
    "clip norm inexact in float32",
}


def counts(facts):
    """Return case -> how often it was met."""
    return {fact.name: fact.count for fact in facts}


def counted(spec, batches, norms=None, per_epoch=4, sides=SIDES):
    """Return the coverage of some steps, given their batches and gradient norms."""
    steps = StepCoverage(spec, per_epoch, sides)
    for step, batch in enumerate(batches):
        inputs = step_inputs(spec, step, batch)
        norm = 1.0 if norms is None else norms[step]
        recorded = {
            label: {"batch/sizes": np.array(split_rows(inputs.rows, side.replicas))}
            for label, side in sides.items()
        }
        oracle = {label: {"gradient_norm": np.array(norm)} for label in sides}
        steps.step(step, recorded, dict.fromkeys(recorded, inputs), oracle)
    return steps.facts


@pytest.mark.parametrize(
    "network", ["language-model", pytest.param("seq2seq", marks=pytest.mark.thorough)]
)
def test_the_first_steps_of_the_proof_preset_meet_every_case(network, cache):
    spec = preset(network, "proof").replace(dtype="float64")
    text = LOADS[network](None, cache, spec.values())
    spec = spec.replace(**text.sizes)
    batches = [text.train.batch(step) for step in range(20)]
    oracle, norms, per_epoch = Oracle(spec, initial_snapshot(spec)), [], 0
    per_epoch = text.train.batches_per_epoch
    for step, batch in enumerate(batches):
        inputs = step_inputs(spec, step, batch)
        rate = learning_rate(spec.training, step // per_epoch)
        found = oracle.step(inputs, rate, [inputs.rows])
        norms.append(float(found["gradient_norm"]))
    coverage = counted(spec, batches, norms, per_epoch)
    limits = LIMITS - {"clip norm inexact in float32"}
    decoding = DECODING if network == "seq2seq" else set()
    assert set(not_covered([coverage])) == limits | decoding
    found = counts(coverage)
    assert 6 <= found["gradient clipped"] <= 14
    assert found["new epoch"] == found["learning rate decayed"] == 2
    assert found["partial batch"] >= 2
    assert text.best_perplexity("test") is None


def test_what_a_continuous_text_meets():
    spec = small_spec(decay=0.5)
    lengths = [[4] * 5] * 3 + [[1, 1, 0, 0, 0]] + [[4] * 5] * 2
    batches = []
    for step, of_rows in enumerate(lengths):
        batch = copy.copy(text_batch(spec, step))
        batches.append(type(batch)(batch.tokens, batch.targets, np.array(of_rows), batch.carry))
    found = counts(counted(spec, batches, [1.0, 0.01, 1.0, 1.0, 1.0, 0.02]))
    assert found["gradient clipped"] == 4
    assert found["gradient not clipped"] == 2
    assert found["Adam's moments continued"] == 5
    assert found["learning rate decayed"] == found["new epoch"] == found["state reset"] == 1
    assert found["state carried"] == 4
    assert found["partial batch"] == found["padding"] == found["row without a token"] == 1
    assert found["row of one token"] == found["replica without a token"] == 1
    assert found["row of full length"] == 5
    assert found["rows reshuffled"] == 2, "other tokens at the same places of the next epoch"
    assert found["dropout"] == found["uneven shares"] == 6
    assert found["1 replica"] == found["2 replicas"] == found["3 replicas"] == 2
    assert found["3 layers or more"] == 0


def test_limits_are_covered_by_what_reaches_them_alone():
    spec = small_spec(clip_norm=0.7)
    inputs, steps = step_inputs(spec, 0, text_batch(spec, 0)), StepCoverage(spec, 4, SIDES)
    for loss, hidden in ((63.0, 0.99), (63.5, -0.999)):
        tensors = {"gradient_norm": np.array(1.0), "forward/token_loss": np.array([0.0, loss])}
        tensors["forward/lstm_1/hidden"] = np.array([[hidden, 0.5]])
        tensors["gradient/softmax/bias"] = np.array([0.0, 1e-39] if loss > 63 else [1.0])
        tensors["forward/embedded"] = np.array([[[0.1, hidden]], [[0.5, 0.5]]])
        recorded = {label: {"batch/sizes": np.array([inputs.rows])} for label in SIDES}
        inputs_of = dict.fromkeys(SIDES, inputs)
        steps.step(0, recorded, inputs_of, dict.fromkeys(SIDES, tensors))
    assert {name: counts(steps.facts)[name] for name in LIMITS} == dict.fromkeys(LIMITS, 1)
    for file in ("paddle_impl/layers.py", "tf_impl/kernels.py"):
        text = (Path(__file__).parents[1] / file).read_text()
        (ends,) = re.findall(r"^_LARGEST_LOSS = ([\d.]+)", text, re.MULTILINE)
        assert float(ends) == SOFTMAX_ENDS, "the side's branch is taken from there on"


# where a side's code computes one of two things by a value -> the cases that take either
def test_layouts_and_schedules_that_hide_a_mistake_are_named():
    two = TrainedSide("paddle", "nccl2", 2, processes=2)
    four = replace(two, replicas=4)
    name = "several replicas in a process"
    for sides, count, named in (
        ({"a": TrainedSide("paddle", replicas=4)}, 0, False),
        ({"a": two}, 0, True),
        ({"a": two, "b": four}, 1, False),
    ):
        facts = StepCoverage(small_spec(), 4, sides).facts
        assert (counts(facts)[name], name in not_covered([facts])) == (count, named)
    settings = StrategySettings(schedule="1", staleness=2)
    free = {"a": TrainedSide("paddle", "a", 2, synchronous=False, settings=settings)}
    assert staleness_fact(free, {"a": {0: 5, 1: 3}}).missing
    assert staleness_fact(free, {"a": {0: 5, 2: 3}}).amount == "3 of 8 updates"
    assert not staleness_fact({"a": two}, {}).applies


def test_an_unknown_word_counts_where_it_is_real_only():
    spec = small_spec()
    batch = text_batch(spec, 0)
    tokens = np.full_like(batch.tokens, 3)
    tokens[:, 1:] = 0  # `<unk>`, or padding
    lengths = np.ones(5, np.int64)
    found = counts(counted(spec, [type(batch)(tokens, tokens, lengths, False)]))
    assert found["<unk> in tokens"] == found["<unk> in targets"] == 0
    lengths[2] = 2
    found = counts(counted(spec, [type(batch)(tokens, tokens, lengths, False)]))
    assert found["<unk> in tokens"] == found["<unk> in targets"] == 1


def test_the_same_order_in_every_epoch_is_named():
    spec = small_spec(batching="sentences")
    batches = [text_batch(spec, step % 2) for step in range(4)]
    assert "rows reshuffled" in not_covered([counted(spec, batches, per_epoch=2)])
    batches = [text_batch(spec, step) for step in range(4)]
    coverage = counted(spec, batches, per_epoch=2)
    assert counts(coverage)["rows reshuffled"] == 2
    assert "state carried" not in not_covered([coverage]), "sentences do not carry it"


def test_what_pairs_cannot_meet_is_not_named():
    spec = small_pairs_spec(optimizer="sgd", decay=1.0, keep=1.0)
    coverage = counted(spec, [text_batch(spec, step) for step in range(3)])
    missing = not_covered([coverage])
    for name in ("row of one token", "state carried", "dropout", "learning rate decayed"):
        assert not counts(coverage)[name]
        assert name not in missing
    assert "Adam's moments continued" not in missing
    assert "new epoch" in missing
    assert counts(coverage)["source of full length"] == 3


def test_answers_are_counted_by_how_their_search_ended():
    facts = StepCoverage(small_pairs_spec(), 4, SIDES).facts
    assert set(not_covered([facts])) >= DECODING
    ended, cut = Hypothesis((4,), True, -1.0, -1.0), Hypothesis((4, 5), False, -2.0, -2.0)
    greedy = answer_facts([Hypotheses((ended,), 0.5), Hypotheses((ended, cut), 0.0)])
    beam = answer_facts([Hypotheses((ended, ended), 1e-13, ended_early=True)])
    found = {fact.name: fact for fact in join_facts(facts, greedy, beam)}
    assert [found[name].count for name in sorted(DECODING)] == [1, 3, 1, 2]
    assert found["tie between answers"].amount == "2 of 3 searches"


def test_facts_add_up_and_one_precision_is_enough():
    first = join_facts(
        [Fact("a", "", 0, 4), Fact("b", "", 0, 4), Fact("c", "", applies=False)],
        [Fact("a", "", 0, 2)],
    )
    second = [Fact("a", "", 3, 4)]
    assert [fact.amount for fact in first] == ["0 of 6 steps", "0 of 4 steps", "no"]
    assert not_covered([first]) == ["a", "b"]
    assert not_covered([first, second]) == ["b"]


@pytest.fixture(scope="module")
def report():
    """Return the report of a short run that meets some cases only."""
    spec = small_spec()
    verdict = compare_sides(
        spec, dict.fromkeys(("paddle-2", "tensorflow-2"), recorded_steps(spec, 2))
    )
    outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
    return report_values(outcome, "small", "")


def test_every_report_says_what_it_covers_and_what_not(report):
    assert report["verdict"] == "match"
    assert "new epoch" in report["not_covered"]
    assert "state carried" not in report["not_covered"]
    facts = {fact["name"]: fact for fact in report["runs"][0]["coverage"]}
    assert (facts["state carried"]["count"], facts["state carried"]["of"]) == (1, 2)
    lines = report_text(report).splitlines()
    assert any(line.split() == ["state", "carried", "1", "of", "2", "steps"] for line in lines)
    named = f"not covered by this run: {', '.join(report['not_covered'])}"
    assert f" {named} verdict: " in " ".join("\n".join(lines).split())  # it is wrapped
    count = len(report["not_covered"])
    assert lines[-1] == f"verdict: match, with {count} cases not covered"
    shown = coloured("\n".join(lines), report)
    (yellow,) = re.findall("\033\\[33m(.*?)\033\\[0m", shown, re.DOTALL)
    assert " ".join(yellow.split()) == named
    page = report_html(report)
    assert '<p class="uncovered" id="not-covered">not covered by this run: ' in page
    assert "The step was the first of an epoch that followed another one." in page
