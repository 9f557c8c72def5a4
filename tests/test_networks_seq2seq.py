"""The sequence-to-sequence network in both frameworks, against each other and the oracle."""

import itertools

import numpy as np
import pytest
from conftest import TINY_SEQ2SEQ

from parity.compare.tensors import ONE_STEP, ORACLE
from parity.report.mismatch import describe_mismatch
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.training.strategy import Build

STEPS = 4
TINY = TINY_SEQ2SEQ | {
    "num_layers": 1,
    "bidirectional": False,
    "optimizer": "adam",
    "decode": 5,
    "beam": 3,
    "steps": STEPS,
}
CELLS, SCORES = ("lstm", "gru"), ("dot", "general", "scaled", "bahdanau")
# Each score, each cell fed and not; the other combinations are thorough.
QUICK = {
    ("lstm", "dot", True),
    ("lstm", "scaled", False),
    ("gru", "general", False),
    ("gru", "bahdanau", True),
}
COMBINATIONS = [
    pytest.param(*each, marks=() if each in QUICK else pytest.mark.thorough)
    for each in itertools.product(CELLS, SCORES, (False, True))
]
DEEPER = {
    "two layers": {"num_layers": 2, "cell": "lstm", "attention": "general"},
    "two layers, fed": {"num_layers": 2, "cell": "gru", "attention": "bahdanau", "fed": True},
    "three layers, both directions, fed": {
        "num_layers": 3,
        "cell": "lstm",
        "attention": "scaled",
        "fed": True,
        "bidirectional": True,
    },
    "both directions": {"cell": "gru", "attention": "dot", "bidirectional": True},
}


@pytest.fixture(scope="session")
def run_pairs(run_both, pairs):
    """Return a function that trains both sides at once and returns {framework: Trace}.

    Its arguments are flags in place of those in `TINY`.
    """

    def run(fed=False, **values) -> dict[str, Trace]:
        return run_both(**TINY | {"data": pairs, "input_feeding": fed} | values)

    return run


def assert_all_match(traces, dtype="float64"):
    verdict = compare_traces(list(traces))
    story = [describe_mismatch(m, verdict.oracle, dtype) for m in verdict.mismatches]
    assert verdict.matches, "\n".join(story)
    assert verdict.steps == STEPS
    if dtype == "float64":
        worst = {
            f"{pair}: {rung}": distance.relative
            for pair, rungs in verdict.pairs.items()
            for rung, distance in rungs.items()
            if distance.relative > 1e-11
        }
        assert not worst
        assert not verdict.ties
    return verdict


@pytest.mark.parametrize(("cell", "attention", "fed"), COMBINATIONS)
def test_every_tensor_is_the_oracles(run_pairs, cell, attention, fed):
    traces = run_pairs(replicas=2, cell=cell, attention=attention, fed=fed)
    verdict = assert_all_match(traces.values())
    for side in ("paddle-2", "tensorflow-2"):
        assert {"forward", "loss", "gradient", "optimizer", "weight", "replicas"} < set(
            verdict.pairs[side, ORACLE]
        )
        assert "decode" in verdict.pairs[side, ONE_STEP]
    assert "decode" in verdict.pairs["paddle-2", "tensorflow-2"]


@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        ("two layers, fed", "plain"),
        *(
            pytest.param(case, kernels, marks=pytest.mark.thorough)
            for case, kernels in itertools.product(DEEPER, ("fast", "plain"))
            if (case, kernels)
            not in {
                ("two layers, fed", "plain"),
                ("two layers, fed", "fast"),  # by the numbers of replicas below
            }
        ),
    ],
)
def test_deeper_networks_and_both_directions(run_pairs, case, kernels):
    assert_all_match(run_pairs(replicas=2, kernels=kernels, **DEEPER[case]).values())


def test_float32_is_the_oracles_step_by_step(run_pairs):
    traces = run_pairs(replicas=2, dtype="float32", **DEEPER["both directions"])
    assert_all_match(traces.values(), "float32")


def test_the_batches_hold_the_trap(run_pairs):
    """A replica's longest question and answer are shorter than the batch's, and not alike."""
    trace = run_pairs(replicas=2, **DEEPER["two layers, fed"])["paddle"]
    longest = []
    for step in range(STEPS):
        batch = trace.read(step)
        first = int(batch["batch/sizes"][0])
        for name in ("batch/lengths", "batch/source_lengths"):
            longest.append((batch[name][:first].max(), batch[name][first:].max()))
        assert batch["batch/targets"].shape[1] == batch["batch/lengths"].max()
    assert sum(a != b for a, b in longest[0::2]) >= 2, "answers"
    assert sum(a != b for a, b in longest[1::2]) >= 2, "questions"


# Decoding, in the framework's own process. ----------------------------------------------------


def small_spec(**values) -> Spec:
    model = Seq2seqSpec(
        source_vocabulary_size=8,
        target_vocabulary_size=6,
        embedding_size=4,
        hidden_size=6,
        initial_scale=1.0,
    )
    return Spec("seq2seq", model, PairText(), TrainSpec(dtype="float64")).replace(**values)


def _questions():
    source = np.array([[4, 5, 6, 7], [7, 3, 0, 0], [5, 0, 0, 0]])
    return source, np.array([4, 2, 1])


def _decoder(framework, spec, kernels="fast"):
    if framework == "paddle":
        from paddle_impl.decode import Decoder
    else:
        from tf_impl.decode import Decoder
    decoder = Decoder(spec, Build(kernels=kernels))
    decoder.load(initial_snapshot(spec))
    return decoder


def _reads(framework: str, kernels: str) -> list:
    """Read questions of several lengths, one after another; return each one's memory."""
    spec = small_spec(bidirectional=True, num_layers=2)
    decoder = _decoder(framework, spec, kernels)
    source, _ = _questions()
    return [
        decoder.start(source[:, :time], np.full(3, time))["memory"].tolist()
        for time in (4, 2, 3, 2)
    ]


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_a_short_question_is_read_after_a_long_one(framework, kernels):
    """Paddle's own executor keeps what a loop wrote in the run before."""
    found = framework.call(_reads, framework.framework, kernels)
    assert [np.shape(memory)[1] for memory in found] == [4, 2, 3, 2]
    assert found[1] == found[3]
