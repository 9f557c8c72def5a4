"""A file that is no vocabulary is refused by its line."""

import pytest

from data.vocabulary import Vocabulary
from parity.base.errors import UsageError


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
