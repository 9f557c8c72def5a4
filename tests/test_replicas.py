"""How a batch is shared among replicas and put together again, and its dropout masks."""

import numpy as np
import pytest
from oracle_side import TextBatch, random_inputs, small_spec

from parity.errors import UsageError
from parity.replicas import split_rows
from parity.steps import (
    StepResult,
    dropout_masks,
    join_activations,
    split_feeds,
    step_inputs,
)


@pytest.mark.parametrize("replicas", range(1, 9))
def test_no_row_is_dropped_and_shares_are_even(replicas):
    for rows in range(replicas, 30):
        sizes = split_rows(rows, replicas)
        assert len(sizes) == replicas
        assert sum(sizes) == rows
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


def test_too_few_rows_are_refused():
    with pytest.raises(
        UsageError, match=r"batch of 3 rows.*4 replicas; allowed: --replicas <= 3"
    ):
        split_rows(3, 4)
    with pytest.raises(UsageError, match="--replicas is 0; allowed: >= 1"):
        split_rows(3, 0)


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_feeds_hold_every_row_once_and_one_scale(replicas):
    spec = small_spec(dtype="float32")
    inputs = random_inputs(spec, [4, 0, 1, 3, 2])
    shape = (5, spec.model.num_layers, spec.model.hidden_size)
    draw = np.random.default_rng(0)
    h, c = draw.random(shape), draw.random(shape)
    feeds = split_feeds(spec, inputs, (h, c), replicas)
    whole = {"tokens": inputs.tokens, "targets": inputs.targets, "lengths": inputs.lengths}
    whole |= {"h": h, "c": c, **{f"mask_{k}": mask for k, mask in enumerate(inputs.masks)}}
    assert len(inputs.masks) == 3
    assert all(set(feed) == {*whole, "scale"} for feed in feeds)
    assert [len(feed["tokens"]) for feed in feeds] == split_rows(5, replicas)
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([feed[name] for feed in feeds]), array)
    for feed in feeds:
        assert feed["scale"].dtype == np.float32
        np.testing.assert_array_equal(feed["scale"], np.array([1 / 10], np.float32))


def test_feeds_without_dropout_have_no_masks():
    spec = small_spec(keep=1.0)
    inputs = random_inputs(spec, [4, 2])
    (feed,) = split_feeds(spec, inputs, (np.zeros((2, 2, 4)),) * 2, 1)
    assert set(feed) == {"tokens", "targets", "lengths", "h", "c", "scale"}


def test_activations_are_joined_batch_first_in_the_order_of_rows():
    spec, time, rows = small_spec(), 4, 5
    hidden = np.random.default_rng(0).random((rows, time, 6))
    logits = np.random.default_rng(1).random((rows, time, spec.model.vocabulary_size))
    losses = np.random.default_rng(2).random((rows, time))
    bounds = [(0, 2), (2, 4), (4, 5)]
    by_replica = {
        "hidden": [np.swapaxes(hidden[a:b], 0, 1) for a, b in bounds],
        "logits": [
            np.swapaxes(logits[a:b], 0, 1).reshape(-1, spec.model.vocabulary_size)
            for a, b in bounds
        ],
        "token_loss": [losses[a:b].T for a, b in bounds],
    }
    joined = join_activations(spec, by_replica, time)
    np.testing.assert_array_equal(joined["forward/hidden"], hidden)
    np.testing.assert_array_equal(joined["forward/logits"], logits)
    np.testing.assert_array_equal(joined["forward/token_loss"], losses)


# dropout


def test_masks_have_a_place_each_and_hold_zero_or_one_over_keep():
    spec = small_spec(keep=0.75, embedding_size=3, hidden_size=4, num_layers=2)
    masks = dropout_masks(spec, 0, 5, 6)
    assert [mask.shape for mask in masks] == [(5, 6, 3), (5, 6, 4), (5, 6, 4)]
    for mask in masks:
        assert set(np.unique(mask)) == {0.0, 1 / 0.75}
        assert mask.dtype == np.float64
    narrow = dropout_masks(spec.replace(dtype="float32"), 0, 5, 6)
    for mask, wide in zip(narrow, masks, strict=True):
        assert mask.dtype == np.float32
        np.testing.assert_array_equal(mask > 0, wide > 0)


@pytest.mark.parametrize("keep", [0.35, 0.5, 0.9])
def test_the_mean_of_masks_is_one(keep):
    masks = dropout_masks(small_spec(keep=keep, embedding_size=100, hidden_size=100), 7, 20, 20)
    for mask in masks:
        error = np.sqrt((1 - keep) / keep / mask.size)
        assert abs(mask.mean() - 1) < 4 * error


def test_masks_are_keyed_by_seed_step_and_place():
    spec = small_spec(embedding_size=8, hidden_size=8, keep=0.5)
    drawn = {
        (seed, step, place): mask
        for seed in (3, 4)
        for step in (0, 1)
        for place, mask in enumerate(dropout_masks(spec.replace(seed=seed), step, 5, 6))
    }
    for key, mask in drawn.items():
        again = dropout_masks(spec.replace(seed=key[0]), key[1], 5, 6)[key[2]]
        np.testing.assert_array_equal(mask, again)
        for other, another in drawn.items():
            # independent masks agree in half of 240 units, with a deviation of 8
            assert other == key or 80 < np.count_nonzero(mask == another) < 160


def test_no_dropout_draws_no_masks():
    assert dropout_masks(small_spec(keep=1.0), 0, 5, 6) == ()


def test_evaluation_leaves_dropout_out():
    spec = small_spec()
    batch = TextBatch(np.zeros((2, 4), int), np.zeros((2, 4), int), np.array([4, 3]), False)
    assert len(step_inputs(spec, 0, batch).masks) == 3
    assert step_inputs(spec, 0, batch, train=False).masks == ()
    assert step_inputs(spec, 0, batch).num_tokens == 7


def test_a_loss_is_the_sum_of_the_replicas_shares():
    empty = np.zeros((0, 1, 1))
    assert StepResult(np.array([0.5, 1.25]), empty, empty, 1.0, {}).loss == 1.75
