"""The embedded pairs are the same everywhere, and read back as they are written."""

import hashlib

from data.built_in_pairs import VERSION, pairs, write_pairs
from data.pair_corpus import load_pairs
from parity.twins.spec.spec import preset

CONTENT = {2: "c5d953f4795aac814a1750df6c0f01c72416e49bf33b6b5f2d4ac2dafd1e1667"}


def test_content_changes_with_the_version_only(tmp_path):
    write_pairs(tmp_path / "pairs.tsv")
    content = (tmp_path / "pairs.tsv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == CONTENT[VERSION]
    lines = content.decode().splitlines()
    assert [tuple(line.split("\t")) for line in lines] == list(pairs())


def test_answers_are_read_as_written(tmp_path):
    corpus = load_pairs(None, tmp_path, preset("seq2seq", "tiny").values())
    for row in range(corpus.train.num_pairs):
        tokens = corpus.words.target_vocabulary.decode(corpus.train.target(row))
        assert corpus.words.segmentation.join_target(tokens) == corpus.train.texts(row)[1]
