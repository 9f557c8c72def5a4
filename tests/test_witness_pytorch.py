"""PyTorch as a fourth implementation that shares little with the sides and the oracle.

`nn.LSTM`, `nn.GRU`, cross entropy, automatic differentiation, clipping, SGD and Adam compute
what the oracle computes. The oracle in turn is compared with both sides in every verdict, and
the witness too with --witness pytorch.

The tests need PyTorch; see docs/witnesses.md.
"""

import math

import numpy as np
import pytest
from conftest import write_text
from oracle_side import OracleStrategy
from safetensors.numpy import load_file

from data.load import load_stream_text
from parity.trace.reader import Trace
from parity.twins.cli.options import TrainOptions
from parity.twins.compare.witness import WitnessRung
from parity.twins.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.twins.spec.spec import Spec, TrainSpec, learning_rate, preset
from parity.twins.spec.step_arrays import dropout_masks
from parity.twins.training.loss_table import read_losses
from parity.twins.training.start import Side, run_training
from parity.twins.training.text_source import read_text

pytestmark = pytest.mark.torch

WIDTH, HIDDEN = 3, 4


@pytest.fixture
def pytorch():
    """Return the witness's module, which is loaded only where a test needs it."""
    import torch

    from parity.twins.peers import pytorch_witness

    before = torch.get_default_dtype()
    yield pytorch_witness
    torch.set_default_dtype(before)  # or other tests' networks would be in float64


# a whole training, from files of text to a checkpoint


TRAINING = {"batch_size": 4, "learning_rate": 0.5, "decay": 0.5, "decay_after": 2, "epochs": 4}
EPOCH_RATES = (0.5, 0.5, 0.25, 0.125)


def perplexity_of(pytorch, training, ids):
    """Return e to the mean cross entropy of a text."""
    state = {name: np.zeros((4, 2, HIDDEN)) for name in "hc"}
    total, count = 0.0, 0
    for batch in pytorch.batches_of(ids, 4, 5):
        loss, state = training.evaluate(batch | state | {"scale": np.ones(1)})
        total, count = total + loss, count + int(batch["lengths"].sum())
    return math.exp(total / count)


@pytest.mark.parametrize(("optimizer", "loss_per"), [("sgd", "row"), ("adam", "token")])
def test_a_whole_training_is_pytorchs(pytorch, tmp_path, optimizer, loss_per):
    """PyTorch reads the text, batches it and follows the schedule by itself.

    Only the initial weights are taken from the run. Compared are the loss of every step, the
    perplexities, and the weights in the last checkpoint.
    """
    text = write_text(tmp_path / "text")
    lines = {
        split: (text / f"{split}.txt").read_text().splitlines()
        for split in ("train", "valid", "test")
    }
    vocabulary = pytorch.vocabulary_of(lines["train"], 7)
    assert len(vocabulary) == 7 < len(pytorch.vocabulary_of(lines["train"], 99))
    spec = Spec(
        "language-model",
        LanguageModelSpec(7, WIDTH, HIDDEN, num_layers=2, initial_scale=0.5),
        LanguageModelText(time=5),
        TrainSpec(
            optimizer=optimizer, loss_per=loss_per, clip_norm=1.0, dtype="float64", **TRAINING
        ),
    )
    given = {"data": text, "cache": tmp_path / "cache"}
    text = load_stream_text(*given.values(), spec.values())
    assert text.sizes == {"vocabulary_size": 7}
    options = TrainOptions(out=tmp_path / "run", replicas=2, threads=1, **given)
    summary = run_training(Side(OracleStrategy, dict), text, spec, options)
    losses = read_losses(tmp_path / "run" / "losses.csv")

    training = pytorch.Witness(spec)
    ids = {split: pytorch.stream_of(each, vocabulary) for split, each in lines.items()}
    steps, step = pytorch.witnessed_steps(spec, training, text, options), 0
    best = math.inf, {}
    for epoch, rate in enumerate(EPOCH_RATES):
        for batch in pytorch.batches_of(ids["train"], 4, 5):
            found, count = next(steps), int(batch["lengths"].sum())
            assert found["batch/learning_rate"] == rate
            divisor = count if loss_per == "token" else 4
            per_token = pytest.approx(found["loss/global"] * divisor / count, rel=1e-10)
            assert losses[step] == (step, per_token, count)
            step += 1
        valid = perplexity_of(pytorch, training, ids["valid"])
        assert summary.valid_perplexity[epoch] == pytest.approx(valid, rel=1e-10)
        best = min(best, (valid, training.snapshot()), key=lambda each: each[0])
    assert len(losses) == step > 20
    checkpoints = tmp_path / "run" / "checkpoints"
    saved = load_file(checkpoints / (checkpoints / "latest").read_text().strip())
    for name, array in training.arrays(lambda each: each).items():
        np.testing.assert_allclose(saved[f"weight/{name}"], array, rtol=0, atol=1e-9)
    training.load(best[1])
    test = perplexity_of(pytorch, training, ids["test"])
    assert summary.test_perplexity == pytest.approx(test, rel=1e-10)


# parity run --witness pytorch


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def witness_findings(pytorch, spec, folder, cache):
    """Compare PyTorch's steps with those that the oracle, as a side, has recorded."""
    options = TrainOptions(
        network=spec.network, out=folder, cache=cache, trace=folder / "trace",
        steps=6, replicas=2, threads=1, evaluate=0, decode=0,
    )  # fmt: skip
    spec, text = read_text(spec, options)
    run_training(Side(OracleStrategy, dict), text, spec, options)
    rung = WitnessRung("pytorch", "oracle-2", spec, text.train.batches_per_epoch)
    steps = pytorch.witnessed_steps(spec, pytorch.Witness(spec), text, options)
    for (step, side), witness in zip(Trace(folder / "trace").steps(), steps, strict=False):
        rung.add(step, {"oracle-2": side, "pytorch": witness})
    assert step == 5
    return rung.findings


