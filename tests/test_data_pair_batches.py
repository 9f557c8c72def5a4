"""Batches of pairs hold each pair once an epoch, padded with nothing but zeros."""

import numpy as np
import pytest

from data.pair_batches import PairBatches
from parity.base.errors import UsageError


class Lists:
    """Pairs in memory: the ids of a pair tell which it is."""

    name = "pairs.tsv, train split"

    def __init__(self, lengths):
        self.num_pairs = len(lengths)
        self.source_lengths = np.array([s for s, _ in lengths], dtype=np.uint32)
        self.target_lengths = np.array([t for _, t in lengths], dtype=np.uint32)

    def source(self, row):
        return np.arange(self.source_lengths[row], dtype=np.int32) + 4 + row

    def target(self, row):
        return np.arange(self.target_lengths[row], dtype=np.int32) + 1000 + row


def random_pairs(count=300, seed=1):
    draw = np.random.RandomState(seed)
    target = draw.randint(1, 30, count)
    return Lists(
        list(zip(np.clip(target + draw.randint(-3, 4, count), 1, 40), target, strict=True))
    )


@pytest.mark.parametrize("shuffle", [True, False])
def test_padding_is_told_as_it_is(shuffle):
    pairs = random_pairs(1000)
    batches = PairBatches(pairs, 32, seed=3, shuffle=shuffle)
    each = [batches.batch(step) for step in range(batches.batches_per_epoch)]
    padding = batches.padding()
    for share, lengths, of in (
        (padding["source"], "source_lengths", "source"),
        (padding["target"], "lengths", "tokens"),
    ):
        real = sum(int(getattr(batch, lengths).sum()) for batch in each)
        assert share == pytest.approx(1 - real / sum(getattr(b, of).size for b in each))
    assert padding["target"] < 0.1  # in random order more than 0.4
    assert padding["source"] < 0.15


def test_what_cannot_be_batched_is_refused():
    pairs = Lists([(1, 1)] * 5)
    with pytest.raises(UsageError) as caught:
        PairBatches(pairs, 6, 1)
    assert str(caught.value) == "pairs.tsv, train split: 5 pairs are less than one batch of 6"
    assert PairBatches(pairs, 6, 1, shuffle=False).smallest_batch == 5
