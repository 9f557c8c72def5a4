"""The oracle's gradients and updates: finite differences, blocks of words, order of sums."""

import itertools

import numpy as np
import pytest
from oracle_side import small_pairs_spec, small_spec, text_batch

from parity.twins.oracle.language_model import network_function
from parity.twins.oracle.layers import log_softmax, project
from parity.twins.oracle.optimizers import update_slots
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.step_arrays import step_inputs

LANGUAGE_MODELS = [(1, 1.0), (1, 0.75), (2, 0.75), (3, 1.0)]
SEQ2SEQ = [
    *itertools.product(
        ("lstm", "gru"), ("dot", "general", "scaled", "bahdanau"), (False, True), (True,), (2,)
    ),
    ("lstm", "bahdanau", True, False, 3),
    ("gru", "general", False, False, 1),
]
SPECS = [
    small_spec(num_layers=n, keep=keep, batching="sentences") for n, keep in LANGUAGE_MODELS
]
SPECS += [
    small_pairs_spec(
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        bidirectional=bidirectional,
        num_layers=layers,
    )
    for cell, attention, feeding, bidirectional, layers in SEQ2SEQ
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str([*spec.model.__dict__.values()]))
def test_gradients_are_those_of_central_differences(spec):
    """Along directions at random, in which a mistake in any element of a parameter shows."""
    spec = spec.replace(initial_scale=0.7)
    inputs, draw = step_inputs(spec, 1, text_batch(spec, 1)), np.random.default_rng(6)
    zeros = zero_state(spec, spec.training.batch_size)
    state = {name: draw.normal(size=array.shape) * 0.5 for name, array in zeros.items()}
    weights = {
        name.split("/", 1)[1]: array
        for name, array in initial_snapshot(spec).items()
        if name.startswith("weight/")
    }

    def run(weights):
        network = network_function(spec.network)
        return network(spec.model, weights, inputs.batch, inputs.masks, state)

    def loss(name, array):
        activations, _ = run(weights | {name: array})
        return activations["token_loss"].sum() / inputs.num_tokens

    _, gradients = run(weights)
    assert set(gradients) == set(weights)
    step = 1e-5
    for name, array in weights.items():
        for _ in range(2):
            direction = draw.normal(size=array.shape)
            ahead, behind = (loss(name, array + sign * step * direction) for sign in (1, -1))
            numeric = (ahead - behind) / (2 * step)
            assert abs(numeric) > 1e-7, name
            found = (gradients[name] * direction).sum()
            assert found == pytest.approx(numeric, rel=1e-6, abs=2e-10), name


def test_constants_are_held_in_the_precision_of_the_run():
    """In float32, 1 - beta2 is 0.00099998: a side in float32 cannot hold another."""
    spec = small_spec(dtype="float32")
    snapshot = {
        "weight/x": np.array(0.0),
        "optimizer/x/m": np.array(0.0),
        "optimizer/x/v": np.array(0.0),
        "optimizer/beta1_power": np.array(0.9),
        "optimizer/beta2_power": np.array(0.999),
    }
    slots = update_slots(spec, snapshot, {"x": np.array(1.0)})
    assert slots["optimizer/x/v"] == 1 - float(np.float32(0.999))
    assert slots["optimizer/x/v"] != 1 - 0.999


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("lengths", "vocabulary"), [((40, 0, 33), 9_000), ((2, 1, 0), 5)])
def test_a_large_vocabulary_is_done_by_blocks_and_comes_out_the_same(
    lengths, vocabulary, dtype
):
    """73 rows of 9,000 are six blocks, the last one smaller."""
    draw, time = np.random.default_rng(4), max(lengths)
    real = np.arange(time) < np.array(lengths)[:, None]
    outputs, kernel, bias = (
        draw.normal(size=shape).astype(dtype)
        for shape in ((3, time, 6), (6, vocabulary), (vocabulary,))
    )
    targets = draw.integers(0, vocabulary, real.shape)
    found, gradients = project(outputs, real, targets, kernel, bias)

    wide = np.float64
    logits = outputs.astype(wide) @ kernel.astype(wide) + bias
    log_p = log_softmax(logits)
    losses = -np.take_along_axis(log_p, targets[:, :, None], 2)[:, :, 0]
    d_logits = np.exp(log_p)
    np.put_along_axis(
        d_logits,
        targets[:, :, None],
        np.take_along_axis(d_logits, targets[:, :, None], 2) - 1,
        2,
    )
    d_logits = d_logits * real[:, :, None] / real.sum()
    expected = (
        d_logits @ kernel.T.astype(wide),
        np.einsum("bti,btv->iv", outputs.astype(wide), d_logits),
        d_logits.sum(axis=(0, 1)),
    )
    # four times the most seen over 20 seeds: 4.4e-16 and 4.3e-07
    bound = {"float64": 2e-15, "float32": 2e-6}[dtype]
    for mine, other in zip(gradients, expected, strict=True):
        assert mine.dtype == dtype
        np.testing.assert_allclose(mine, other, bound, bound * np.abs(other).max())
    np.testing.assert_allclose(found["token_loss"], losses * real, bound, bound)
    np.testing.assert_allclose(found["logits"], logits * real[:, :, None], bound, bound)


def test_a_bias_gradient_is_summed_row_after_row_as_the_frameworks_sum():
    """In float32 the order of a long sum is most of its error, which bounds are made of."""
    draw, rows, vocabulary = np.random.default_rng(5), 73, 9_000
    outputs = np.zeros((1, rows, 3), np.float32)
    kernel = np.zeros((3, vocabulary), np.float32)
    bias = draw.normal(size=vocabulary).astype(np.float32)
    targets = draw.integers(0, vocabulary, (1, rows))
    _, (_, _, d_bias) = project(outputs, np.ones((1, rows), bool), targets, kernel, bias)

    # every row has the same probabilities
    exponentials = np.exp(bias - bias.max())
    softmax = exponentials / exponentials.sum()
    d_logits = np.tile(softmax, (rows, 1))
    d_logits[np.arange(rows), targets[0]] -= 1
    d_logits /= rows
    one_by_one = np.zeros(vocabulary, np.float32)
    for row in d_logits:
        one_by_one += row
    assert d_bias.dtype == np.float32
    np.testing.assert_array_equal(d_bias, one_by_one)
    in_blocks = sum(d_logits[k : k + 14].sum(axis=0) for k in range(0, rows, 14))
    assert not np.array_equal(in_blocks, one_by_one)
