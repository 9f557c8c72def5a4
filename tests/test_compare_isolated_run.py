"""Isolated runs: a layer that is wrong is wrong alone, and nothing else is made so by it."""

import re

import numpy as np
import pytest
from conftest import FRAMEWORKS
from oracle_side import header, small_pairs_spec, small_spec, text_batch, write_trace
from test_networks_seq2seq import TINY as TINY_PAIRS

from parity.base.errors import UsageError
from parity.compare.tensors import ONE_STEP
from parity.report.mismatch import describe_mismatch
from parity.report.terminal import report_text
from parity.report.verdict_page import report_html
from parity.trace.reader import Trace
from parity.trace.rungs import rung_of
from parity.twins.compare.run_comparison import RunComparison, compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.oracle.isolated_step import Isolation
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import learning_rate
from parity.twins.spec.step_arrays import shape_of, step_inputs

# Without a framework: the comparison, the report, what is refused. ----------------------------

STEPS = 3
SIDES = {"paddle-2": "paddle", "tensorflow-2": "tensorflow"}
PAIRS = {
    "lstm": {"cell": "lstm", "attention": "general", "bidirectional": True},
    "gru-fed": {"cell": "gru", "attention": "bahdanau", "input_feeding": True},
}


def specs(dtype="float64"):
    return {"lm": small_spec(dtype=dtype)} | {
        name: small_pairs_spec(dtype=dtype, **values) for name, values in PAIRS.items()
    }


