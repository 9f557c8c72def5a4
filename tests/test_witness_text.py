"""The text rebuilt from its batches, with nothing of data/ but batches and vocabulary files.

Both sides and the oracle read the same batches, so a mistake in them is the same for all three
and no comparison shows it. Here the words are put back together and compared with the file.
"""

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from data.load import load_pair_text, load_stream_text
from parity.twins.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec

SPLITS = ("train", "valid", "test")
WORDS = [f"word{number}" for number in range(30)]
KEPT = 22  # entries of a vocabulary that is too small for all of them
PAIR_SPECIALS = ["<pad>", "<go>", "<eos>", "<unk>"]


# plain text


def write_text(folder, seed=5):
    """Write lines of 0 to 11 words, rare and frequent ones, and return them by split."""
    draw = random.Random(seed)
    lines = {
        split: [
            # the square makes the first words frequent and the last ones rare
            " ".join(WORDS[int(30 * draw.random() ** 2)] for _ in range(draw.randrange(12)))
            for _ in range(count)
        ]
        for split, count in (("train", 90), ("valid", 30), ("test", 30))
    }
    folder.mkdir()
    for split, each in lines.items():
        (folder / f"{split}.txt").write_text("\n".join(each) + "\n")
    return lines


def stream_spec(**values):
    model = LanguageModelSpec(vocabulary_size=KEPT)
    training = TrainSpec(batch_size=4, seed=3)
    return Spec("language-model", model, LanguageModelText(time=6), training).replace(**values)


def load_text(folder, cache, **values):
    """Return the batches of a text, and its vocabulary as the lines of its file."""
    found = load_stream_text(folder, cache, stream_spec(**values).values())
    return found, found.vocabularies["vocabulary.txt"].decode().split("\n")[:-1]


def readable(line, vocabulary):
    """Return the words of a line as a network sees them, `<eos>` included."""
    return [word if word in vocabulary else "<unk>" for word in line.split()] + ["<eos>"]


def rows_of(batch):
    """Yield (inputs, targets) of each row of a batch as lists of ids, without padding."""
    for row, length in enumerate(batch.lengths.tolist()):
        yield batch.tokens[row, :length].tolist(), batch.targets[row, :length].tolist()


def epoch(batches, number=0):
    """Return the batches of an epoch."""
    first = number * batches.batches_per_epoch
    return [batches.batch(first + step) for step in range(batches.batches_per_epoch)]


def test_the_vocabulary_has_the_most_frequent_words_of_the_training_text(tmp_path):
    lines = write_text(tmp_path / "text")
    counts = Counter(word for line in lines["train"] for word in line.split())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    assert len(ranked) > KEPT  # some words have no entry
    _, vocabulary = load_text(tmp_path / "text", tmp_path / "cache")
    assert vocabulary == ["<unk>", "<eos>", *ranked[: KEPT - 2]]


@pytest.mark.parametrize("split", SPLITS)
def test_rows_of_a_stream_joined_are_the_text(tmp_path, split):
    """Each token is an input once an epoch, and the next token of the text is its target."""
    lines = write_text(tmp_path / "text")
    found, vocabulary = load_text(tmp_path / "text", tmp_path / "cache")
    text = [word for line in lines[split] for word in readable(line, vocabulary)]
    assert "<unk>" in text
    batches = getattr(found, split)
    for number in range(2):
        inputs, targets = [[] for _ in range(4)], [[] for _ in range(4)]
        for batch in epoch(batches, number):
            for row, (tokens, following) in enumerate(rows_of(batch)):
                inputs[row] += tokens
                targets[row] += following
        assert [vocabulary[i] for row in inputs for i in row] == text[:-1]
        assert [vocabulary[i] for row in targets for i in row] == text[1:]


@pytest.mark.parametrize("count", [1, 40, 90, 1000])
def test_the_first_lines_alone_are_trained_on(tmp_path, count):
    """Of plain text and of pairs; the vocabulary stays that of all of them."""
    lines = write_text(tmp_path / "text")
    text = f"{lines['train'][0]} word0 word1 word2 word3".strip()  # enough for one batch
    lines["train"][0] = f"{text} {text}"
    (tmp_path / "text" / "train.txt").write_text("\n".join(lines["train"]) + "\n")
    values = {"batch_size": 1, "time": 5}
    everything, vocabulary = load_text(tmp_path / "text", tmp_path / "cache", **values)
    found, same = load_text(tmp_path / "text", tmp_path / "cache", **values, train_lines=count)
    assert same == vocabulary
    expected = [word for line in lines["train"][:count] for word in readable(line, vocabulary)]
    read = [i for batch in epoch(found.train) for _, row in rows_of(batch) for i in row]
    assert [vocabulary[i] for i in read] == expected[1:]
    assert found.valid.tokens_per_epoch == everything.valid.tokens_per_epoch

    pairs = within_limits(write_splits(tmp_path / "pairs")["train"])
    values = {"batch_size": 1, "train_lines": count}
    found, source, target = load_pairs(tmp_path / "pairs", tmp_path / "cache", **values)
    rebuilt = pairs_of(found.train, source, target)
    assert Counter(rebuilt) == Counter(spelled(pairs[:count], source, target))


