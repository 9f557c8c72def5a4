"""The oracle's seq2seq against finite differences, and against one row at a time by hand."""

import itertools

import numpy as np
import pytest

from parity.twins.oracle.layers import reverse_rows
from parity.twins.oracle.recurrent import rnn_backward, rnn_forward
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


@pytest.mark.parametrize("case", [SHALLOW[13], DEEP[7]], ids=str)
def test_gradients_are_those_of_central_differences_in_every_element(case):
    model, weights, batch, masks = problem(case)
    _, gradients = seq2seq(model, weights, batch, masks)
    for name, array in weights.items():
        numeric = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            unit = np.zeros_like(array)
            unit[index] = 1
            numeric[index] = difference(
                lambda moved, n=name: loss_of(model, weights | {n: moved}, batch, masks),
                array,
                unit,
            )
        np.testing.assert_allclose(gradients[name], numeric, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("cell", CELLS)
def test_a_layers_gradients_start_from_its_final_state_and_reach_the_first(cell):
    """Also in a row without steps, whose state stands still."""
    draw = np.random.default_rng(2)
    gates, size = {"lstm": (4, 2), "gru": (3, 1)}[cell]
    real = np.arange(3) < np.array([[2], [0], [3]])
    d_hidden, d_state = draw.normal(size=(3, 3, 4)), tuple(draw.normal(size=(size, 3, 4)))
    given = {
        "inputs": draw.normal(size=(3, 3, 3)),
        "w": draw.normal(size=(3, gates * 4)),
        "u": draw.normal(size=(4, gates * 4)),
        "b": draw.normal(size=gates * 4),
        "state": draw.normal(size=(size, 3, 4)),
    }

    def run(inputs, w, u, b, state):
        return rnn_forward(cell, inputs, real, tuple(state), w, u, b)

    def weighted(name, array):
        hidden, final, _ = run(**given | {name: array})
        sums = [(d * x).sum() for d, x in zip(d_state, final, strict=True)]
        return (d_hidden * hidden).sum() + sum(sums)

    saved = run(**given)[2]
    *found, first = rnn_backward(
        cell, d_hidden, d_state, given["inputs"], real, saved, given["w"], given["u"]
    )
    found = dict(zip(("inputs", "w", "u", "b"), found, strict=True), state=np.array(first))
    for name, array in given.items():
        for index in np.ndindex(array.shape):
            unit = np.zeros_like(array)
            unit[index] = 1
            numeric = difference(lambda moved, n=name: weighted(n, moved), array, unit)
            assert found[name][index] == pytest.approx(numeric, rel=1e-6, abs=1e-8), name
    np.testing.assert_array_equal(found["state"][:, 1], np.array(d_state)[:, 1])


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_attention_is_shared_among_the_real_source_alone(case):
    model, weights, batch, masks = problem(case)
    shares = seq2seq(model, weights, batch, masks)[0]["attention/weights"]
    for row, (source_length, length) in enumerate(zip(SOURCE_LENGTHS, LENGTHS, strict=True)):
        real = shares[row, :length, :source_length]
        np.testing.assert_allclose(real.sum(axis=1), 1, rtol=1e-14)
        assert (real > 0).all()
        assert not shares[row, :, source_length:].any()
        assert not shares[row, length:].any()


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


def test_without_masks_nothing_is_dropped():
    model, weights, batch, masks = problem(OTHERS[0])
    ones = {name: np.ones_like(mask) for name, mask in masks.items()}
    for mine, theirs in zip(
        seq2seq(model, weights, batch, {}), seq2seq(model, weights, batch, ones), strict=True
    ):
        for name, array in mine.items():
            np.testing.assert_array_equal(array, theirs[name])
    for name, mask in ones.items():
        dropped = ones | {name: mask * 0}
        with_one_place_empty, _ = seq2seq(model, weights, batch, dropped)
        whole, _ = seq2seq(model, weights, batch, {})
        assert not np.allclose(with_one_place_empty["logits"], whole["logits"]), name


def test_only_the_real_part_of_a_row_is_reversed():
    x = np.arange(1, 9).reshape(2, 4, 1)
    turned = reverse_rows(x, np.array([3, 1]))
    assert turned[:, :, 0].tolist() == [[3, 2, 1, 4], [5, 6, 7, 8]]
    np.testing.assert_array_equal(reverse_rows(turned, np.array([3, 1])), x)


def test_large_logits_and_scores_do_not_overflow():
    model, weights, batch, masks = problem(("lstm", "scaled", True, False, 1))
    weights["softmax/bias"] = weights["softmax/bias"] + 1e4
    weights["attention/scale"] = np.array([1e5])
    with np.errstate(over="raise", invalid="raise"):
        assert np.isfinite(loss_of(model, weights, batch, masks))
