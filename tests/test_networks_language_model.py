"""Each framework's network, gradients and updates against the oracle, element by element."""

import numpy as np
import pytest
from conftest import STEPS, write_text

from parity.compare.tensors import ORACLE
from parity.report.mismatch import describe_mismatch
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.spec.networks.network import MOST_LOGITS
from parity.twins.spec.spec import Spec

CASES = {
    "stream-sgd": {"batching": "stream", "optimizer": "sgd", "learning_rate": 1.0},
    "stream-adam": {"batching": "stream", "optimizer": "adam"},
    "sentences-sgd": {"batching": "sentences", "optimizer": "sgd", "learning_rate": 1.0},
    "sentences-adam": {"batching": "sentences", "optimizer": "adam", "time": 8},
    "stream-sgd-per-row": {
        "batching": "stream",
        "optimizer": "sgd",
        "learning_rate": 1.0,
        "loss_per": "row",
    },
    "sentences-adam-per-row": {
        "batching": "sentences",
        "optimizer": "adam",
        "time": 8,
        "loss_per": "row",
    },
    "stream-sgd-plain": {
        "batching": "stream",
        "optimizer": "sgd",
        "learning_rate": 1.0,
        "kernels": "plain",
    },
    "sentences-adam-plain": {
        "batching": "sentences",
        "optimizer": "adam",
        "time": 8,
        "kernels": "plain",
    },
}


# These in float32, the others in float64; in the other precision they are thorough.
IN_FLOAT32 = {"stream-adam", "sentences-sgd", "sentences-adam-per-row", "stream-sgd-plain"}
PRECISIONS = [
    pytest.param(
        case,
        dtype,
        marks=() if (dtype == "float32") == (case in IN_FLOAT32) else pytest.mark.thorough,
    )
    for case in CASES
    for dtype in ("float64", "float32")
]


@pytest.mark.parametrize(("case", "dtype"), PRECISIONS)
def test_every_tensor_is_the_oracles(run_both, case, dtype):
    traces = run_both(replicas=2, dtype=dtype, **CASES[case])
    verdict = compare_traces(list(traces.values()))
    story = [describe_mismatch(m, verdict.oracle, dtype) for m in verdict.mismatches]
    assert verdict.matches, "\n".join(story)
    assert verdict.steps == STEPS
    for side in ("paddle-2", "tensorflow-2"):
        rungs = verdict.pairs[side, ORACLE]
        assert set(rungs) == {"batch", "forward", "loss", "gradient", "weight", "replicas"} | (
            {"optimizer"} if "adam" in case else set()
        )
        if dtype == "float64":
            assert max(distance.relative for distance in rungs.values()) < 1e-12


def test_the_cases_are_hard(run_both):
    stream = run_both(replicas=2, **CASES["stream-adam"])["paddle"]
    lengths = [stream.read(step)["batch/lengths"] for step in range(STEPS)]
    assert [length.tolist() for length in lengths[:5]] == [[5] * 7] * 4 + [[1] * 3 + [0] * 4]
    assert [bool(stream.read(s)["batch/carry"]) for s in (0, 1, 4, 5)] == [
        False,
        True,
        True,
        False,
    ]
    sentences = run_both(replicas=2, **CASES["sentences-adam"])["paddle"]
    batches = [sentences.read(step) for step in range(STEPS)]
    assert len({batch["batch/tokens"].shape for batch in batches}) > 1
    assert any(len(set(batch["batch/lengths"].tolist())) > 2 for batch in batches)
    for trace in (stream, sentences):
        step = trace.read(1)
        norm = np.sqrt(
            sum(np.sum(step[name] ** 2) for name in step if name.startswith("gradient/"))
        )
        assert norm == pytest.approx(float(step["gradient_norm"]), rel=1e-12)
        assert norm > 0.1, "the gradient is to be clipped"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_too_many_logits_are_left_out_and_what_they_decide_is_compared(
    run_both, tmp_path, dtype
):
    tokens = 64 * 40 + 1
    text = write_text(tmp_path / "many", 2 * tokens, words=5000, other_tokens=tokens)
    sizes = {"vocabulary_size": 3000, "batch_size": 64, "time": 40, "steps": 2, "data": text}
    traces = run_both(dtype=dtype, **sizes)
    for trace in traces.values():
        found = Spec.from_json(trace.header["spec"]).model.vocabulary_size
        assert 64 * 40 * found > MOST_LOGITS
        assert "forward/logits" not in trace.read(0)
        assert "forward/token_loss" in trace.read(0)
    verdict = compare_traces(list(traces.values()))
    assert verdict.matches, verdict.mismatches[0]
