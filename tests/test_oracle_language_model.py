"""The oracle against what it must be by definition: finite differences and hand computation."""

import numpy as np
import pytest
from oracle_side import random_inputs, small_spec

from parity.twins.oracle.language_model import language_model
from parity.twins.oracle.layers import log_softmax, project
from parity.twins.oracle.optimizers import update_slots
from parity.twins.spec.initial import initial_snapshot


def problem(layers=2, lengths=(4, 0, 1, 3), *, keep=0.75, carry=True):
    """Return spec, weights, inputs and state of a small network away from zero."""
    spec = small_spec(num_layers=layers, keep=keep, initial_scale=0.7)
    weights = {
        name.split("/", 1)[1]: array
        for name, array in initial_snapshot(spec).items()
        if name.startswith("weight/")
    }
    inputs = random_inputs(spec, lengths, carry=carry)
    draw = np.random.default_rng(8)
    shape = (len(lengths), layers, spec.model.hidden_size)
    state = {name: draw.normal(size=shape) * 0.5 for name in "hc"}
    return spec, weights, inputs, state


def run(spec, weights, inputs, state):
    return language_model(spec.model, weights, inputs.batch, inputs.masks, state)


def loss_of(spec, weights, inputs, state):
    activations, _ = run(spec, weights, inputs, state)
    return activations["token_loss"].sum() / inputs.num_tokens


@pytest.mark.parametrize(
    ("layers", "keep", "lengths"),
    [
        (1, 1.0, (4, 4)),
        (1, 0.75, (4, 0, 1, 3)),
        (2, 0.75, (4, 0, 1, 3)),
        (3, 0.75, (4, 2, 0)),
        (3, 1.0, (1, 4, 3)),
    ],
)
def test_gradients_are_those_of_central_differences(layers, keep, lengths):
    spec, weights, inputs, state = problem(layers, lengths, keep=keep)
    _, gradients = run(spec, weights, inputs, state)
    assert set(gradients) == set(weights)
    step = 1e-5
    for name, array in weights.items():
        numeric = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            around = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                around.append(loss_of(spec, weights | {name: moved}, inputs, state))
            numeric[index] = (around[0] - around[1]) / (2 * step)
        assert np.abs(numeric).max() > 1e-4
        np.testing.assert_allclose(gradients[name], numeric, rtol=1e-6, atol=1e-9, err_msg=name)


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
