"""PyTorch as a fourth implementation that shares no code with the sides and the oracle.

`nn.LSTM`, `nn.GRU`, cross entropy, automatic differentiation, clipping, SGD and Adam compute
what the oracle computes, from the same weights, batches and masks, which are plain NumPy arrays
drawn here. The oracle in turn is compared with both sides in every verdict.

The tests need PyTorch; see docs/witnesses.md.
"""

import math
from collections import Counter

import numpy as np
import pytest
from oracle_side import OracleStrategy
from safetensors.numpy import load_file

from data.load import load_stream_text
from parity.twins.cli.options import TrainOptions
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.token_by_token import greedy_search
from parity.twins.oracle.decode import OracleModel
from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.training.loss_table import read_losses
from parity.twins.training.start import Side, run_training

pytestmark = pytest.mark.torch

STEPS = 4
ROWS, TIME, SOURCE_TIME, WIDTH, HIDDEN, WORDS = 5, 4, 6, 3, 4, 9
RATES = (0.5, 0.5, 0.2, 0.1)
KEEP = 0.6
# a share of the largest magnitude in a tensor: 5e-16 is the most that was seen
RTOL = 1e-12


@pytest.fixture
def pytorch():
    """Return the networks in PyTorch; their module is loaded only where a test needs it."""
    import pytorch_networks

    return pytorch_networks


