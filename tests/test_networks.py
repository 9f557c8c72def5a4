"""Each framework's networks, gradients and updates against the oracle, element by element."""

import numpy as np
import pytest
from conftest import STEPS, TINY_SEQ2SEQ, write_text

from parity.compare.tensors import ONE_STEP, ORACLE
from parity.report.mismatch import describe_mismatch
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks.network import MOST_LOGITS
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.training.strategy import Build

SIDES = ("paddle-2", "tensorflow-2")


def assert_all_match(traces, dtype="float64", most=1e-11):
    """See that sides match; in float64, by `most`, a share of each tensor's largest element."""
    verdict = compare_traces(list(traces.values()))
    story = [describe_mismatch(m, verdict.oracle, dtype) for m in verdict.mismatches]
    assert verdict.matches, "\n".join(story)
    if dtype == "float64":
        worst = {
            f"{pair}: {rung}": distance.relative
            for pair, rungs in verdict.pairs.items()
            for rung, distance in rungs.items()
            if distance.relative > most
        }
        assert not worst
        assert not verdict.ties
    return verdict


# the language model

SGD, ADAM = {"optimizer": "sgd", "learning_rate": 1.0}, {"optimizer": "adam"}
STREAM, SENTENCES = {"batching": "stream"}, {"batching": "sentences"}
LONG = SENTENCES | {"time": 8}
PER_ROW, PLAIN = {"loss_per": "row"}, {"kernels": "plain"}
TEXTS = {
    "stream-sgd": STREAM | SGD,
    "stream-adam": STREAM | ADAM,
    "sentences-sgd": SENTENCES | SGD,
    "sentences-adam": LONG | ADAM,
    "stream-sgd-per-row": STREAM | SGD | PER_ROW,
    "sentences-adam-per-row": LONG | ADAM | PER_ROW,
    "stream-sgd-plain": STREAM | SGD | PLAIN,
    "sentences-adam-plain": LONG | ADAM | PLAIN,
}
# these in float32, the others in float64
IN_FLOAT32 = {"stream-adam", "sentences-sgd", "sentences-adam-per-row", "stream-sgd-plain"}


@pytest.mark.parametrize("case", TEXTS)
def test_every_tensor_of_a_language_model_is_the_oracles(run_both, case):
    dtype = "float32" if case in IN_FLOAT32 else "float64"
    verdict = assert_all_match(run_both(replicas=2, dtype=dtype, **TEXTS[case]), dtype, 1e-12)
    assert verdict.steps == STEPS
    of_adam = {"optimizer"} if "adam" in case else set()
    rungs = of_adam | {"batch", "forward", "loss", "gradient", "weight"}
    for side in SIDES:
        # elsewhere all replicas share the weights
        of_copies = {"replicas"} if side == "paddle-2" and "plain" in case else set()
        assert set(verdict.pairs[side, ONE_STEP]) == {*rungs, *of_copies, "evaluation"}
        assert set(verdict.pairs.get((side, ORACLE), ())) == (
            rungs if dtype == "float64" else set()
        )


def test_the_cases_are_hard(run_both):
    stream = run_both(replicas=2, **TEXTS["stream-adam"])["paddle"]
    lengths = [stream.read(step)["batch/lengths"] for step in range(STEPS)]
    assert [length.tolist() for length in lengths[:5]] == [[5] * 7] * 4 + [[1] * 3 + [0] * 4]
    carried = [bool(stream.read(step)["batch/carry"]) for step in (0, 1, 4, 5)]
    assert carried == [False, True, True, False]
    sentences = run_both(replicas=2, **TEXTS["sentences-adam"])["paddle"]
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


@pytest.mark.parametrize(
    "dtype", ["float64", pytest.param("float32", marks=pytest.mark.thorough)]
)
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
    assert_all_match(traces, dtype)


# the encoder and decoder

