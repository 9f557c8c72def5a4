"""Pairs are read, split without leaks, encoded once and read back a row at a time."""

import dataclasses
import itertools
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from test_data_text_file import peak_growth

from data import pair_corpus
from data.pair_corpus import load_pairs
from data.pair_file import SPLITS
from data.text_file import MAX_LINE
from parity.base.errors import UsageError
from parity.twins.spec.networks.seq2seq import PairText

SPACES = {"source_segmenter": "spaces", "target_segmenter": "spaces"}
SETTINGS = dataclasses.asdict(PairText(source_limit=50, target_limit=50)) | {
    "source_vocabulary_size": None,
    "target_vocabulary_size": None,
}


def write(path, lines):
    """Write lines, or what else there is."""
    if isinstance(lines, str):
        lines = lines.encode()
    if not isinstance(lines, bytes):
        lines = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(lines)
    return path


def some_lines(count=40, repeat=1):
    return [f"q{i // repeat} is it\ta{i} it is" for i in range(count)]


def dialogues(count, seed=1, longest=9):
    """Return lines of conversations, and each line's conversation."""
    draw = random.Random(seed)
    lines, conversations = [], []
    for conversation in range(count):
        said = [f"s{conversation} {i} {draw.random()}" for i in range(draw.randint(2, longest))]
        lines += [f"{q}\t{a}" for q, a in itertools.pairwise(said)]
        conversations += [conversation] * (len(said) - 1)
    return lines, conversations


def load(tmp_path, lines, **options):
    path = tmp_path / "pairs.tsv"
    if lines is not None:
        write(path, lines)
    return load_from(path, **{"cache": tmp_path / "cache"} | SPACES | options)


def load_from(path, cache, user_dictionary=None, on_empty="warn", processes=None, **options):
    settings = SETTINGS | options
    return load_pairs(path, cache, settings, user_dictionary, on_empty, processes)


def texts_of(corpus):
    """Return {split: [(question, answer)]}."""
    return {
        split: [
            getattr(corpus, split).texts(row) for row in range(getattr(corpus, split).num_pairs)
        ]
        for split in SPLITS
    }


def all_texts(corpus):
    return sorted(pair for pairs in texts_of(corpus).values() for pair in pairs)


def cached(cache, kind):
    return sorted(path for path in cache.iterdir() if path.name.startswith(f"{kind}-"))


