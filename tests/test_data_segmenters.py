"""Sentences become tokens, and tokens text that can be read."""

import unicodedata

import pytest
from conftest import run_python
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.segmenters import (
    SEGMENTERS,
    Segmentation,
    english_text,
    english_tokens,
    in_chinese_width,
    read_user_dictionary,
)
from parity.base.errors import UsageError


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("jieba")


def test_hmm_finds_words_of_no_dictionary(cache):
    text = "他来到了网易杭研大厦"
    assert "杭研" in Segmentation(cache=cache).segment_source(text)
    assert "杭研" not in Segmentation(hmm=False, cache=cache).segment_source(text)


@pytest.mark.parametrize("segmenter", SEGMENTERS)
def test_any_white_space_only_separates(cache, segmenter):
    segmentation = Segmentation(segmenter, segmenter, cache=cache)
    assert segmentation.segment_source("　a\u3000b \u2003 c\x1fd　") == ["a", "b", "c", "d"]
    assert segmentation.segment_source("　 \u2003\x1f") == []
    assert segmentation.segment_source("") == []


def test_jieba_leaves_nothing_in_the_shared_temporary_folder(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    code = (
        "import pathlib, sys; from data.segmenters import Segmentation;"
        "print(*Segmentation(cache=pathlib.Path(sys.argv[1])).segment_source('我爱北京'))"
    )
    environment = {"TMPDIR": str(shared), "PYTHONIOENCODING": "utf-8"}
    for _ in range(2):
        done = run_python("-c", code, own, env=environment, check=True)
        assert done.stdout == "我 爱 北京\n"
        assert done.stderr == ""
    assert list(shared.iterdir()) == []
    assert len(list(own.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("好的 3\n云 计 算\n", ":2: '云 计 算': a word, a frequency"),
        ("云计算 3 n x\n", ":1: '云计算 3 n x': a word, a frequency"),
        ("云计算 n 3\n", ":1: '云计算 n 3': a word, a frequency"),
        ("云计算 0 n\n", ":1: frequency 0: 1 to 1000000000 is needed"),
        (f"云计算 {'0' * 5000}1\n", f":1: frequency {'0' * 80}: 1 to"),  # int() refuses it
        ("云计算 -3\n", ":1: '云计算 -3': a word, a frequency"),
        ("云，计算 3\n", ":1: word '云，计算' is never found: "),
        ("云计算 3\n好\n云计算\n", ":3: word '云计算' is already on line 1"),
        ("\n  \n", ": there is no word in this user dictionary"),
        ("云计算\n".encode("gbk"), ":1: byte 0xd4 at offset 0"),
    ],
)
def test_bad_user_dictionary_is_named_by_line(tmp_path, text, complaint):
    path = tmp_path / "words.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        read_user_dictionary(path, [])
    assert str(caught.value).startswith(f"{path}{complaint}")
    assert "\n" not in str(caught.value)


def test_english_rule():
    text = "Don’t you think it's 10:30 a.m., Mr. Smith? \"I can't pay $3.50 (50%),\" he said..."
    tokens = english_tokens(text)
    assert " ".join(tokens) == (
        "do n't you think it 's 10:30 a.m. , mr. smith ? \" i ca n't pay $ 3.50 ( 50 % ) , \""
        " he said ..."
    )
    assert english_text(tokens) == (
        "Don't you think it's 10:30 a.m., mr. smith? \"I can't pay $3.50 (50%),\" he said..."
    )
    tokens = english_tokens("The dogs' well-known o'clock -- we'll won't")
    assert " ".join(tokens) == "the dogs ' well-known o'clock -- we 'll wo n't"
    assert english_text(english_tokens("Is it? Yes. i think so!")) == "Is it? Yes. I think so!"


WORDS = st.sampled_from(
    ["tom's", "don't", "I", "dog", "well-known", "3.14", "1,000", "a.m.", "mr.", "we'll", "Ω"]
)
ENDS = st.sampled_from([".", "!", "?", "..."])


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(WORDS, min_size=1), ENDS), min_size=1))
def test_english_text_has_the_same_tokens(sentences):
    tokens = english_tokens(" ".join(" , ".join(words) + end for words, end in sentences))
    # after an abbreviation at the end its point and the sentence's are one run of points
    if not any(end[0] == "." and words[-1].endswith(".") for words, end in sentences):
        assert english_tokens(english_text(tokens)) == tokens


def half_width(text):
    """Return text with Unicode's own compatible forms of the block of full-width forms."""
    return "".join(
        unicodedata.normalize("NFKC", each) if "！" <= each <= "～" else each for each in text
    )


@settings(deadline=None)
@given(st.text())
@example("Ｗｈｏ！ ～’！")
def test_english_tokens_keep_every_letter(text):
    tokens = english_tokens(text)
    kept = "".join(half_width(text).lower().replace("’", "'").split())
    assert "".join(tokens) == kept
    assert all(token.split() == [token] for token in tokens)
    english_text(tokens)


@settings(deadline=None)  # jieba is read in the first of them
@given(st.text("我爱北京天安门，。a3 \u3000.%-+云计算"))
def test_chinese_tokens_keep_every_letter(text):
    tokens = Segmentation(hmm=True).segment_source(text)
    assert "".join(tokens) == "".join(in_chinese_width(text).split())
    assert all(token.split() == [token] for token in tokens)


@settings(deadline=None)
@given(st.text("我爱北京，。a3é \u3000かสวัสดี"))
def test_characters_keep_every_letter_and_latin_words_whole(text):
    segmentation = Segmentation("characters", "characters")
    tokens = segmentation.segment_source(text)
    assert "".join(tokens) == "".join(in_chinese_width(text).split())
    assert all(len(token) == 1 or set(token) <= set("a3é") for token in tokens)
    assert segmentation.segment_source(segmentation.join_target(tokens)) == tokens


def test_join_is_readable(cache):
    tokens = ["我", "买", "了", "iPhone", "15", "Pro", "，", "3.5", "元", "。"]
    join = {each: Segmentation("english", each).join_target for each in SEGMENTERS}
    assert join["chinese"](tokens) == "我买了iPhone 15 Pro，3.5元。"
    assert join["spaces"](["a", ",", "b"]) == "a , b"
    assert join["english"](["hi", "!"]) == "Hi!"
    assert all(each([]) == "" for each in join.values())


@pytest.mark.parametrize(
    ("typed", "trained"),
    [
        ("你吃饭了吗?", "你吃饭了吗？"),
        ("你好,世界!(真的)", "你好，世界！（真的）"),
        ("Ａ１是什么？", "A1是什么？"),
        ("他走了.", "他走了。"),
        ("这是AI?", "这是AI？"),
    ],
)
def test_width_makes_no_other_words_of_chinese(typed, trained):
    segmentation = Segmentation()
    assert segmentation.segment_source(typed) == segmentation.segment_source(trained)