PAIR_STEPS = 4
TINY = TINY_SEQ2SEQ | {
    "num_layers": 1,
    "bidirectional": False,
    "optimizer": "adam",
    "decode": 5,
    "beam": 3,
    "steps": PAIR_STEPS,
}
# Each score, each cell fed and not; what is thorough has each score with the other cell, and
# fed or not as it was not. `parity sweep` draws any combination.
QUICK = [
    ("lstm", "dot", True),
    ("lstm", "scaled", False),
    ("gru", "general", False),
    ("gru", "bahdanau", True),
]
OTHERS = [
    ("gru", "dot", False),
    ("gru", "scaled", True),
    ("lstm", "general", True),
    ("lstm", "bahdanau", False),
]
COMBINATIONS = QUICK + [pytest.param(*each, marks=pytest.mark.thorough) for each in OTHERS]
FED = {"num_layers": 2, "cell": "gru", "attention": "bahdanau", "input_feeding": True}
BOTH_WAYS = {"cell": "gru", "attention": "dot", "bidirectional": True}
DEEPEST = {"num_layers": 3, "cell": "lstm", "attention": "scaled", "bidirectional": True}


@pytest.fixture(scope="session")
def run_pairs(run_both, pairs):
    """Return a function that trains both sides at once; its arguments change `TINY`."""
    return lambda **values: run_both(**TINY | {"data": pairs, "replicas": 2} | values)


@pytest.mark.parametrize(("cell", "attention", "fed"), COMBINATIONS)
def test_every_tensor_of_an_encoder_and_decoder_is_the_oracles(run_pairs, cell, attention, fed):
    verdict = assert_all_match(run_pairs(cell=cell, attention=attention, input_feeding=fed))
    assert verdict.steps == PAIR_STEPS
    for side in SIDES:
        rungs = {"forward", "loss", "gradient", "optimizer", "weight"}
        assert rungs < set(verdict.pairs[side, ORACLE])
        assert {*rungs, "decode"} < set(verdict.pairs[side, ONE_STEP])
    assert "decode" in verdict.pairs[SIDES]


@pytest.mark.parametrize(
    ("network", "kernels"),
    [
        pytest.param(FED, "plain", id="two layers"),  # fast ones by the strategies' tests
        *(
            pytest.param(FED | DEEPEST, each, id=f"three, {each}", marks=pytest.mark.thorough)
            for each in ("fast", "plain")
        ),
    ],
)
def test_deeper_networks_and_both_directions(run_pairs, network, kernels):
    assert_all_match(run_pairs(kernels=kernels, **network))


def test_float32_is_the_oracles_step_by_step(run_pairs):
    assert_all_match(run_pairs(dtype="float32", **BOTH_WAYS), "float32")


def test_the_batches_hold_the_trap(run_pairs):
    """A replica's longest question and answer are shorter than the batch's, and not alike."""
    trace = run_pairs(**FED | {"kernels": "plain"})["paddle"]
    longest = []
    for step in range(PAIR_STEPS):
        batch = trace.read(step)
        first = int(batch["batch/sizes"][0])
        for name in ("batch/lengths", "batch/source_lengths"):
            longest.append((batch[name][:first].max(), batch[name][first:].max()))
        assert batch["batch/targets"].shape[1] == batch["batch/lengths"].max()
    assert sum(a != b for a, b in longest[0::2]) >= 2, "answers"
    assert sum(a != b for a, b in longest[1::2]) >= 2, "questions"


# decoding, in the framework's own process


def _reads(framework: str, kernels: str) -> list:
    """Read questions of several lengths, one after another; return each one's memory."""
    if framework == "paddle":
        from paddle_impl.decode import Decoder
    else:
        from tf_impl.decode import Decoder
    model = Seq2seqSpec(*(8, 6, 4, 6), num_layers=2, bidirectional=True, initial_scale=1.0)
    spec = Spec("seq2seq", model, PairText(), TrainSpec(dtype="float64"))
    decoder = Decoder(spec, Build(kernels=kernels))
    decoder.load(initial_snapshot(spec))
    source = np.array([[4, 5, 6, 7], [7, 3, 0, 0], [5, 0, 0, 0]])
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