def test_a_stream_is_carried_within_an_epoch_and_starts_anew_with_each(tmp_path):
    write_text(tmp_path / "text")
    found, _ = load_text(tmp_path / "text", tmp_path / "cache")
    for number in range(3):
        assert [batch.carry for batch in epoch(found.train, number)] == [
            place > 0 for place in range(found.train.batches_per_epoch)
        ]


def sentence_rows(lines, vocabulary, longest):
    """Return how often each row (inputs, targets) must occur in an epoch of sentences."""
    rows = Counter()
    for line in lines:
        words = readable(line, vocabulary)
        before = "<eos>"
        for start in range(0, len(words) if len(words) > 1 else 0, longest):
            targets = words[start : start + longest]
            rows[(before, *targets[:-1]), tuple(targets)] += 1
            before = targets[-1]
    return rows


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("longest", [6, 50], ids=["cut", "whole"])
def test_rows_of_sentences_are_the_lines_of_the_text(tmp_path, split, longest):
    """Each row reads `<eos>` or the word before it, then the line; blank lines are no rows."""
    lines = write_text(tmp_path / "text")
    found, vocabulary = load_text(
        tmp_path / "text", tmp_path / "cache", batching="sentences", time=longest
    )
    expected = sentence_rows(lines[split], vocabulary, longest)
    assert sum(expected.values()) > 4
    for number in range(2):
        rows = Counter()
        for batch in epoch(getattr(found, split), number):
            assert not batch.carry
            for inputs, targets in rows_of(batch):
                spelled = ([vocabulary[i] for i in ids] for ids in (inputs, targets))
                rows[tuple(map(tuple, spelled))] += 1
        assert rows == expected


def test_padding_is_zero_and_behind_the_tokens(tmp_path):
    """A row holds nothing beyond its length: ids there are 0, whatever the way of batching."""
    write_text(tmp_path / "text")
    for values in ({}, {"batching": "sentences"}):
        found, _ = load_text(tmp_path / "text", tmp_path / "cache", **values)
        padded = 0
        for batch in epoch(found.train):
            beyond = np.arange(batch.tokens.shape[1]) >= batch.lengths[:, None]
            padded += beyond.sum()
            assert not batch.tokens[beyond].any()
            assert not batch.targets[beyond].any()
        assert padded
    write_splits(tmp_path / "pairs")
    found, *_ = load_pairs(tmp_path / "pairs", tmp_path / "cache")
    batches = epoch(found.train)
    for batch in batches:
        for ids in (batch.source, batch.tokens, batch.targets):
            lengths = batch.source_lengths if ids is batch.source else batch.lengths
            assert ids.shape[1] == lengths.max()
            assert not ids[np.arange(ids.shape[1]) >= lengths[:, None]].any()


def orders(batches, epochs):
    """Return the order of the rows in each epoch, by the first target of each row."""
    found = []
    for number in range(epochs):
        firsts = [batch.targets[:, 0] for batch in epoch(batches, number)]
        found.append(np.concatenate(firsts).tolist())
    return np.array(found)


