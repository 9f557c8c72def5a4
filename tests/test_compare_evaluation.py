"""What a side evaluates after its last recorded step, compared with the oracle."""

from dataclasses import replace

import numpy as np
import pytest
from oracle_side import OracleStrategy, small_pairs_spec, small_spec, text

from parity.base.errors import UsageError
from parity.trace.reader import Trace
from parity.twins.cli.options import TrainOptions
from parity.twins.compare.evaluation import EvaluationRung
from parity.twins.compare.first_mismatch import blame
from parity.twins.compare.run_comparison import RunComparison
from parity.twins.oracle.language_model import network_function
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.step_arrays import StepResult, dropout_masks
from parity.twins.trace.evaluated import (
    SPLITS,
    evaluated_names,
    evaluation_tensors,
    recorded_evaluation,
)
from parity.twins.training.evaluate import batches_to_evaluate, evaluate
from parity.twins.training.start import Side, run_training
from parity.twins.training.strategy import Build

SPECS = {"stream": small_spec(), "sentences": small_spec(batching="sentences")}
SIDES = ("paddle-2", "tensorflow-2")
STEPS = 2


class Paddle(OracleStrategy):
    framework = "paddle"


class TensorFlow(OracleStrategy):
    framework = "tensorflow"


class Forgetful(TensorFlow):
    """Starts every evaluated batch from a state of zero."""

    def evaluate(self, inputs, state):
        return super().evaluate(inputs, zero_state(self.spec, inputs.rows))


def record(folder, spec, strategy, **options):
    """Record a run; return its header and its steps."""
    run_training(
        Side(lambda spec, build: strategy(spec, build), dict),
        text(spec),
        spec,
        TrainOptions(out=folder, trace=folder, steps=STEPS, replicas=2, **options),
    )
    trace = Trace(folder)
    return trace.header, dict(trace.steps())


def judged(tmp_path, spec, other=TensorFlow, change=lambda tensors: None):
    """Return the verdict on Paddle's and another side's run, the last step changed."""
    sides = {
        "paddle-2": record(tmp_path / "a", spec, Paddle),
        "tensorflow-2": record(tmp_path / "b", spec, other),
    }
    change(sides["tensorflow-2"][1][STEPS - 1])
    headers = {label: header for label, (header, _) in sides.items()}
    comparison = RunComparison(headers, cause_seconds=1.0)
    for step in range(STEPS):
        comparison.step(step, {label: steps[step] for label, (_, steps) in sides.items()})
    return comparison.verdict


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("batching", SPECS)
def test_a_faithful_side_matches(tmp_path, batching, dtype):
    verdict = judged(tmp_path, SPECS[batching].replace(dtype=dtype))
    assert verdict.matches
    for pair, rungs in verdict.pairs.items():
        if pair[1] != "oracle":
            assert rungs["evaluation"].where is not None, pair
    worst = verdict.pairs["tensorflow-2", "oracle, one step"]["evaluation"]
    assert worst.used < 0.5


def test_a_mistake_of_all_sides_is_not_blamed_on_one(tmp_path, monkeypatch):
    monkeypatch.setattr("parity.twins.training.evaluate.perplexity", lambda loss: loss)
    verdict = judged(tmp_path, SPECS["stream"])
    assert verdict.departing() == ["paddle-2", "tensorflow-2"]
    assert blame(verdict).startswith(
        "paddle-2 and tensorflow-2 differ from the oracle by 0.72 times the tensor's largest "
        "value: suspect the oracle, or a mistake that they share"
    )
    said = {(each.sides, each.suspect) for each in verdict.confirmed}
    assert said == {((side,), "the mean loss itself") for side in SIDES}


def nudged(name, by):
    def change(tensors):
        tensors[name] = tensors[name] * (1 + by)

    return change


def one_more(name):
    def change(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name].flat[-1] += 1

    return change