def close(found, expected, name):
    """See that two arrays are equal to rounding."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, name
    off = np.abs(found - expected).max(initial=0)
    assert off <= RTOL * np.abs(expected).max(initial=0), f"{name} is off by {off}"


def train_spec(optimizer, loss_per, clip_norm):
    return TrainSpec(
        batch_size=ROWS,
        optimizer=optimizer,
        beta1=0.8,
        beta2=0.95,
        epsilon=1e-3,  # large enough to show where it is added
        clip_norm=clip_norm,
        loss_per=loss_per,
        dtype="float64",
    )


def start_of(network, optimizer, beta1=0.8, beta2=0.95):
    """Return what the oracle starts from: PyTorch's weights, and Adam's state by hand."""
    snapshot = {f"weight/{name}": array for name, array in network.arrays().items()}
    if optimizer == "adam":
        for name, array in network.arrays().items():
            snapshot[f"optimizer/{name}/m"] = np.zeros_like(array)
            snapshot[f"optimizer/{name}/v"] = np.zeros_like(array)
        snapshot |= {"optimizer/beta1_power": beta1, "optimizer/beta2_power": beta2}
    return snapshot


def masks_like(draw, widths):
    """Draw masks; `widths` is place -> (time, width)."""
    return {name: (draw.random((ROWS, *shape)) < KEEP) / KEEP for name, shape in widths.items()}


def compare_steps(training, oracle, steps, loss_per):
    """Train both on the same steps; compare all that they compute.

    Args:
      steps: (batch, masks, carry) of each step.

    Returns:
      In how many steps the gradient was clipped.
    """
    state, clipped = {}, 0
    for (batch, masks, carry), rate in zip(steps, RATES, strict=True):
        if not carry:
            zero = np.zeros((ROWS, oracle.spec.model.num_layers, HIDDEN))
            state = {"h": zero, "c": zero} if "source" not in batch else {}
        divisor = sum(batch["lengths"].tolist()) if loss_per == "token" else ROWS
        found = training.step(batch, masks, state, rate, divisor)
        expected = oracle.step(
            StepInputs(batch, carry, masks, loss_per=loss_per), rate, sizes=[2, 2, 1]
        )
        assert float(expected["loss/global"]) == pytest.approx(found["loss"], rel=RTOL)
        assert float(expected["gradient_norm"]) == pytest.approx(found["norm"], rel=RTOL)
        for kind in ("gradient", "clipped_gradient", "weight"):
            names = {n.split("/", 1)[1] for n in expected if n.split("/", 1)[0] == kind}
            assert names == set(found[kind])
            for name, array in found[kind].items():
                close(expected[f"{kind}/{name}"], array, f"{kind}/{name}")
        for name, array in found["state"].items():
            close(expected[f"forward/{name}"], array, name)
        state = found["state"]
        clipped += found["norm"] > training.clip_norm
    for name, array in training.moments().items():
        close(oracle.snapshot[f"optimizer/{name}"], array, name)
    return clipped


LANGUAGE_MODELS = [
    ("sgd", "token", 1, 0.5),
    ("sgd", "row", 2, 1.5),
    ("adam", "token", 2, 0.5),
    ("adam", "row", 1, 1.25),
]


def text_steps(layers):
    """Draw the batches of a stream whose third one ends an epoch: a row has no token."""
    draw = np.random.default_rng(11)
    places = {"embedded": (TIME, WIDTH)} | {f"lstm_{k}": (TIME, HIDDEN) for k in range(layers)}
    for step in range(STEPS):
        tokens, targets = draw.integers(0, WORDS, (2, ROWS, TIME))
        lengths = np.array([2, 1, 1, 0, 0]) if step == 2 else np.full(ROWS, TIME)
        batch = {"tokens": tokens, "targets": targets, "lengths": lengths}
        yield batch, masks_like(draw, places), step in (1, 2)


@pytest.mark.parametrize(("optimizer", "loss_per", "layers", "clip_norm"), LANGUAGE_MODELS)
def test_the_language_model_trains_as_pytorchs(pytorch, optimizer, loss_per, layers, clip_norm):
    network = pytorch.LanguageModel(WORDS, WIDTH, HIDDEN, layers)
    training = pytorch.Training(network, optimizer, clip_norm, (0.8, 0.95), 1e-3)
    model = LanguageModelSpec(WORDS, WIDTH, HIDDEN, layers, keep=KEEP)
    text, how = LanguageModelText(time=TIME), train_spec(optimizer, loss_per, clip_norm)
    spec = Spec("language-model", model, text, how)
    oracle = Oracle(spec, start_of(network, optimizer))
    assert 0 < compare_steps(training, oracle, text_steps(layers), loss_per) < STEPS


SEQ2SEQ = [
    ("lstm", "dot", False, False, 1, "sgd"),
    ("lstm", "general", False, True, 2, "adam"),
    ("lstm", "scaled", True, True, 2, "sgd"),
    ("lstm", "bahdanau", True, False, 2, "adam"),
    ("gru", "general", True, True, 2, "adam"),
    ("gru", "bahdanau", True, True, 1, "sgd"),
    ("gru", "bahdanau", False, False, 2, "sgd"),
    ("gru", "dot", False, True, 2, "adam"),
]
CASES = ("cell", "attention", "feeding", "bidirectional", "layers", "optimizer")


def pair_steps(layers):
    """Draw batches of pairs whose questions and answers are of unequal lengths."""
    draw = np.random.default_rng(12)
    between = range(layers - 1)
    places = {
        "source_embedded": (SOURCE_TIME, WIDTH),
        **{f"encoder_{k}": (SOURCE_TIME, HIDDEN) for k in between},
        "target_embedded": (TIME, WIDTH),
        **{f"decoder_{k}": (TIME, HIDDEN) for k in between},
        "attentional": (TIME, HIDDEN),
    }
    for _ in range(STEPS):
        source = draw.integers(4, WORDS, (ROWS, SOURCE_TIME))
        tokens, targets = draw.integers(2, WORDS + 1, (2, ROWS, TIME))
        batch = {
            "source": source,
            "source_lengths": draw.permutation([1, 2, 4, SOURCE_TIME, SOURCE_TIME]),
            "tokens": tokens,
            "targets": targets,
            "lengths": draw.permutation([1, 1, 2, 3, TIME]),
        }
        yield batch, masks_like(draw, places), False


def make_seq2seq(pytorch, cell, attention, feeding, bidirectional, layers):
    """Return the network in PyTorch, and our sizes of it."""
    words = WORDS, WORDS + 1
    shape = layers, cell, attention, feeding, bidirectional
    return (
        pytorch.Seq2seq(words, WIDTH, HIDDEN, *shape),
        Seq2seqSpec(*words, WIDTH, HIDDEN, *shape, keep=KEEP),
    )


@pytest.mark.parametrize(CASES, SEQ2SEQ)
def test_seq2seq_trains_as_pytorchs(
    pytorch, cell, attention, feeding, bidirectional, layers, optimizer
):
    network, model = make_seq2seq(pytorch, cell, attention, feeding, bidirectional, layers)
    clip_norm = {"sgd": 0.58, "adam": 0.75}[optimizer]
    training = pytorch.Training(network, optimizer, clip_norm, (0.8, 0.95), 1e-3)
    spec = Spec("seq2seq", model, PairText(), train_spec(optimizer, "token", clip_norm))
    oracle = Oracle(spec, start_of(network, optimizer))
    assert compare_steps(training, oracle, pair_steps(layers), "token")


def as_answered(pytorch, network, source, length, answer, finished):
    """Return the log probability of one answer, read as in training."""
    targets = [*answer, 2] if finished else [*answer]
    batch = {
        "source": source[None, :length],
        "source_lengths": np.array([length]),
        "tokens": np.array([[1, *answer][: len(targets)]]),
        "targets": np.array([targets]),
        "lengths": np.array([len(targets)]),
    }
    loss, _ = network({name: pytorch.tensor(a) for name, a in batch.items()}, {}, {})
    return -float(loss.detach())


@pytest.mark.parametrize(CASES, SEQ2SEQ[2:5] + SEQ2SEQ[7:])
def test_answers_are_as_probable_as_pytorch_finds_them(
    pytorch, cell, attention, feeding, bidirectional, layers, optimizer
):
    """All hypotheses of a beam, and the tokens of greedy search, one step at a time."""
    network, model = make_seq2seq(pytorch, cell, attention, feeding, bidirectional, layers)
    oracle = OracleModel(model, network.arrays())
    draw = np.random.default_rng(3)
    lengths = np.array([6, 1, 4, 2])
    source = np.where(np.arange(6) < lengths[:, None], draw.integers(4, WORDS, (4, 6)), 0)
    found = beam_search(oracle, source, lengths, beam=3, length_penalty=1.0, max_tokens=5)
    for row, hypotheses in enumerate(found):
        assert len(hypotheses.ranked) == 3
        for each in hypotheses.ranked:
            answer = source[row], lengths[row], each.tokens, each.finished
            log_prob = as_answered(pytorch, network, *answer)
            assert each.log_prob == pytest.approx(log_prob, rel=RTOL)
            count = len(each.tokens) + each.finished
            assert each.score == pytest.approx(log_prob / ((5 + count) / 6), rel=RTOL)
    for row, hypotheses in enumerate(greedy_search(oracle, source, lengths, max_tokens=5)):
        tokens = []
        while 2 not in tokens and len(tokens) < 5:
            candidates = range(2, WORDS + 1)  # neither <pad> nor <go>
            tokens.append(
                max(
                    candidates,
                    key=lambda token: as_answered(
                        pytorch, network, source[row], lengths[row], [*tokens, token], False
                    ),
                )
            )
        assert [*hypotheses.best.tokens, *([2] if hypotheses.best.finished else [])] == tokens


# a whole training, from files of text to a checkpoint


TRAINING = {"batch_size": 4, "learning_rate": 0.5, "decay": 0.5, "decay_after": 2, "epochs": 4}
EPOCH_RATES = (0.5, 0.5, 0.25, 0.125)


def write_text(folder):
    """Write a small text; return its lines by split."""
    draw = np.random.default_rng(2)
    lines = {
        split: [
            " ".join(f"w{min(k, 8)}" for k in draw.geometric(0.25, draw.integers(1, 8)))
            for _ in range(count)
        ]
        for split, count in (("train", 22), ("valid", 12), ("test", 12))
    }
    folder.mkdir()
    for split, each in lines.items():
        (folder / f"{split}.txt").write_text("\n".join(each) + "\n")
    return lines


def stream_of(lines, vocabulary):
    """Return a text as ids, a word without an entry as that of `<unk>`, which is 0."""
    words = [word for line in lines for word in [*line.split(), "<eos>"]]
    return np.array([vocabulary.index(word) if word in vocabulary else 0 for word in words])


def batches_of(ids, rows, time):
    """Yield the batches of an epoch, in which rows differ in length by at most one token."""
    sizes = [(len(ids) - 1 + rows - 1 - row) // rows for row in range(rows)]
    starts = np.cumsum([0, *sizes[:-1]])
    for column in range(0, max(sizes), time):
        tokens, targets = np.zeros((2, rows, time), np.int64)
        lengths = np.clip(np.array(sizes) - column, 0, time)
        for row, (start, length) in enumerate(zip(starts + column, lengths, strict=True)):
            tokens[row, :length] = ids[start : start + length]
            targets[row, :length] = ids[start + 1 : start + length + 1]
        yield {"tokens": tokens, "targets": targets, "lengths": lengths}


def perplexity_of(pytorch, network, ids):
    """Return e to the mean cross entropy of a text."""
    state = {name: np.zeros((4, 2, HIDDEN)) for name in "hc"}
    total, count = 0.0, 0
    for batch in batches_of(ids, 4, 5):
        given = (
            {name: pytorch.tensor(a) for name, a in each.items()} for each in (batch, state)
        )
        batch_tensors, state_tensors = given
        loss, after = network(batch_tensors, {}, state_tensors)
        state = {name: array.numpy() for name, array in after.items()}
        total, count = total + float(loss.detach()), count + int(batch["lengths"].sum())
    return math.exp(total / count)


@pytest.mark.parametrize(("optimizer", "loss_per"), [("sgd", "row"), ("adam", "token")])
def test_a_whole_training_is_pytorchs(pytorch, tmp_path, optimizer, loss_per):
    """PyTorch reads the text, batches it and follows the schedule by itself.

    Only the initial weights are taken from the run. Compared are the loss of every step, the
    perplexities, and the weights in the last checkpoint.
    """
    lines = write_text(tmp_path / "text")
    counts = Counter(word for line in lines["train"] for word in line.split())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    vocabulary = ["<unk>", "<eos>", *ranked[:5]]
    assert len(ranked) > 5
    spec = Spec(
        "language-model",
        LanguageModelSpec(7, WIDTH, HIDDEN, num_layers=2, initial_scale=0.5),
        LanguageModelText(time=5),
        TrainSpec(
            optimizer=optimizer, loss_per=loss_per, clip_norm=1.0, dtype="float64", **TRAINING
        ),
    )
    text = load_stream_text(tmp_path / "text", tmp_path / "cache", spec.values())
    assert text.sizes == {"vocabulary_size": 7}
    options = TrainOptions(out=tmp_path / "run", replicas=2, threads=1)
    summary = run_training(Side(OracleStrategy, dict), text, spec, options)
    losses = read_losses(tmp_path / "run" / "losses.csv")

    network = pytorch.LanguageModel(7, WIDTH, HIDDEN, 2)
    weights = initial_snapshot(spec)
    network.load({n[7:]: a for n, a in weights.items() if n.startswith("weight/")})
    training = pytorch.Training(network, optimizer, 1.0)
    ids = {split: stream_of(each, vocabulary) for split, each in lines.items()}
    step = 0
    for epoch, rate in enumerate(EPOCH_RATES):
        state = {name: np.zeros((4, 2, HIDDEN)) for name in "hc"}
        for batch in batches_of(ids["train"], 4, 5):
            count = int(batch["lengths"].sum())
            divisor = count if loss_per == "token" else 4
            found = training.step(batch, {}, state, rate, divisor)
            state = found["state"]
            per_token = pytest.approx(found["loss"] * divisor / count, rel=1e-10)
            assert losses[step] == (step, per_token, count)
            step += 1
        valid = perplexity_of(pytorch, network, ids["valid"])
        assert summary.valid_perplexity[epoch] == pytest.approx(valid, rel=1e-10)
    assert len(losses) == step > 20
    test = perplexity_of(pytorch, network, ids["test"])
    assert summary.test_perplexity == pytest.approx(test, rel=1e-10)
    checkpoints = tmp_path / "run" / "checkpoints"
    saved = load_file(checkpoints / (checkpoints / "latest").read_text().strip())
    for name, array in network.arrays().items():
        np.testing.assert_allclose(saved[f"weight/{name}"], array, rtol=0, atol=1e-9)
