"""The oracle's seq2seq against finite differences, and against one row at a time by hand."""

import itertools

import numpy as np
import pytest

from parity.twins.oracle.seq2seq import forward, seq2seq
from parity.twins.spec.networks.seq2seq import SEQ2SEQ, Seq2seqSpec

CELLS = ("lstm", "gru")
ATTENTIONS = ("dot", "general", "scaled", "bahdanau")
SHALLOW = [
    (cell, attention, feeding, False, 1)
    for cell, attention, feeding in itertools.product(CELLS, ATTENTIONS, (False, True))
]
DEEP = [
    (cell, attention, feeding, True, 2)
    for cell, attention, feeding in itertools.product(CELLS, ATTENTIONS, (False, True))
]
OTHERS = [
    ("lstm", "scaled", True, True, 3),
    ("gru", "bahdanau", True, True, 3),
    ("lstm", "bahdanau", True, False, 3),
    ("gru", "general", False, False, 2),
    ("lstm", "dot", False, True, 1),
]
SOURCE_LENGTHS, LENGTHS = (3, 5, 1), (4, 2, 3)


def problem(case, *, keep=0.7, source_lengths=SOURCE_LENGTHS, lengths=LENGTHS):
    """Return model, weights, batch and masks of a small network away from zero."""
    cell, attention, feeding, bidirectional, layers = case
    model = Seq2seqSpec(
        source_vocabulary_size=7,
        target_vocabulary_size=6,
        embedding_size=3,
        hidden_size=4,
        num_layers=layers,
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        bidirectional=bidirectional,
    )
    draw = np.random.default_rng(5)
    weights = {
        each.name: each.mean + draw.uniform(-0.7, 0.7, each.shape)
        for each in SEQ2SEQ.parameters(model)
    }
    rows, source_time, time = len(lengths), max(source_lengths), max(lengths)
    batch = {
        "source": draw.integers(3, 7, (rows, source_time)),
        "source_lengths": np.array(source_lengths),
        "tokens": draw.integers(1, 6, (rows, time)),
        "targets": draw.integers(2, 6, (rows, time)),
        "lengths": np.array(lengths),
    }
    sizes = {"batch": rows, "time": time, "source_time": source_time}
    masks = {
        name: (draw.random([sizes.get(axis, axis) for axis in axes]) < keep) / keep
        for name, axes in SEQ2SEQ.masks(model).items()
    }
    return model, weights, batch, masks if keep < 1 else {}


def loss_of(model, weights, batch, masks):
    activations, _ = forward(model, weights, batch, masks)
    return activations["token_loss"].sum() / batch["lengths"].sum()


def difference(function, array, direction, step=1e-5):
    """Return the derivative of a function along a direction."""
    return (function(array + step * direction) - function(array - step * direction)) / (
        2 * step
    )


@pytest.mark.parametrize("case", SHALLOW + DEEP + OTHERS, ids=str)
def test_gradients_are_those_of_central_differences(case):
    model, weights, batch, masks = problem(case)
    _, gradients = seq2seq(model, weights, batch, masks)
    assert set(gradients) == set(weights)
    draw = np.random.default_rng(6)
    for name, array in weights.items():
        # along a direction at random a mistake in any element shows
        for _ in range(2):
            direction = draw.normal(size=array.shape)
            numeric = difference(
                lambda moved, n=name: loss_of(model, weights | {n: moved}, batch, masks),
                array,
                direction,
            )
            assert abs(numeric) > 1e-6, name
            found = (gradients[name] * direction).sum()
            assert found == pytest.approx(numeric, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_padding_decides_nothing(case):
    """Neither what it holds, nor how long it is: a replica pads to its own longest."""
    model, weights, batch, masks = problem(case)
    expected = seq2seq(model, weights, batch, masks)
    for time, length, names in (
        (5, "source_lengths", ["source"]),
        (4, "lengths", ["tokens", "targets"]),
    ):
        padding = np.arange(time) >= batch[length][:, None]
        assert padding.any()
        other = batch | {name: np.where(padding, 4, batch[name]) for name in names}
        for mine, theirs in zip(expected, seq2seq(model, weights, other, masks), strict=True):
            for name, array in mine.items():
                np.testing.assert_array_equal(array, theirs[name], err_msg=name)

    def padded(array, by):
        return np.pad(array, [(0, 0), (0, by), *[(0, 0)] * (array.ndim - 2)], mode="edge")

    longer = {
        name: array if array.ndim == 1 else padded(array, 3 if name == "source" else 2)
        for name, array in batch.items()
    }
    masks = {
        name: padded(mask, 3 if name.startswith(("source", "encoder")) else 2)
        for name, mask in masks.items()
    }
    _, gradients = seq2seq(model, weights, longer, masks)
    for name, array in expected[1].items():
        np.testing.assert_allclose(gradients[name], array, rtol=1e-12, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("case", [DEEP[3], DEEP[15], OTHERS[0]], ids=str)
def test_shares_padded_to_their_own_longest_sum_to_the_whole(case):
    model, weights, batch, masks = problem(case, lengths=(4, 2, 3), source_lengths=(3, 5, 1))
    _, gradients = seq2seq(model, weights, batch, masks)
    total = {name: np.zeros_like(array) for name, array in weights.items()}
    for rows in (slice(0, 1), slice(1, 3)):
        longest = {
            "source": batch["source_lengths"][rows].max(),
            "target": batch["lengths"][rows].max(),
        }

        def cut(name, array, rows=rows, longest=longest):
            side = "source" if name.startswith(("source", "encoder")) else "target"
            return array[rows] if array.ndim == 1 else array[rows, : longest[side]]

        share = {name: cut(name, array) for name, array in batch.items()}
        assert any(share[name].shape[1] < batch[name].shape[1] for name in ("source", "tokens"))
        kept = {name: cut(name, mask) for name, mask in masks.items()}
        _, found = seq2seq(model, weights, share, kept)
        for name, array in found.items():
            total[name] += array * share["lengths"].sum() / batch["lengths"].sum()
    for name, array in gradients.items():
        np.testing.assert_allclose(total[name], array, rtol=1e-12, atol=1e-15, err_msg=name)


def test_large_logits_and_scores_do_not_overflow():
    model, weights, batch, masks = problem(("lstm", "scaled", True, False, 1))
    weights["softmax/bias"] = weights["softmax/bias"] + 1e4
    weights["attention/scale"] = np.array([1e5])
    with np.errstate(over="raise", invalid="raise"):
        assert np.isfinite(loss_of(model, weights, batch, masks))
