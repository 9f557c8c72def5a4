"""Batches hold every token once, in the right order, and are pure functions of the step."""

import hashlib
import threading

import numpy as np
import pytest

from data.load import Prefetch
from data.text_batches import SentenceBatches, StreamBatches, make_batches
from data.text_corpus import load_corpus
from parity.base.errors import UsageError


def encoded(folder, lines):
    """Encode lines as a training text; the same serve as the other splits."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("".join(line + "\n" for line in lines))
    return load_corpus(folder, folder / "cache", None).train


@pytest.fixture
def counted(tmp_path):
    """Return a function that makes a text of n different words and its n + 1 ids."""

    def make(count):
        text = encoded(tmp_path / f"{count}", [" ".join(f"w{i:04}" for i in range(count))])
        return text, list(text.read(0, text.num_tokens))

    return make


@pytest.fixture
def sentences(tmp_path):
    """Return a text of 200 sentences of 1 to 23 words, all different, blank lines between."""
    lines, word = [], 0
    for i in range(200):
        length = 1 + i * 7 % 23
        lines.append(" ".join(f"w{j:05}" for j in range(word, word + length)))
        word += length
        if i % 10 == 0:
            lines += ["", " "]
    return encoded(tmp_path / "sentences", lines), lines


def epoch_of(batches, epoch=0):
    first = epoch * batches.batches_per_epoch
    return [batches.batch(first + i) for i in range(batches.batches_per_epoch)]


def same(a, b):
    return (
        np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.targets, b.targets)
        and np.array_equal(a.lengths, b.lengths)
        and a.carry == b.carry
    )


def rows_of(batch):
    for tokens, targets, length in zip(batch.tokens, batch.targets, batch.lengths, strict=True):
        yield tuple(tokens[:length].tolist()), tuple(targets[:length].tolist())


# stream


def test_stream_of_a_small_text_by_hand(tmp_path):
    text = encoded(tmp_path / "text", ["a b c", "d e f"])
    # ids: <unk> 0, <eos> 1, a 2, b 3, c 4, d 5, e 6, f 7; the stream is 2 3 4 1 5 6 7 1
    batches = StreamBatches(text, batch_size=2, time=3)
    assert batches.batches_per_epoch == 2
    assert batches.tokens_per_epoch == 7
    first, last = epoch_of(batches)
    assert first.tokens.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert first.targets.tolist() == [[3, 4, 1], [6, 7, 1]]
    assert first.lengths.tolist() == [3, 3]
    assert not first.carry
    assert last.tokens.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert last.targets.tolist() == [[5, 0, 0], [0, 0, 0]]
    assert last.lengths.tolist() == [1, 0]
    assert last.carry
    assert last.num_tokens == 1


def test_stream_shorter_than_a_batch_is_refused(counted):
    text, _ = counted(20)  # 21 tokens, one batch exactly
    assert StreamBatches(text, 4, 5).batches_per_epoch == 1
    with pytest.raises(UsageError) as caught:
        StreamBatches(text, 3, 7)
    assert str(caught.value) == (
        f"{text.name}: 21 tokens are less than one batch: 3 rows x 7 tokens need 22"
    )


@pytest.mark.parametrize(("batch_size", "time"), [(0, 5), (4, 0), (-1, 5)])
def test_stream_arguments_are_checked(counted, batch_size, time):
    text, _ = counted(20)
    with pytest.raises(UsageError, match=r"^(batch_size|time) (0|-1): 1 or more is needed$"):
        StreamBatches(text, batch_size, time)


# sentences


def test_sentences_of_a_small_text_by_hand(tmp_path):
    text = encoded(tmp_path / "text", ["a b", "", "c", " ", "d e f g h"])
    # ids: a 2 .. h 9; the last sentence has six targets and is cut in two
    batches = SentenceBatches(text, 2, max_length=4, seed=0, shuffle=False)
    assert (batches.num_rows, batches.batches_per_epoch, batches.smallest_batch) == (4, 2, 2)
    assert batches.tokens_per_epoch == 3 + 2 + 6
    assert batches.notes == (
        f"{text.name}: 1 of 3 sentences are longer than 4 targets and were cut into several"
        " rows",
    )
    first, last = epoch_of(batches)
    assert first.tokens.tolist() == [[1, 2, 3], [1, 4, 0]]
    assert first.targets.tolist() == [[2, 3, 1], [4, 1, 0]]
    assert first.lengths.tolist() == [3, 2]
    assert last.tokens.tolist() == [[1, 5, 6, 7], [8, 9, 0, 0]]
    assert last.targets.tolist() == [[5, 6, 7, 8], [9, 1, 0, 0]]
    assert last.lengths.tolist() == [4, 2]
    assert not first.carry
    assert not last.carry


def test_batches_are_of_even_size(sentences):
    text, _ = sentences
    for batch_size in (60, 7, 199, 200):
        batches = SentenceBatches(text, batch_size, 50, seed=0)
        sizes = [len(batch.lengths) for batch in epoch_of(batches)]
        assert sum(sizes) == 200
        assert len(sizes) == -(-200 // batch_size)
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) == batches.smallest_batch
        assert max(sizes) <= batch_size


def test_bucketing_leaves_little_padding(sentences):
    text, _ = sentences
    epoch = epoch_of(SentenceBatches(text, 10, 50, seed=0))
    cells = sum(batch.tokens.size for batch in epoch)
    tokens = sum(batch.num_tokens for batch in epoch)
    assert tokens / cells > 0.85  # about 0.55 in random order


def test_epochs_and_seeds_differ_and_steps_are_pure(sentences):
    text, _ = sentences
    batches = SentenceBatches(text, 7, 50, seed=5)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    assert not any(map(same, first, second))
    again = SentenceBatches(text, 7, 50, seed=5)
    backwards = [again.batch(step) for step in reversed(range(2 * len(first)))]
    assert all(map(same, first + second, reversed(backwards)))
    other = epoch_of(SentenceBatches(text, 7, 50, seed=6))
    assert not any(map(same, first, other))
    # the order of the batches is shuffled too, not only what is in them
    assert [batch.tokens.shape[1] for batch in first] != sorted(
        batch.tokens.shape[1] for batch in first
    )


def test_plan_is_the_same_with_every_numpy(sentences):
    text, _ = sentences
    digest = hashlib.sha256()
    for step in (0, 17, 29, 40):
        digest.update(SentenceBatches(text, 7, 50, seed=5).batch(step).tokens.tobytes())
    assert digest.hexdigest()[:16] == "505a35680bae886b"


def test_without_shuffling_epochs_are_alike_and_in_the_order_of_the_text(sentences):
    text, _ = sentences
    batches = SentenceBatches(text, 7, 50, seed=5, shuffle=False)
    first = epoch_of(batches)
    assert all(map(same, first, epoch_of(batches, 1)))
    assert all(map(same, first, epoch_of(SentenceBatches(text, 7, 50, seed=6, shuffle=False))))
    buckets = [
        [
            targets[0]
            for batch in first
            for _, targets in rows_of(batch)
            if len(targets) in sizes
        ]
        for sizes in (range(1, 5), range(5, 9), range(9, 13))
    ]
    assert all(bucket == sorted(bucket) for bucket in buckets)  # ids grow along this text


def test_fewer_rows_than_a_batch_are_refused(sentences):
    text, _ = sentences
    with pytest.raises(UsageError) as caught:
        SentenceBatches(text, 201, 50, seed=0)
    assert str(caught.value) == (
        f"{text.name}: 200 sentences make 200 rows, less than one batch of 201"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 50, 0), "batch_size 0: 1 or more is needed"),
        ((7, 0, 0), "max_length 0: 1 or more is needed"),
        ((7, 50, -1), "seed -1: 0 or more is needed"),
    ],
)
def test_sentence_arguments_are_checked(sentences, arguments, message):
    text, _ = sentences
    with pytest.raises(UsageError) as caught:
        SentenceBatches(text, *arguments)
    assert str(caught.value) == message


# both


def test_another_way_of_batching_is_refused(sentences):
    with pytest.raises(UsageError, match=r"^batching 'words': stream or sentences is needed$"):
        make_batches(sentences[0], "words", 4, 5, seed=5, shuffle=True)


@pytest.mark.parametrize("kind", ["stream", "sentences"])
def test_prefetching_and_threads_change_nothing(sentences, kind):
    text, _ = sentences
    batches = (
        StreamBatches(text, 4, 5) if kind == "stream" else SentenceBatches(text, 7, 50, seed=5)
    )
    count = 2 * batches.batches_per_epoch
    direct = [batches.batch(step) for step in range(count)]
    with Prefetch(batches.batch, 0, count) as ahead:
        assert all(map(same, direct, ahead))
    results = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda r=r: r.extend(map(batches.batch, range(count))))
        for r in results
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(r) == count and all(map(same, direct, r)) for r in results)