CHANGES = {
    "evaluate/valid/losses": nudged("evaluate/valid/losses", 1e-9),
    "evaluate/test/losses": nudged("evaluate/test/losses", 1e-9),
    "evaluate/valid/perplexity": nudged("evaluate/valid/perplexity", 1e-9),
    "evaluate/test/perplexity": nudged("evaluate/test/perplexity", np.inf),
    "evaluate/test/tokens_per_batch": one_more("evaluate/test/tokens_per_batch"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_number_is_found_and_its_side_is_named(tmp_path, name):
    verdict = judged(tmp_path, SPECS["stream"], change=CHANGES[name])
    first = verdict.mismatches[0]
    assert (first.place.tensor, first.place.step, first.rung) == (name, STEPS - 1, "evaluation")
    assert verdict.departing() == ["tensorflow-2"]
    assert (verdict.confirmed, bool(verdict.causes_tried)) == ([], True)


def evaluating(wrong):
    """Return a side that evaluates by a function of the side, the inputs and the state."""

    class Wrong(TensorFlow):
        def evaluate(self, inputs, state):
            return wrong(super(), self, inputs, state)

    return Wrong


def with_weights(own, side, inputs, state):
    side.held, held = side.held | initial_snapshot(side.spec), side.held
    found = own.evaluate(inputs, state)
    side.held = held
    return found


def first_replica(own, side, inputs, state):
    found = own.evaluate(inputs, state)
    return replace(found, losses=found.losses[:1])


def per_row(own, side, inputs, state):
    found = own.evaluate(inputs, state)
    return replace(found, losses=found.losses * inputs.num_tokens / inputs.rows)


def with_dropout(own, side, inputs, state):
    masks = dropout_masks(side.spec, STEPS - 1, inputs.batch)
    weights = {n[7:]: a for n, a in side.held.items() if n.startswith("weight/")}
    found, _ = network_function("language-model")(
        side.spec.model, weights, inputs.batch, masks, state
    )
    losses = np.array([found["token_loss"].sum() / inputs.num_tokens])
    return StepResult(losses, {name: found[name] for name in state}, 0.0, {})


def reported(compute):
    """Return a change of the perplexities, each computed from losses and numbers of tokens."""

    def change(tensors):
        for split in SPLITS:
            losses, tokens = (
                tensors[f"evaluate/{split}/{each}"] for each in ("losses", "tokens_per_batch")
            )
            tensors[f"evaluate/{split}/perplexity"] = np.array(compute(losses, tokens))

    return change


def rows_for_tokens(tensors):
    for split in SPLITS:
        rows = tensors[f"evaluate/{split}/rows"]
        tensors[f"evaluate/{split}/tokens_per_batch"] = rows


MISTAKES = {
    "a state of zero for each batch": {"other": Forgetful},
    "the initial weights": {"other": evaluating(with_weights)},
    "the rows of replica 0 alone": {"other": evaluating(first_replica)},
    "the loss of a batch divided by its rows": {"other": evaluating(per_row)},
    "the dropout of the last step": {"other": evaluating(with_dropout)},
    "rows counted as tokens": {"change": rows_for_tokens},
    "the exponential of the mean of the batches' losses": {
        "spec": SPECS["sentences"],
        "change": reported(lambda losses, tokens: np.exp(losses.mean())),
    },
    "2 to the power of the mean loss": {
        "change": reported(lambda losses, tokens: 2 ** (losses @ tokens / tokens.sum()))
    },
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_an_evaluation_is_confirmed(tmp_path, mistake):
    verdict = judged(tmp_path, **({"spec": SPECS["stream"]} | MISTAKES[mistake]))
    assert [each.suspect for each in verdict.confirmed] == [mistake]
    assert verdict.confirmed[0].sides == ("tensorflow-2",)
    apart = verdict.mismatches[0].relative
    assert f"differs from the oracle by {apart:.2g} times" in blame(verdict)


def test_another_batch_is_found_though_its_loss_is_right(tmp_path):
    name = "evaluate/valid/batch/lengths"

    def change(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][-1, 0] -= 1

    verdict = judged(tmp_path, SPECS["stream"], change=change)
    assert verdict.mismatches[0].place.tensor == name
    assert verdict.mismatches[0].place.index == (1, 0)
    assert blame(verdict) == "paddle-2 and tensorflow-2 did not evaluate the same batches"
    assert not verdict.explanations


def test_a_side_that_evaluates_the_other_text_is_named(tmp_path):
    _, steps = record(tmp_path, SPECS["stream"], Paddle)
    sides = {side: dict(steps[STEPS - 1]) for side in SIDES}
    for tensors in sides.values():
        tensors["evaluate/test/batch/targets"] = 1 - tensors["evaluate/test/batch/targets"] // 4
    wrong = sides["tensorflow-2"]
    wrong["evaluate/valid/batch/targets"] = wrong["evaluate/test/batch/targets"]
    (found,) = EvaluationRung(SPECS["stream"]).compare(STEPS - 1, sides, [SIDES])
    assert found.first.made == "tensorflow-2 evaluated the test text there"


def test_a_side_that_did_not_evaluate_is_named(tmp_path):
    def change(tensors):
        for name in evaluated_names(SPECS["stream"]):
            del tensors[name]

    with pytest.raises(UsageError, match="tensorflow-2, step 1: evaluate/valid/batch/tokens"):
        judged(tmp_path, SPECS["stream"], change=change)


def test_ids_out_of_range_are_bad_input(tmp_path):
    def change(tensors):
        tensors["evaluate/test/batch/tokens"] = tensors["evaluate/test/batch/tokens"] + 99

    with pytest.raises(UsageError, match=r"evaluate/test/batch/tokens holds .* allowed: 0 to"):
        judged(tmp_path, SPECS["stream"], change=change)


def test_what_is_recorded_is_what_was_evaluated(tmp_path):
    spec = small_pairs_spec()
    strategy = OracleStrategy(spec, Build(2))
    found = evaluate(strategy, text(spec), "valid", lambda: None, keep=True)
    tensors = evaluation_tensors(spec, "valid", found)
    again = recorded_evaluation(spec, "valid", tensors)
    assert len(again.inputs) == len(found.inputs) == 2
    for one, other in zip(found.inputs, again.inputs, strict=True):
        assert one.carry == other.carry
        for name, lengths in (("source", "source_lengths"), ("targets", "lengths")):
            longest = one.batch[lengths].max()
            np.testing.assert_array_equal(one.batch[name][:, :longest], other.batch[name])
    np.testing.assert_array_equal(again.losses, found.losses)
    assert again.tokens.tolist() == [each.num_tokens for each in found.inputs]
    assert again.perplexity == found.perplexity


@pytest.mark.parametrize(
    ("batches", "most", "expected"),
    [
        (5, None, [0, 1, 2, 3, 4]),
        (5, 5, [0, 1, 2, 3, 4]),
        (5, 9, [0, 1, 2, 3, 4]),
        (5, 3, [0, 1, 4]),
        (5, 1, [4]),
        (1, 1, [0]),
    ],
)
def test_the_last_batch_is_always_evaluated(batches, most, expected):
    assert batches_to_evaluate(batches, most) == expected


def test_no_evaluation_is_recorded_if_none_is_asked_for(tmp_path):
    _, steps = record(tmp_path / "a", SPECS["stream"], Paddle, evaluate=0)
    assert not [name for name in steps[STEPS - 1] if name.startswith("evaluate/")]
    _, steps = record(tmp_path / "b", SPECS["stream"], Paddle, evaluate=1)
    assert steps[STEPS - 1]["evaluate/valid/losses"].shape == (1,)
    assert not [name for name in steps[0] if name.startswith("evaluate/")]