SIZES = {
    "seed": 3,
    "train_lines": 18,
    "batch_size": 4,
    "hidden_size": HIDDEN,
    "embedding_size": WIDTH,
}
LEARNING = {
    **{"epochs": 9, "decay": 0.7, "decay_after": 1, "clip_norm": 0.7, "keep": 0.75},
    **{"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},  # large enough to show where it is added
}


def built_in_spec(network, **values):
    return preset(network, "proof").replace(**SIZES | LEARNING | values)


LANGUAGE_MODELS = [
    {"optimizer": "sgd", "num_layers": 1, "loss_per": "token"},
    {"optimizer": "sgd", "num_layers": 2, "loss_per": "row"},
    {"optimizer": "adam", "num_layers": 1, "loss_per": "row"},
    {"optimizer": "adam", "num_layers": 2, "loss_per": "token", "batching": "sentences"},
]
FIELDS = ("cell", "attention", "input_feeding", "bidirectional", "num_layers", "optimizer")
SEQ2SEQ = [
    ("lstm", "dot", False, False, 1, "sgd"),
    ("lstm", "general", False, True, 2, "adam"),
    ("lstm", "scaled", True, True, 2, "sgd"),
    ("lstm", "bahdanau", True, False, 2, "adam"),
    ("gru", "general", True, True, 2, "adam"),
    # its largest errors come from the product over the words; 1.6 of the bound without
    ("gru", "scaled", False, True, 3, "sgd"),
    ("gru", "bahdanau", True, True, 1, "sgd"),
    ("gru", "bahdanau", False, False, 2, "sgd"),
    ("gru", "dot", False, True, 2, "adam"),
]
KINDS = [("language-model", values | {"time": 7}) for values in LANGUAGE_MODELS]
KINDS += [("seq2seq", dict(zip(FIELDS, values, strict=True))) for values in SEQ2SEQ]
KINDS += [("seq2seq", {"optimizer": "sgd", "loss_per": "row"})]
CASES = [(*kind, "float64") for kind in KINDS] + [(*kind, "float32") for kind in KINDS[::3]]


@pytest.mark.parametrize(("network", "values", "dtype"), CASES)
def test_a_side_that_shares_no_mistake_matches_the_witness(
    pytorch, tmp_path, cache, network, values, dtype
):
    findings = witness_findings(
        pytorch, built_in_spec(network, dtype=dtype, **values), tmp_path, cache
    )
    assert [each for finding in findings for each in finding.mismatches] == []
    assert len(findings) == 12
    shares = [finding.rungs["witness"].used for finding in findings]
    assert 0 < max(shares) < 1


def test_the_witness_reads_text_without_spaces(pytorch, tmp_path, cache):
    (tmp_path / "my.txt").write_text("今日はいい。\nそれはいい。\n今日はそれ。\nいいか。\n")
    options = TrainOptions(data=tmp_path / "my.txt", cache=cache)
    spec, text = read_text(built_in_spec("language-model", batch_size=1, time=2), options)
    batch = next(next(pytorch._epochs_of_stream(spec, options)))
    np.testing.assert_array_equal(batch["targets"], text.train.batch(0).targets)


def unscaled(spec, *given):
    """Draw masks of dropout whose kept units are not scaled."""
    return {
        name: (mask != 0).astype(mask.dtype)
        for name, mask in dropout_masks(spec, *given).items()
    }


STREAM = "language-model", {"time": 7}
SENTENCES = "language-model", {"time": 7, "batching": "sentences"}
PAIRS = "seq2seq", {}
SHARED = {
    "a state that is never reset": (
        STREAM,
        {"data.text_batches.Batch.carry": property(lambda batch: True, lambda *given: None)},
        "batch/carry",
    ),
    "no <eos> among the targets": (
        PAIRS, {"data.pair_batches.PAIR_EOS_ID": 0}, "batch/targets",
    ),
    "no <eos> before a text": (
        SENTENCES, {"data.text_batches.TEXT_EOS_ID": 0}, "batch/tokens",
    ),
    "dropout without its scale": (
        STREAM,
        {
            "parity.twins.spec.step_arrays.dropout_masks": unscaled,
            "parity.twins.compare.oracle_tensors.dropout_masks": unscaled,
        },
        "forward/c",
    ),
    "a decay that comes late": (
        STREAM,
        dict.fromkeys(
            (
                "parity.twins.training.train_steps.learning_rate",
                "parity.twins.compare.oracle_tensors.learning_rate",
            ),
            lambda training, epoch: learning_rate(training, epoch - 1),
        ),
        "batch/learning_rate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", SHARED)
def test_the_witness_finds_a_mistake_that_sides_and_oracle_share(
    pytorch, tmp_path, cache, monkeypatch, mistake
):
    (network, values), planted, tensor = SHARED[mistake]
    for name, value in planted.items():
        monkeypatch.setattr(name, value, raising=False)
    spec = built_in_spec(network, dtype="float64", optimizer="sgd", **values)
    findings = witness_findings(pytorch, spec, tmp_path, cache)
    (wrong,) = [each for finding in findings for each in finding.mismatches]
    assert (wrong.place.tensor, wrong.rung) == (tensor, "witness")
    assert "what they have in common" in wrong.note
