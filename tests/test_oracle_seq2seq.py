"""The oracle's seq2seq against finite differences."""

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
