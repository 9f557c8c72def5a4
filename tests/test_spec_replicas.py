"""How a batch is shared among replicas and put together again, and its dropout masks."""

from itertools import pairwise

import numpy as np
import pytest
from oracle_side import TextBatch, pair_batch, random_inputs, small_pairs_spec, small_spec

from parity.base.errors import UsageError
from parity.twins.spec.replicas import check_gpus, split_rows
from parity.twins.spec.step_arrays import (
    dropout_masks,
    join_activations,
    split_feeds,
    step_inputs,
)


def test_too_few_rows_are_refused():
    with pytest.raises(
        UsageError, match=r"batch of 3 rows.*4 replicas; allowed: --replicas <= 3"
    ):
        split_rows(3, 4)
    with pytest.raises(UsageError, match="--replicas is 0; allowed: >= 1"):
        split_rows(3, 0)


@pytest.mark.parametrize(
    ("replicas", "stages", "found", "said"),
    [
        (1, 1, 0, "no GPU is found; allowed: cpu"),
        (3, 1, 2, r"--replicas is 3, but there are 2 GPUs \(gpu:0, gpu:1\); allowed: 1 to 2"),
        (2, 2, 3, "at --stages 2, but there are 3 GPUs .* allowed: 1 to 1, or"),
        (1, 3, 2, "allowed: fewer stages, or --device cpu"),
    ],
)
def test_too_few_gpus_are_refused(replicas, stages, found, said):
    check_gpus(replicas, stages, replicas * stages)
    with pytest.raises(UsageError, match=said):
        check_gpus(replicas, stages, found)


SOURCE_LENGTHS = [2, 5, 1, 3, 1]
PAIR_LENGTHS = [3, 1, 1, 4, 2]


def bounds(rows, replicas):
    return list(pairwise(np.cumsum([0, *split_rows(rows, replicas)])))


def small_state(rows=5):
    draw = np.random.default_rng(0)
    return {"h": draw.random((rows, 2, 4)), "c": draw.random((rows, 2, 4))}


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


# dropout


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


def test_inputs_are_the_arrays_of_the_network():
    text = step_inputs(small_spec(), 0, TextBatch(*np.zeros((2, 2, 4), int), np.ones(2), True))
    assert set(text.batch) == {"tokens", "targets", "lengths"}
    assert text.carry
    spec = small_pairs_spec()
    pairs = step_inputs(spec, 0, pair_batch(spec, [2, 5], [3, 1]))
    assert set(pairs.batch) == {"source", "source_lengths", "tokens", "targets", "lengths"}
    assert not pairs.carry
    assert (pairs.rows, pairs.num_tokens, pairs.positions) == (2, 4, 6)