def isolated_steps(spec, replicas: int = 2) -> list[dict[str, np.ndarray]]:
    """Return what a side that rounds correctly records of an isolated run."""
    isolation, dtype, found = Isolation(spec), spec.training.dtype, []
    sizes = split_rows(spec.training.batch_size, replicas)
    for step in range(STEPS):
        inputs = step_inputs(spec, step, text_batch(spec, step))
        rate = learning_rate(spec.training, step // 4)
        of_oracle = isolation.step(inputs, rate, sizes).expected
        tensors = {name: np.asarray(array, dtype) for name, array in of_oracle.items()}
        tensors |= {f"batch/{name}": array for name, array in inputs.batch.items()}
        tensors |= {
            "batch/carry": np.array(inputs.carry),
            "batch/sizes": np.array(sizes),
            "batch/learning_rate": np.array(rate),
        }
        inner = {n for n in tensors if n.startswith("activation_gradient/")}
        handed_on = {
            f"activation_gradient/{n}" for n in NETWORKS[spec.network].taps(spec.model)
        }
        found.append({n: a for n, a in tensors.items() if n not in inner - handed_on})
    return found


def isolated_header(spec, framework, **values):
    return header(spec, framework, isolated=True, **values)


def climbed(spec, left, right):
    comparison = RunComparison(
        {side: isolated_header(spec, name) for side, name in SIDES.items()}
    )
    for step, recorded in enumerate(zip(left, right, strict=True)):
        comparison.step(step, dict(zip(comparison.sides, recorded, strict=True)))
        if not comparison.verdict.matches:
            break
    return comparison.verdict


@pytest.mark.parametrize("name", specs())
def test_the_oracle_has_the_gradient_of_all_that_layers_hand_on(name):
    spec = specs()[name]
    network, inputs = NETWORKS[spec.network], step_inputs(spec, 0, text_batch(spec, 0))
    sizes = [spec.training.batch_size]
    found = Isolation(spec).step(inputs, 0.1, sizes)
    axes = network.activations(spec.model)
    lengths = {"batch": inputs.rows, "time": inputs.batch["tokens"].shape[1]}
    if "source" in inputs.batch:
        lengths["source_time"] = inputs.batch["source"].shape[1]
    for activation in network.taps(spec.model):
        gradient = found.expected[f"activation_gradient/{activation}"]
        assert gradient.shape == shape_of(axes[activation], lengths), activation
        assert gradient.any(), activation
        assert np.array_equal(found.fed[f"fed_gradient/{activation}"], gradient)
        own = found.expected[f"forward/{activation}"]
        assert np.array_equal(found.fed[f"fed/{activation}"], own)
    assert ("attention/context" in network.taps(spec.model)) is (name == "lstm")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", specs())
def test_a_faithful_side_matches(name, dtype):
    spec = specs(dtype)[name]
    steps = isolated_steps(spec)
    verdict = climbed(spec, steps, steps)
    assert verdict.matches
    assert (verdict.steps, verdict.isolated) == (STEPS, True)
    judged = verdict.pairs["paddle-2", ONE_STEP]
    assert set(judged) == {"batch", "forward", "loss", "gradient", "optimizer", "weight"} | {
        "replicas"
    }
    assert max(distance.used for distance in judged.values()) < 0.5
    across = verdict.pairs["paddle-2", "tensorflow-2"]
    assert across["forward"].used is None, "only measured: both sides are held to the oracle"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_wrong_tensor_is_listed_and_the_others_are_in_order(dtype):
    spec = specs(dtype)["lstm"]
    right = isolated_steps(spec)
    wrong = [dict(tensors) for tensors in right]
    planted = [
        "forward/encoder/lstm_1/hidden",
        "forward/attention/context",
        "activation_gradient/decoder/embedded",
        "weight/decoder/embed/table",
    ]
    for name in planted:
        wrong[1][name] = wrong[1][name] * 1.01
    verdict = climbed(spec, right, wrong)
    assert verdict.steps == 2
    found = [mismatch.place.tensor for mismatch in verdict.mismatches]
    assert found == planted, "in the order of computation"
    assert {mismatch.sides for mismatch in verdict.mismatches} == {("tensorflow-2", ONE_STEP)}

    outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
    values = report_values(outcome, "small", "python -m parity run --isolate")
    isolated = values["runs"][0]["isolated"]
    assert [each["tensor"] for each in isolated["wrong"]] == found
    assert all(
        [pair["a"] for pair in each["pairs"]] == ["tensorflow-2"] for each in isolated["wrong"]
    )
    assert (isolated["step"], isolated["compared"]) == (1, len(right[1]))
    assert isolated["in_order"] == len(right[1]) - len(found)
    said, page = report_text(values), report_html(values)
    assert f"the other {isolated['in_order']} are right on all sides" in " ".join(said.split())
    table = re.search(rf'<div id="wrong-{dtype}">(.*?)</div>', page, re.DOTALL).group(1)
    for name in found:
        assert re.search(rf"^{name} +{rung_of(name)} +tensorflow-2 ", said, re.MULTILINE)
        assert f"<td>{name}</td>" in table
    assert table.count("<tr>") == 1 + len(found)


def test_a_match_lists_nothing():
    spec = specs()["lm"]
    steps = isolated_steps(spec)
    verdict = climbed(spec, steps, steps)
    outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
    values = report_values(outcome, "small", "")
    isolated = values["runs"][0]["isolated"]
    assert isolated["wrong"] == []
    assert isolated["in_order"] == isolated["compared"] == len(steps[0])
    assert "wrong tensor" not in report_text(values)
    assert "Isolated: every layer" in report_text(values)
    assert "wrong-float64" not in report_html(values)


def test_an_isolated_trace_is_compared_with_no_other(tmp_path):
    spec = specs()["lm"]
    steps = isolated_steps(spec)
    isolated = write_trace(tmp_path / "a", isolated_header(spec, "paddle"), steps)
    other = write_trace(tmp_path / "b", header(spec, "tensorflow"), steps)
    for folders in ((isolated, other), (other, isolated)):
        with pytest.raises(UsageError) as caught:
            compare_traces([Trace(folder) for folder in folders])
        said = (
            "paddle-2 is of an isolated run and tensorflow-2 is not; allowed: both or neither"
        )
        assert str(caught.value) == said


# Both frameworks. ----------------------------------------------------------------------------

CASES = {
    "stream": {"batching": "stream", "optimizer": "adam", "replicas": 2},
    "sentences, float32": {
        "batching": "sentences",
        "optimizer": "adam",
        "time": 8,
        "replicas": 3,
        "dtype": "float32",
    },
    "stream, plain": {"batching": "stream", "optimizer": "adam", "kernels": "plain"},
}
PAIR_CASES = {
    "two layers": {"num_layers": 2, "cell": "lstm", "attention": "bahdanau"},
    "both directions, plain": {
        "num_layers": 2,
        "cell": "gru",
        "attention": "bahdanau",
        "bidirectional": True,
        "kernels": "plain",
    },
    "fed, plain": {
        "cell": "lstm",
        "attention": "scaled",
        "input_feeding": True,
        "kernels": "plain",
    },
    "fed, both directions, float32": {
        "num_layers": 3,
        "cell": "lstm",
        "attention": "scaled",
        "input_feeding": True,
        "bidirectional": True,
        "dtype": "float32",
        "keep": 1.0,
        "replicas": 1,
    },
}


def assert_in_order(traces, steps):
    """See that all that the traces hold is the oracle's, with room to spare."""
    verdict = compare_traces(list(traces))
    dtype = verdict.dtype
    story = [describe_mismatch(m, verdict.oracle, dtype) for m in verdict.mismatches]
    assert verdict.matches, "\n".join(story)
    assert (verdict.isolated, verdict.steps) == (True, steps)
    for (side, other), rungs in verdict.pairs.items():
        if other == ONE_STEP:
            used = {rung: distance.used for rung, distance in rungs.items()}
            assert max(used.values()) < 0.2, (side, used)
    return verdict


def some(cases, *quick):
    """Return cases as parameters, of which those that are not named are thorough."""
    return [
        pytest.param(each, marks=[] if each in quick else pytest.mark.thorough)
        for each in cases
    ]


@pytest.mark.parametrize("case", some(CASES, "stream", "sentences, float32"))
def test_every_layer_of_the_language_model_is_the_oracles(run_both, case):
    traces = run_both(isolate=True, **CASES[case])
    assert_in_order(traces.values(), 7)
    recorded = set(traces["tensorflow"].read(0))
    taps = ("embedded", "lstm_0/hidden", "lstm_1/hidden")
    assert {f"activation_gradient/{name}" for name in taps} <= recorded


@pytest.mark.parametrize(
    "case", some(PAIR_CASES, "two layers", "fed, plain", "fed, both directions, float32")
)
def test_every_layer_of_seq2seq_is_the_oracles(run_both, pairs, case):
    values = TINY_PAIRS | {"replicas": 2, "data": pairs, "isolate": True, **PAIR_CASES[case]}
    traces = run_both(**values)
    assert_in_order(traces.values(), TINY_PAIRS["steps"])
    recorded = set(traces["paddle"].read(TINY_PAIRS["steps"] - 1))
    assert "activation_gradient/attention/output" in recorded
    fed = values.get("input_feeding", False)
    assert ("activation_gradient/attention/context" in recorded) is not fed
    assert not any(name.startswith("decode/") for name in recorded)


def test_each_step_starts_from_the_oracles_weights(run_both):
    """An isolated step after the first is the oracle's own, whatever the update before did."""
    free = run_both(batching="stream", optimizer="adam", replicas=2)
    isolated = run_both(batching="stream", optimizer="adam", replicas=2, isolate=True)
    for framework in FRAMEWORKS:
        a, b = (traces[framework].read(6) for traces in (free, isolated))
        for name in ("forward/logits", "forward/c", "weight/lstm_0/bias"):
            np.testing.assert_allclose(a[name], b[name], rtol=0, atol=1e-12)