def complaint_of(function, *arguments, **options):
    with pytest.raises(UsageError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is read --------------------------------------------------------------------------------


def test_earlier_turns_stand_before_a_question(tmp_path):
    """As many as are asked for and fit, of the same conversation alone."""
    said = [["a a", "b", "c c c", "d", "e"], ["f", "g g g g g g g", "h", "i"], ["k", "l", "m"]]
    lines = [f"{q}\t{a}" for each in said for q, a in itertools.pairwise(each)]
    for split in SPLITS:
        write(tmp_path / f"{split}.tsv", lines)
    options = {"cache": tmp_path / "cache", "source_limit": 7, **SPACES}
    corpus = load_from(tmp_path, turns=2, **options)
    found = {
        corpus.train.texts(row)[0]: " ".join(
            corpus.words.source_vocabulary.decode(corpus.train.source(row))
        )
        for row in range(corpus.train.num_pairs)
    }
    expected = {
        "a a": "a a",
        "b": "a a | b",
        "c c c": "b | c c c",  # with "a a" it would be eight
        "d": "b | c c c | d",
        "f": "f",
        "g g g g g g g": "g g g g g g g",
        "h": "h",  # not "f", beyond a turn that does not fit
        "k": "k",
        "l": "k | l",
    }
    assert found == expected
    assert load_from(tmp_path, **options).content_hash != corpus.content_hash
    assert complaint_of(load, tmp_path, lines, turns=1) == (
        f"{tmp_path}/pairs.tsv: --turns 1 with --split-by source would put a conversation's"
        " turns into several splits; allowed: --split-by block"
    )


def test_earlier_turns_decide_no_split(tmp_path):
    """Nor is a pair of training held out because something else was said before it."""
    lines = [f"s{number}\thello\nhello\tbye\nbye\te{number}" for number in range(12)]
    splits = [
        texts_of(load(tmp_path, lines, turns=turns, split_by="block")) for turns in (0, 2)
    ]
    assert splits[0] == splits[1]


def test_words_without_an_entry_are_counted_and_noted(tmp_path):
    corpus = load(tmp_path, some_lines())
    assert corpus.train.source_unknown_share == 0
    assert corpus.test.source_unknown_share == pytest.approx(1 / 3)
    said = f"{tmp_path}/pairs.tsv: 33.3% of the source words for test are <unk> with a vocab"
    assert any(note.startswith(said) for note in corpus.notes)


def test_sizes_of_vocabularies(tmp_path):
    shared = load(tmp_path, some_lines(), share_vocabulary=True)
    assert shared.words.source_vocabulary.tokens == shared.words.target_vocabulary.tokens
    assert {"a0", "q0"} & set(shared.words.source_vocabulary.tokens)
    assert len(shared.words.source_vocabulary) == 4 + 2 + 36 + 36
    complaint = complaint_of(
        load, tmp_path, None, share_vocabulary=True, source_vocabulary_size=9
    )
    assert complaint == (
        "vocabulary sizes 9 and None: with a shared vocabulary both must be the same"
    )
    assert complaint_of(load_from, Path("none"), tmp_path, target_vocabulary_size=5) == (
        "vocabulary size 5: at least 6 is needed, 4 special tokens and 2 words"
    )


@pytest.mark.parametrize(
    ("before", "line", "complaint"),
    [
        (3000, "one column", "1 column, 2 are needed, with a tab between"),
        (3000, "a\tb\tc", "3 columns, but line 1 has 2: all must have as many"),
        (
            0,
            "a\tb\tc\td",
            "4 columns, 2 (question, answer) or 3 (and a remark) are needed, with a tab",
        ),
    ],
)
def test_malformed_line_is_named(tmp_path, before, line, complaint):
    lines = [*some_lines(before), line]
    path = tmp_path / "pairs.tsv"
    said = complaint_of(load, tmp_path, lines)
    assert said.startswith(f"{path}:{before + 1}: {complaint}")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == []


EMPTY = ["\ta", "q\t", "q\t\u3000 ", "", " \t ", "\u3000\ta"]


def test_pairs_with_an_empty_side_are_dropped_and_counted(tmp_path):
    lines = [*some_lines(20), *EMPTY, *some_lines(20)]
    corpus = load(tmp_path, lines)
    dropped = "6 pairs with an empty side, on lines 21, 22, 23 and further ones"
    assert f"{tmp_path / 'pairs.tsv'}: {dropped}, were dropped" in corpus.notes
    assert len(all_texts(corpus)) == 40
    silent = load(tmp_path, None, on_empty="skip")
    assert not any("with an empty side" in note for note in silent.notes)
    assert silent.content_hash == corpus.content_hash
    assert complaint_of(load, tmp_path, None, on_empty="error") == (
        f"{tmp_path / 'pairs.tsv'}:21: {dropped}: a question and an answer are needed"
    )
    assert load(tmp_path, some_lines(), on_empty="error").train.num_pairs == 36


def test_long_pairs_are_dropped_and_counted(tmp_path):
    lines = some_lines()
    lines[3] = "q3 is it really\ta3 it is"
    lines[7] = "q7 is it\ta7 it is so"
    corpus = load(tmp_path, lines, source_limit=3, target_limit=3)
    path = tmp_path / "pairs.tsv"
    assert (
        f"{path}: 2 of 40 pairs, on lines 4, 8, have too many tokens and were dropped: 3 in a"
        " question and 3 in an answer are allowed" in corpus.notes
    )
    assert len(all_texts(corpus)) == 38
    assert corpus.train.source_lengths.max() == 3
    assert len(all_texts(load(tmp_path, None, source_limit=3, target_limit=None))) == 39
    assert len(all_texts(load(tmp_path, None, source_limit=None, target_limit=None))) == 40
    assert complaint_of(load, tmp_path, None, source_limit=None, target_limit=2) == (
        f"{path}: all 40 pairs have too many tokens: 2 in an answer are allowed"
    )


def test_line_beyond_all_measure_is_left_out(tmp_path):
    lines = some_lines(200)
    lines[5] = "w " * MAX_LINE + "\ta"
    lines[100] = "q\t" + "長" * MAX_LINE
    lines[101] = "q\t"
    corpus = load(tmp_path, lines)
    path = tmp_path / "pairs.tsv"
    assert corpus.notes[:3] == (
        f"{path}:6: this line is longer than 1,048,576 bytes and was left out",
        f"{path}:101: this line is longer than 1,048,576 bytes and was left out",
        f"{path}: 1 pair with an empty side, on line 102, was dropped",
    )
    assert all_texts(corpus) == sorted(
        tuple(line.split("\t"))
        for i, line in enumerate(some_lines(200))
        if i not in (5, 100, 101)
    )


def test_what_is_not_a_file_of_pairs_is_refused(tmp_path):
    path = tmp_path / "none.tsv"
    assert complaint_of(load_from, path, tmp_path / "cache") == f"{path}: no such file"
    assert complaint_of(load_from, tmp_path, tmp_path / "cache") == (
        f"{tmp_path}: no train.tsv and no valid.tsv and no test.tsv in this folder; it must"
        " hold train.tsv, valid.tsv and test.tsv"
    )


def test_folder_that_is_split_already(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    lines = some_lines(60)
    write(folder / "train.tsv", lines[:50])
    write(folder / "valid.tsv", [*lines[50:55], "q\t"])
    write(folder / "test.tsv", [*lines[55:], lines[0]])
    corpus = load_from(folder, tmp_path / "cache", **SPACES)
    texts = texts_of(corpus)
    assert texts["train"] == [tuple(line.split("\t")) for line in lines[:50]]
    assert texts["valid"] == [tuple(line.split("\t")) for line in lines[50:55]]
    assert corpus.notes[:2] == (
        f"{folder / 'valid.tsv'}: 1 pair with an empty side, on line 6, was dropped",
        f"{folder / 'test.tsv'}: 1 of 6 questions are in train.tsv too",
    )


# The splits ----------------------------------------------------------------------------------


def test_too_few_questions_are_refused(tmp_path):
    assert complaint_of(load, tmp_path, ["q\ta b", "q\tc", "p\tb"]) == (
        f"{tmp_path / 'pairs.tsv'}: 2 distinct questions, at least 3 are needed, one each to"
        " train, to validate and to test"
    )
    corpus = load(tmp_path, ["q r\ta b", "p s\tc d", "o t\tb e"])
    assert [getattr(corpus, split).num_pairs for split in SPLITS] == [1, 1, 1]


def test_too_few_conversations_are_refused(tmp_path):
    lines, _ = dialogues(2)
    assert complaint_of(load, tmp_path, lines, split_by="block") == (
        f"{tmp_path / 'pairs.tsv'}: 2 conversations, at least 3 are needed, one each to train,"
        " to validate and to test; a line whose question is not the answer of the line before"
        " starts one"
    )
    assert complaint_of(load, tmp_path, ["a b\tc d"] * 9, split_by="block") == (
        f"{tmp_path / 'pairs.tsv'}: of 9 pairs none is left for valid: the same pairs are"
        " everywhere"
    )


def test_dialogues_split_by_source_are_noted(tmp_path):
    lines, _ = dialogues(200)
    corpus = load(tmp_path, lines)
    assert sum("as in dialogues" in note for note in corpus.notes) == 1
    assert not any("as in dialogues" in note for note in load(tmp_path, some_lines()).notes)


# The cache -----------------------------------------------------------------------------------


def test_cache_is_used_again(tmp_path, monkeypatch):
    lines = [*some_lines(200), "q\t", "long " * 99 + "\ta"]
    first = load(tmp_path, lines)
    monkeypatch.delattr(pair_corpus, "encode_pairs")
    second = load(tmp_path, None)
    assert (second.content_hash, second.notes) == (first.content_hash, first.notes)
    assert texts_of(second) == texts_of(first)
    assert second.words.target_vocabulary.tokens == first.words.target_vocabulary.tokens


def test_damage_while_in_use_is_named(tmp_path):
    corpus = load(tmp_path, some_lines(50))
    (folder,) = cached(tmp_path / "cache", "pairs")
    path = folder / "train.source"
    ids = np.fromfile(path, dtype="<i4")
    ids[1], size = 10**6, len(corpus.words.source_vocabulary)
    with path.open("r+b") as file:
        file.write(ids.tobytes())
    assert complaint_of(corpus.train.source, 0) == (
        f"{path}: token id 1000000 at position 1 is not in 0 .. {size - 1}"
    )
    os.truncate(path, 0)
    assert complaint_of(corpus.train.source, 0) == (
        f"{path}: this file was cut short; remove its folder"
    )


def test_many_pairs_take_little_memory(tmp_path):
    draw = random.Random(3)
    words = [f"w{i}" for i in range(500)]
    lines = [
        f"{' '.join(draw.choices(words, k=20))}\t{' '.join(draw.choices(words, k=20))}"
        for _ in range(60_000)
    ]
    path = write(tmp_path / "pairs.tsv", lines)
    growth = peak_growth(
        "import json; from data.pair_corpus import load_pairs",
        "load_pairs(*map(Path, sys.argv[1:3]), json.loads(sys.argv[3]), processes=1)",
        *(path, tmp_path / "cache", json.dumps(SETTINGS | SPACES)),
    )
    assert path.stat().st_size > 8_000_000
    assert growth < 32_000


# Questions that are typed --------------------------------------------------------------------


def test_typed_question_is_cut_as_the_pairs_were(tmp_path):
    corpus = load(tmp_path, some_lines())
    read = corpus.words.read
    ids = read(" is\u3000it  new <eos> ")
    assert ids.tolist() == [4, 5, 3, 3]
    assert ids.dtype == np.int32
    for nothing in ("", "\u3000 "):
        assert complaint_of(read, nothing) == f"question {nothing!r}: there is no word in it"
    assert complaint_of(read, "what  now") == (
        "question 'what  now': none of its words is in the vocabulary: what now; it has words"
        " such as is it q0 q1 q10 q11 q12 q13"
    )