def test_every_epoch_of_sentences_has_an_order_of_its_own(tmp_path):
    """Of 24 alike rows in 400 epochs, each comes in each place about equally often.

    The statistic is chi-squared with 23 * 23 degrees of freedom, so it exceeds 529 + 6 * 32.5
    by chance once in 10^8 shuffles. The correlation of consecutive orders, averaged over 399
    pairs, has a standard deviation of 1 / sqrt(23 * 399): 6 of them, once in 10^9.
    """
    folder = tmp_path / "text"
    folder.mkdir()
    for split in SPLITS:
        lines = [f"{word} {word}" for word in WORDS[:24]]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    values = {"batching": "sentences", "vocabulary_size": 30}
    found, _ = load_text(folder, tmp_path / "cache", **values)
    seen = orders(found.train, 400) - 2  # behind <unk> and <eos>
    assert all(sorted(order) == list(range(24)) for order in seen.tolist())
    times = np.zeros((24, 24))
    for order in seen:
        times[np.arange(24), order] += 1
    expected = 400 / 24
    assert ((times - expected) ** 2 / expected).sum() < 529 + 6 * 32.5
    alike = [np.corrcoef(a, b)[0, 1] for a, b in pairwise(seen)]
    assert abs(np.mean(alike)) < 6 / np.sqrt(23 * 399)
    other, _ = load_text(folder, tmp_path / "cache", **values, seed=4)
    assert (orders(other.train, 3) - 2).tolist() != seen[:3].tolist()
    again, _ = load_text(folder, tmp_path / "cache", **values)
    assert (orders(again.train, 3) - 2).tolist() == seen[:3].tolist()


# pairs of a question and an answer


def pair_spec(**values):
    model = Seq2seqSpec(source_vocabulary_size=KEPT, target_vocabulary_size=KEPT + 1)
    text = PairText("spaces", "spaces", source_limit=7, target_limit=6)
    training = TrainSpec(batch_size=6, seed=3)
    return Spec("seq2seq", model, text, training).replace(**values)


def write_pairs(path, count=200, seed=8):
    """Write pairs in which some questions and pairs occur again; return them."""
    draw = random.Random(seed)

    def sentence(longest):
        words = [WORDS[int(30 * draw.random() ** 2)] for _ in range(draw.randint(1, longest))]
        return " ".join(words)

    pairs = []
    for _ in range(count):
        question = sentence(8)
        if draw.random() < 0.2 and pairs:
            question = draw.choice(pairs)[0]
        elif draw.random() < 0.6 and pairs:
            question = pairs[-1][1]  # a dialogue: the answer before is the question
        pairs.append((question, sentence(7)))
        if draw.random() < 0.05:
            pairs.append(draw.choice(pairs))
    path.write_text("".join(f"{question}\t{answer}\n" for question, answer in pairs))
    return pairs


def within_limits(pairs):
    return [(q, a) for q, a in pairs if len(q.split()) <= 7 and len(a.split()) <= 6]


def load_pairs(path, cache, **values):
    found = load_pair_text(path, cache, pair_spec(**values).values())
    vocabularies = (
        found.vocabularies[f"{side}.vocabulary.txt"].decode().split("\n")[:-1]
        for side in ("source", "target")
    )
    return found, *vocabularies


def pairs_of(batches, source, target, number=0):
    """Return the pairs of an epoch in words; see that inputs and targets are one answer."""
    found = []
    for batch in epoch(batches, number):
        for row in range(len(batch.lengths)):
            question = batch.source[row, : batch.source_lengths[row]]
            inputs = [target[i] for i in batch.tokens[row, : batch.lengths[row]]]
            targets = [target[i] for i in batch.targets[row, : batch.lengths[row]]]
            assert inputs[0] == "<go>"
            assert targets[-1] == "<eos>"
            assert inputs[1:] == targets[:-1]
            found.append((" ".join(source[i] for i in question), " ".join(targets[:-1])))
    return found


def spelled(pairs, source, target):
    """Return pairs as a network sees them: words without an entry are `<unk>`."""
    return [
        (" ".join(readable(q, source)[:-1]), " ".join(readable(a, target)[:-1]))
        for q, a in pairs
    ]


def write_splits(folder):
    folder.mkdir()
    return {
        split: write_pairs(folder / f"{split}.tsv", count, seed)
        for split, count, seed in (("train", 120, 1), ("valid", 40, 2), ("test", 40, 3))
    }


@pytest.mark.parametrize("split", SPLITS)
def test_rows_of_pairs_are_the_lines_of_the_file(tmp_path, split):
    pairs = write_splits(tmp_path / "pairs")
    found, source, target = load_pairs(tmp_path / "pairs", tmp_path / "cache")
    expected = spelled(within_limits(pairs[split]), source, target)
    assert any("<unk>" in question for question, _ in expected)
    for number in range(2):
        rebuilt = pairs_of(getattr(found, split), source, target, number)
        assert Counter(rebuilt) == Counter(expected)


