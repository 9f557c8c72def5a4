"""The embedded pairs are many, varied, and answered by their words."""

import hashlib

import pytest

from data.built_in_pairs import VERSION, pairs, write_pairs
from data.pair_corpus import load_pairs
from data.pair_file import SPLITS

CONTENT = {2: "c5d953f4795aac814a1750df6c0f01c72416e49bf33b6b5f2d4ac2dafd1e1667"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return load_pairs(None, tmp_path_factory.mktemp("cache"))


def test_content_changes_with_the_version_only(tmp_path):
    write_pairs(tmp_path / "pairs.tsv")
    content = (tmp_path / "pairs.tsv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == CONTENT[VERSION]
    lines = content.decode().splitlines()
    assert [tuple(line.split("\t")) for line in lines] == list(pairs())


def test_segmented_as_any_text(corpus):
    assert corpus.notes == ()
    assert 500 < len(corpus.source_vocabulary) < 1000
    assert 500 < len(corpus.target_vocabulary) < 1000
    splits = [getattr(corpus, split) for split in SPLITS]
    assert sum(split.num_pairs for split in splits) == len(pairs())
    questions = {
        tuple(split.source(row).tolist())
        for split in splits[:1]
        for row in range(split.num_pairs)
    }
    assert len(questions) == splits[0].num_pairs  # distinct as tokens, too
    middle = (corpus.train.source_lengths >= 4) & (corpus.train.source_lengths <= 12)
    assert middle.mean() > 0.95
    assert corpus.train.source_lengths.max() <= 12
    assert corpus.train.target_lengths.max() <= 12


def test_answers_are_read_as_written(corpus):
    for row in range(corpus.train.num_pairs):
        tokens = corpus.target_vocabulary.decode(corpus.train.target(row))
        assert corpus.segmentation.join_target(tokens) == corpus.train.texts(row)[1]


def test_held_out_words_are_known(corpus):
    for split in (corpus.valid, corpus.test):
        assert split.num_pairs > 100
        assert split.source_unknown_share < 0.01
        assert split.target_unknown_share < 0.01
