"""A vocabulary gives every token one id, the same on every machine."""

import numpy as np
import pytest

from data.vocabulary import Vocabulary, build_vocabulary, check_tokens
from parity.base.errors import UsageError

COUNTS = {"the": 9, "cat": 4, "sat": 4, "a": 4, "<unk>": 7, "mat": 1}


def test_encode_and_decode():
    vocabulary = build_vocabulary(COUNTS, 5)
    ids = vocabulary.encode(["the", "mat", "cat", "<eos>"])
    assert ids.dtype == np.int32
    assert ids.tolist() == [2, 0, 4, 1]
    assert vocabulary.decode(ids) == ["the", "<unk>", "cat", "<eos>"]
    assert vocabulary.encode([]).shape == (0,)
    with pytest.raises(
        UsageError, match=r"^tokens: token id 5 at position 1 is not in 0 \.\. 4$"
    ):
        vocabulary.decode([0, 5])
    with pytest.raises(UsageError, match=r"token id -1 at position 0 is not in 0 \.\. 4$"):
        vocabulary.decode([-1])


def test_save_and_load_are_inverse(tmp_path):
    vocabulary = build_vocabulary({**COUNTS, "猫": 2}, None)
    path = tmp_path / "vocabulary.txt"
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert loaded == vocabulary
    assert loaded.content_hash == vocabulary.content_hash
    assert path.read_text(encoding="utf-8").splitlines() == list(vocabulary.tokens)


def test_content_hash_is_of_the_content():
    assert build_vocabulary(COUNTS, 5).content_hash == (
        "7d053306c99baa070b9f388dc28a6848191fdae4d1e83431fd25b04b1fdcc84c"
    )
    assert build_vocabulary(COUNTS, 6).content_hash != build_vocabulary(COUNTS, 5).content_hash


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<unk>\n<eos>\none\ntwo\none\n", ":5: token 'one' is already on line 3"),
        ("<unk>\n<eos>\none\n\ntwo\n", ":4: a blank line, a token is needed on every line"),
        (
            "<unk>\n<eos>\none\n\u3000\ntwo\n",
            ":4: a blank line, a token is needed on every line",
        ),
        ("<unk>\n<eos>\none two\n", ":3: token 'one two' holds white space"),
        ("<unk>\none\ntwo\n", ": token <eos> is missing, it must be on line 2"),
        ("<eos>\none\ntwo\n", ": token <unk> is missing, it must be on line 1"),
        ("<eos>\n<unk>\none\ntwo\n", ":2: token <unk> must be on line 1"),
        ("<unk>\none\n<eos>\ntwo\n", ":3: token <eos> must be on line 2"),
        (
            "<unk>\n<eos>\n",
            ": besides <unk> and <eos> the vocabulary holds no word; at least 2 words are"
            " needed",
        ),
        ("", ": the file is empty, at least one line of words is needed"),
    ],
)
def test_unusable_vocabulary_file_is_named(tmp_path, content, message):
    path = tmp_path / "vocabulary.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        Vocabulary.load(path)
    assert str(caught.value) == f"{path}{message}"


def test_check_tokens_names_the_place():
    check_tokens(np.array([[0, 4], [2, 1]]), 5)
    check_tokens(np.zeros((0, 3), dtype=np.int64), 5)
    with pytest.raises(UsageError) as caught:
        check_tokens(np.array([[0, 4], [5, -1]]), 5, source="batch")
    assert str(caught.value) == "batch: token id 5 at position (1, 0) is not in 0 .. 4"
    with pytest.raises(
        UsageError, match=r"^tokens: token id -3 at position 2 is not in 0 \.\. 4"
    ):
        check_tokens(np.array([0, 1, -3]), 5)
