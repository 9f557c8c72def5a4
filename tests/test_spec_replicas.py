"""How a batch is shared among replicas and put together again, and its dropout masks."""

from itertools import pairwise

import numpy as np
import pytest
from oracle_side import TextBatch, pair_batch, random_inputs, small_pairs_spec, small_spec

from parity.base.errors import UsageError
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import (
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


# rows of which some are shorter than the longest of their replica, whatever the replicas
LENGTHS = [3, 0, 1, 4, 2]
SOURCE_LENGTHS = [2, 5, 1, 3, 1]
PAIR_LENGTHS = [3, 1, 1, 4, 2]


def bounds(rows, replicas):
    return list(pairwise(np.cumsum([0, *split_rows(rows, replicas)])))


def small_state(rows=5):
    draw = np.random.default_rng(0)
    return {"h": draw.random((rows, 2, 4)), "c": draw.random((rows, 2, 4))}


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_feeds_hold_every_row_once_and_one_scale(replicas):
    """Each up to the longest row of its replica: beyond it there is nothing real."""
    spec = small_spec(dtype="float32")
    inputs, state = random_inputs(spec, LENGTHS), small_state()
    feeds = split_feeds(spec, inputs, state, replicas)
    masks = {f"mask/{name}": mask for name, mask in inputs.masks.items()}
    assert list(masks) == ["mask/embedded", "mask/lstm_0", "mask/lstm_1"]
    of_time = {"tokens", "targets", *masks}
    whole = dict(inputs.batch) | state | masks
    assert all(set(feed) == {*whole, "scale"} for feed in feeds)
    for feed, (start, stop) in zip(feeds, bounds(5, replicas), strict=True):
        longest = max(1, *LENGTHS[start:stop], 0)
        for name, array in whole.items():
            mine = array[start:stop]
            expected = mine[:, :longest] if name in of_time else mine
            np.testing.assert_array_equal(feed[name], expected, err_msg=name)
            assert feed[name].dtype == array.dtype
        assert feed["scale"].dtype == np.float32
        share = 1 / 10 if any(LENGTHS[start:stop]) else 0  # of a replica without a token
        np.testing.assert_array_equal(feed["scale"], np.array([share], np.float32))


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_each_replica_is_padded_to_its_own_longest_on_every_axis_of_time(replicas):
    spec = small_pairs_spec(dtype="float32")
    inputs = step_inputs(spec, 0, pair_batch(spec, SOURCE_LENGTHS, PAIR_LENGTHS))
    feeds = split_feeds(spec, inputs, {}, replicas)
    masks = {f"mask/{name}": mask for name, mask in inputs.masks.items()}
    assert list(masks) == [
        "mask/source_embedded",
        "mask/encoder_0",
        "mask/target_embedded",
        "mask/decoder_0",
        "mask/attentional",
    ]
    of_source = {"source", "mask/source_embedded", "mask/encoder_0"}
    whole = dict(inputs.batch) | masks
    assert all(set(feed) == {*whole, "scale"} for feed in feeds)
    for feed, (start, stop) in zip(feeds, bounds(5, replicas), strict=True):
        source_time, time = max(SOURCE_LENGTHS[start:stop]), max(PAIR_LENGTHS[start:stop])
        for name, array in whole.items():
            most = source_time if name in of_source else time
            mine = array[start:stop]
            expected = mine if mine.ndim == 1 else mine[:, :most]
            np.testing.assert_array_equal(feed[name], expected, err_msg=name)
        np.testing.assert_array_equal(feed["scale"], np.array([1 / 11], np.float32))
    sizes = {(feed["source"].shape[1], feed["tokens"].shape[1]) for feed in feeds}
    assert len(sizes) == {1: 1, 2: 2, 3: 3, 5: 5}[replicas], "or nothing was to be trimmed"


def test_feeds_without_dropout_have_no_masks():
    spec = small_spec(keep=1.0)
    inputs = random_inputs(spec, [4, 2])
    (feed,) = split_feeds(spec, inputs, small_state(2), 1)
    assert set(feed) == {"tokens", "targets", "lengths", "h", "c", "scale"}


def test_a_replica_of_empty_rows_alone_keeps_one_step():
    """No framework runs a loop over no time at all."""
    spec = small_spec()
    feeds = split_feeds(spec, random_inputs(spec, [4, 2, 0, 0]), small_state(4), 2)
    assert [feed["tokens"].shape for feed in feeds] == [(2, 4), (2, 1)]
    assert feeds[1]["mask/lstm_0"].shape == (2, 1, 4)
    assert [feed["scale"].tolist() for feed in feeds] == [[1 / 6], [0]]


@pytest.mark.parametrize("stand_ins", [0, 1, 2])
def test_what_stands_in_for_no_token_is_not_recorded(stand_ins):
    spec = small_spec()
    inputs = random_inputs(spec, [1, 2, 0, 0])
    parts = {"token_loss": [np.array([0.5, 0.25, 0.125]), np.full(stand_ins, np.nan)]}
    joined = join_activations(spec, parts, inputs)["forward/token_loss"]
    assert joined.tolist() == [[0.5, 0, 0, 0], [0.25, 0.125, 0, 0], [0] * 4, [0] * 4]


def test_a_replicas_tokens_are_all_its_own():
    spec = small_spec()
    for wrong in (2, 4):
        parts = {"token_loss": [np.zeros(wrong), np.zeros(3)]}
        with pytest.raises(ValueError, match="shape mismatch"):
            join_activations(spec, parts, random_inputs(spec, [1, 2, 0, 3]))


def parts_of(spec, batch, whole, replicas):
    """Return activations as replicas of their own padding compute them: time first, garbage
    beyond the lengths; and logits and losses of the real target tokens alone.
    """
    network, found = NETWORKS[spec.network], {}
    for name, axes in network.activations(spec.model).items():
        found[name] = []
        for start, stop in bounds(len(batch["lengths"]), replicas):
            part = whole[name][start:stop].copy()
            for place, axis in enumerate(axes):
                if axis in network.lengths:
                    lengths = batch[network.lengths[axis]][start:stop]
                    part = part.take(range(max(1, lengths.max())), axis=place)
                    for row, length in enumerate(lengths):
                        np.moveaxis(part[row], place - 1, 0)[length:] = np.nan
            if name in ("logits", "token_loss"):
                lengths = batch["lengths"][start:stop]
                steps = range(part.shape[1])
                rows = [part[r, t] for t in steps for r, n in enumerate(lengths) if t < n]
                part = np.array(rows).reshape(-1, *part.shape[2:])
            elif axes[1] in network.lengths:
                part = part.swapaxes(0, 1)
            found[name].append(part)
    return found


def drawn_activations(spec, batch, sizes):
    """Draw every activation of a network, zero beyond the lengths."""
    network, draw = NETWORKS[spec.network], np.random.default_rng(0)
    whole = {}
    for name, axes in network.activations(spec.model).items():
        array = draw.random([sizes.get(axis, axis) for axis in axes]) + 1
        for place, axis in enumerate(axes):
            if axis in network.lengths:
                for row, length in enumerate(batch[network.lengths[axis]]):
                    np.moveaxis(array[row], place - 1, 0)[length:] = 0
        whole[name] = array
    return whole


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_are_joined_batch_first_in_the_order_of_rows(replicas, dtype):
    spec = small_spec()
    inputs = random_inputs(spec, LENGTHS)
    whole = drawn_activations(spec, inputs.batch, {"batch": 5, "time": 4})
    whole = {name: array.astype(dtype) for name, array in whole.items()}
    by_replica = parts_of(spec, inputs.batch, whole, replicas)
    joined = join_activations(spec, by_replica, inputs)
    assert set(joined) == {f"forward/{name}" for name in whole}
    for name, array in whole.items():
        np.testing.assert_array_equal(joined[f"forward/{name}"], array, err_msg=name)
        assert joined[f"forward/{name}"].dtype == dtype


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_activations_with_two_axes_of_time_are_joined(replicas, cell):
    spec = small_pairs_spec(cell=cell)
    inputs = step_inputs(spec, 0, pair_batch(spec, SOURCE_LENGTHS, PAIR_LENGTHS))
    sizes = {"batch": 5, "time": 4, "source_time": 5}
    whole = drawn_activations(spec, inputs.batch, sizes)
    assert whole["attention/weights"].shape == (5, 4, 5)
    assert np.count_nonzero(whole["attention/weights"]) == 3 * 2 + 5 + 1 + 4 * 3 + 2
    joined = join_activations(spec, parts_of(spec, inputs.batch, whole, replicas), inputs)
    assert set(joined) == {f"forward/{name}" for name in whole}
    for name, array in whole.items():
        np.testing.assert_array_equal(joined[f"forward/{name}"], array, err_msg=name)


def test_a_join_by_hand():
    """Two replicas of pairs, one row each, of 1 and 2 target tokens."""
    spec = small_pairs_spec()
    inputs = step_inputs(spec, 0, pair_batch(spec, [2, 1], [1, 2]))
    joined = join_activations(
        spec,
        {
            "token_loss": [np.array([0.5]), np.array([0.25, 0.125])],
            "attention/weights": [
                np.array([[[0.75, 0.25]]]),  # [time, rows, source_time]
                np.array([[[1.0]], [[1.0]]]),
            ],
        },
        inputs,
    )
    assert joined["forward/token_loss"].tolist() == [[0.5, 0.0], [0.25, 0.125]]
    assert joined["forward/attention/weights"].tolist() == [
        [[0.75, 0.25], [0.0, 0.0]],
        [[1.0, 0.0], [1.0, 0.0]],
    ]


# dropout


def text_of(rows, time):
    """Return the arrays of a batch, of which masks depend on the shape alone."""
    shape = np.zeros((rows, time), int)
    return {"tokens": shape, "targets": shape, "lengths": np.full(rows, time)}


def test_masks_have_a_place_each_and_hold_zero_or_one_over_keep():
    spec = small_spec(keep=0.75, embedding_size=3, hidden_size=4, num_layers=2)
    masks = dropout_masks(spec, 0, text_of(5, 6))
    assert {name: mask.shape for name, mask in masks.items()} == {
        "embedded": (5, 6, 3),
        "lstm_0": (5, 6, 4),
        "lstm_1": (5, 6, 4),
    }
    for mask in masks.values():
        assert set(np.unique(mask)) == {0.0, 1 / 0.75}
        assert mask.dtype == np.float64
    narrow = dropout_masks(spec.replace(dtype="float32"), 0, text_of(5, 6))
    assert narrow.keys() == masks.keys()
    for name, wide in masks.items():
        assert narrow[name].dtype == np.float32
        np.testing.assert_array_equal(narrow[name] > 0, wide > 0)


def test_masks_of_pairs_have_the_time_of_their_side():
    spec = small_pairs_spec(embedding_size=3, hidden_size=4, num_layers=3)
    batch = step_inputs(spec, 0, pair_batch(spec, SOURCE_LENGTHS, PAIR_LENGTHS)).batch
    masks = dropout_masks(spec, 0, batch)
    assert {name: mask.shape for name, mask in masks.items()} == {
        "source_embedded": (5, 5, 3),
        "encoder_0": (5, 5, 4),
        "encoder_1": (5, 5, 4),
        "target_embedded": (5, 4, 3),
        "decoder_0": (5, 4, 4),
        "decoder_1": (5, 4, 4),
        "attentional": (5, 4, 4),
    }
    assert all(set(np.unique(mask)) == {0.0, 1 / 0.75} for mask in masks.values())


@pytest.mark.parametrize("keep", [0.35, 0.5, 0.9])
def test_the_mean_of_masks_is_one(keep):
    spec = small_spec(keep=keep, embedding_size=100, hidden_size=100)
    masks = dropout_masks(spec, 7, text_of(20, 20))
    assert len(masks) == 3
    for mask in masks.values():
        error = np.sqrt((1 - keep) / keep / mask.size)
        assert abs(mask.mean() - 1) < 4 * error


@pytest.mark.parametrize(
    "spec",
    [
        small_spec(embedding_size=8, hidden_size=8, keep=0.5),
        small_pairs_spec(embedding_size=8, hidden_size=8, keep=0.5),
    ],
    ids=["language-model", "seq2seq"],
)
def test_masks_are_keyed_by_seed_step_and_place(spec):
    batch = text_of(5, 6) | {
        "source": np.zeros((5, 6), int),
        "source_lengths": np.full(5, 6),
    }
    drawn = {
        (seed, step, place): mask
        for seed in (3, 4)
        for step in (0, 1)
        for place, mask in dropout_masks(spec.replace(seed=seed), step, batch).items()
    }
    assert len(drawn) == 4 * len(NETWORKS[spec.network].masks(spec.model))
    for key, mask in drawn.items():
        again = dropout_masks(spec.replace(seed=key[0]), key[1], batch)[key[2]]
        np.testing.assert_array_equal(mask, again)
        for other, another in drawn.items():
            # independent masks agree in half of 240 units, with a deviation of 8
            assert other == key or 80 < np.count_nonzero(mask == another) < 160


def test_no_dropout_draws_no_masks():
    assert dropout_masks(small_spec(keep=1.0), 0, text_of(5, 6)) == {}


def test_evaluation_leaves_dropout_out():
    spec = small_spec()
    batch = TextBatch(np.zeros((2, 4), int), np.zeros((2, 4), int), np.array([4, 3]), False)
    assert len(step_inputs(spec, 0, batch).masks) == 3
    assert step_inputs(spec, 0, batch, train=False).masks == {}
    assert step_inputs(spec, 0, batch).num_tokens == 7


def test_inputs_are_the_arrays_of_the_network():
    text = step_inputs(small_spec(), 0, TextBatch(*np.zeros((2, 2, 4), int), np.ones(2), True))
    assert set(text.batch) == {"tokens", "targets", "lengths"}
    assert text.carry
    spec = small_pairs_spec()
    pairs = step_inputs(spec, 0, pair_batch(spec, [2, 5], [3, 1]))
    assert set(pairs.batch) == {"source", "source_lengths", "tokens", "targets", "lengths"}
    assert not pairs.carry
    assert (pairs.rows, pairs.num_tokens, pairs.positions) == (2, 4, 6)


def test_a_loss_is_the_sum_of_the_replicas_shares():
    assert StepResult(np.array([0.5, 1.25]), {}, 1.0, {}).loss == 1.75
