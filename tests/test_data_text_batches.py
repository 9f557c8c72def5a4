"""Batches hold every token once, in the right order, and are pure functions of the step."""

import hashlib

import pytest

from data.text_batches import SentenceBatches, StreamBatches
from data.text_corpus import load_corpus
from parity.base.errors import UsageError


def encoded(folder, lines):
    """Encode lines as a training text; the same serve as the other splits."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("".join(line + "\n" for line in lines))
    return load_corpus(folder, folder / "cache", None).train


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


# sentences


def test_sentences_that_are_cut_are_counted(tmp_path):
    text = encoded(tmp_path / "text", ["a b", "", "c", " ", "d e f g h"])
    batches = SentenceBatches(text, 2, max_length=4, seed=0, shuffle=False)
    assert (batches.batches_per_epoch, batches.smallest_batch) == (2, 2)
    assert batches.tokens_per_epoch == 3 + 2 + 6
    assert batches.notes == (
        f"{text.name}: 1 of 3 sentences are longer than 4 targets and were cut into several"
        " rows",
    )


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


def test_plan_is_the_same_with_every_numpy(sentences):
    text, _ = sentences
    digest = hashlib.sha256()
    for step in (0, 17, 29, 40):
        digest.update(SentenceBatches(text, 7, 50, seed=5).batch(step).tokens.tobytes())
    assert digest.hexdigest()[:16] == "505a35680bae886b"


@pytest.mark.parametrize(
    ("batches", "arguments", "message"),
    [
        (
            StreamBatches,
            (400, 7),
            "{}: 2,637 tokens are less than one batch: 400 rows x 7 "
            "tokens need 2,801; a smaller --batch-size or --time fewer",
        ),
        (SentenceBatches, (201, 50, 0), "{}: 200 sentences make 200 rows, less than one batch"),
    ],
)
def test_what_cannot_be_batched_is_refused(sentences, batches, arguments, message):
    text, _ = sentences
    with pytest.raises(UsageError) as caught:
        batches(text, *arguments)
    assert str(caught.value).startswith(message.format(text.name))