def test_pairs_are_shuffled_anew_in_every_epoch_of_training_alone(tmp_path):
    write_splits(tmp_path / "pairs")
    found, source, target = load_pairs(tmp_path / "pairs", tmp_path / "cache")
    train = [pairs_of(found.train, source, target, number) for number in range(3)]
    assert train[0] != train[1] != train[2] != train[0]
    assert train[0] == pairs_of(found.train, source, target, 0)
    assert len({tuple(pairs_of(found.valid, source, target, n)) for n in range(3)}) == 1


@pytest.mark.parametrize("files", [3, 1])
def test_vocabularies_of_pairs_are_those_of_the_training_pairs(tmp_path, files):
    """Of one file too, whose pairs for validation and test share no words with training."""
    path = tmp_path / "pairs"
    if files == 3:
        pairs = within_limits(write_splits(path)["train"])
    else:
        lines = [
            (f"{WORDS[k % 18]} once{k}", f"{WORDS[k % 18]} {WORDS[k % 7]}") for k in range(60)
        ]
        path.write_text("".join(f"{q}\t{a}\n" for q, a in lines))
    sizes = {"source_vocabulary_size": 999} if files == 1 else {}
    found, source, target = load_pairs(path, tmp_path / "cache", **sizes)
    if files == 1:
        train = [found.pairs.train.texts(row) for row in range(found.num_sources("train"))]
        assert len(train) == 54
        assert not set(train) - set(lines)
        pairs = train
    sides = (source, sizes.get("source_vocabulary_size", KEPT)), (target, KEPT + 1)
    for side, (vocabulary, size) in enumerate(sides):
        counts = Counter(word for pair in pairs for word in pair[side].split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        assert vocabulary == PAIR_SPECIALS + ranked[: size - 4]


def test_answers_are_decoded_for_the_questions_that_they_are_compared_with(tmp_path):
    """`sources`, `references` and `write` are what BLEU and exact answers rest on."""
    pairs = within_limits(write_splits(tmp_path / "pairs")["test"])
    found, source, target = load_pairs(tmp_path / "pairs", tmp_path / "cache")
    questions, lengths = found.sources("test", range(found.num_sources("test")))
    read = [
        " ".join(source[i] for i in row[:length])
        for row, length in zip(questions, lengths, strict=True)
    ]
    assert read == [question for question, _ in spelled(pairs, source, target)]
    assert found.references("test") == [answer for _, answer in pairs]
    assert found.write([5, 4, 7]) == " ".join(target[i] for i in (5, 4, 7))


def test_no_question_is_in_two_splits(tmp_path):
    pairs = write_pairs(tmp_path / "pairs.tsv", 400)
    everything = {"source_vocabulary_size": 100, "target_vocabulary_size": 100}
    found, source, target = load_pairs(tmp_path / "pairs.tsv", tmp_path / "cache", **everything)
    splits = {s: pairs_of(getattr(found, s), source, target) for s in SPLITS}
    # a word of a held-out pair may be in no training pair, and so have no entry
    held_out = [q for s in SPLITS[1:] for q, _ in splits[s] if "<unk>" not in q]
    train = [question for question, _ in splits["train"]]
    assert held_out
    assert not set(train) & set(held_out)
    assert not {q for q, _ in splits["valid"]} & {q for q, _ in splits["test"]}
    kept = within_limits(pairs)
    assert sum(map(len, splits.values())) == len(kept)
    assert not Counter(splits["train"]) - Counter(kept)
    distinct = len({question for question, _ in kept})
    for split in SPLITS[1:]:
        assert len({q for q, _ in splits[split]}) == pytest.approx(0.05 * distinct, abs=1)


def test_no_conversation_is_in_two_splits(tmp_path):
    """The files' own texts are compared, with numbers as words: no pair occurs twice."""
    draw, lines, number = random.Random(4), [], 0
    conversation_of = {}
    for conversation in range(60):
        for _ in range(draw.randint(2, 6)):
            lines.append((f"turn{number}", f"turn{number + 1}"))
            conversation_of[lines[-1]] = conversation
            number += 1
        number += 1
    (tmp_path / "pairs.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in lines))
    values = {"split_by": "block", "source_vocabulary_size": 999, "batch_size": 1}
    found, *_ = load_pairs(
        tmp_path / "pairs.tsv", tmp_path / "cache", **values, target_vocabulary_size=999
    )
    seen = {
        split: [
            getattr(found.pairs, split).texts(row) for row in range(found.num_sources(split))
        ]
        for split in SPLITS
    }
    assert Counter(pair for pairs in seen.values() for pair in pairs) == Counter(lines)
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        first, second = ({conversation_of[pair] for pair in seen[s]} for s in (one, other))
        assert first
        assert second
        assert not first & second
