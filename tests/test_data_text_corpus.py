"""A folder of text is encoded once, exactly, and read back a piece at a time."""

import os
import time

import numpy as np
import pytest
from test_data_text_file import peak_growth

from data import text_corpus as module
from data.segmented_text import choose_segmenter
from data.segmenters import SEGMENTERS
from data.text_corpus import find_splits, load_corpus
from data.text_file import MAX_LINE
from parity.base.errors import UsageError

TRAIN = """
 = Cats =

 the cat <unk> on the mat
 the dog sat
\x20
 a <eos> cat\u3000sat
"""


def write_texts(folder, train=TRAIN, valid="the cat\n", test="the dog\n", name="{}.txt"):
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in (("train", train), ("valid", valid), ("test", test)):
        content = text if isinstance(text, bytes) else text.encode()
        (folder / name.format(split)).write_bytes(content)
    return folder


def words_of(corpus, text):
    return corpus.vocabulary.decode(text.read(0, text.num_tokens))


def encoded_folders(cache):
    return [path.name for path in cache.iterdir() if path.name.startswith("corpus-")]


def test_mostly_unknown_text_is_noted(tmp_path):
    train = "a a b b b\n"
    folder = write_texts(tmp_path / "text", train, "a b a b z\n", "a b a\r\nz\r\n")
    corpus = load_corpus(folder, tmp_path / "cache", None)
    assert corpus.valid.unknown_share == 0.2
    assert corpus.notes == (
        f"{folder}/test.txt: 25.0% of the words are <unk> with a vocabulary of 4; more than 20%"
        " teaches a model little: try more training text or another --target-segmenter",
    )
    smaller = load_corpus(folder, tmp_path / "cache", 4)
    assert "little: try a larger --vocabulary-size or another" in smaller.notes[0]


@pytest.mark.parametrize("name", ["{}.txt", "ptb.{}.txt", "wiki.{}.tokens"])
def test_usual_file_names_are_found(tmp_path, name):
    corpus = load_corpus(write_texts(tmp_path, name=name), tmp_path / "cache", None)
    assert corpus.train.name == str(tmp_path / name.format("train"))
    assert corpus.test.num_tokens == 3


def test_same_content_elsewhere_is_the_same_corpus(tmp_path):
    cache = tmp_path / "cache"
    texts = {"train": "\ufeffa a b b\n"}
    one = load_corpus(write_texts(tmp_path / "one", **texts), cache, None)
    two = load_corpus(write_texts(tmp_path / "two", name="ptb.{}.txt", **texts), cache, None)
    assert one.content_hash == two.content_hash
    assert encoded_folders(cache) == [f"corpus-{one.content_hash[:32]}"]
    # remarks name the file that was asked for, from the cache or not
    assert one.notes[0] == f"{tmp_path}/one/train.txt: the UTF-8 byte-order mark was left out"
    assert (
        two.notes[0] == f"{tmp_path}/two/ptb.train.txt: the UTF-8 byte-order mark was left out"
    )


def test_blocks_of_a_large_text_join_without_a_seam(tmp_path):
    rng = np.random.RandomState(0)
    lines = [
        " ".join(f"w{i}" for i in rng.randint(0, 300, size))
        for size in rng.randint(0, 40, 40_000)
    ]
    folder = write_texts(tmp_path, "\n".join(lines) + "\n")
    assert (folder / "train.txt").stat().st_size > 3 * MAX_LINE
    corpus = load_corpus(folder, tmp_path / "cache", None)
    text = corpus.train
    expected, offsets = [], [0]
    for line in lines:
        expected += [*line.split(), "<eos>"]
        offsets.append(len(expected))
    assert words_of(corpus, text) == expected
    assert np.array_equal(text.line_offsets, offsets)
    assert text.num_sentences == sum(line != "" for line in lines)


# text without spaces between words

CHINESE = ["我来到北京清华大学。", "他爱北京，买了 iPhone 15。", "", "我爱清华大学？"]


def test_chinese_is_cut_by_jieba_and_it_is_said(tmp_path, cache):
    train = "\ufeff" + "\n".join(CHINESE)
    folder = write_texts(tmp_path / "text", train, "我来到清华大学?\n", "他来到北京。\n")
    path = f"{tmp_path}/text"
    corpus = load_corpus(folder, cache, None)
    assert " ".join(words_of(corpus, corpus.train)) == (
        "我 来到 北京 清华大学 。 <eos> 他 爱 北京 ， 买 了 iPhone 15 。 <eos> <eos>"
        " 我 爱 清华大学 ？ <eos>"
    )
    assert corpus.valid.unknown_share == corpus.test.unknown_share == 0
    assert corpus.notes == (
        f"{path}: Chinese without spaces, cut into words by jieba; another --target-segmenter"
        " changes that",
        f"{path}/train.txt: the UTF-8 byte-order mark was left out",
    )
    again = load_corpus(folder, cache, None)
    assert (again.notes, again.content_hash) == (corpus.notes, corpus.content_hash)
    named = load_corpus(folder, cache, None, "chinese")
    assert (named.notes, named.content_hash) == (corpus.notes[1:], corpus.content_hash)


def test_a_segmenter_given_is_used_and_names_another_cache(tmp_path, cache):
    folder = write_texts(tmp_path / "text", "\n".join(CHINESE), "张三\n", "他\n")
    found = {each: load_corpus(folder, cache, None, each) for each in SEGMENTERS}
    assert len({corpus.content_hash for corpus in found.values()}) == len(SEGMENTERS)
    assert words_of(found["spaces"], found["spaces"].train)[0] == CHINESE[0]
    characters = found["characters"]
    assert words_of(characters, characters.train)[11:21] == [
        *"他爱北京，买了",
        "iPhone",
        "15",
        "。",
    ]
    assert characters.notes[-1].endswith("little: try more training text")


@pytest.mark.parametrize(
    ("line", "segmenter"),
    [
        ("我爱北京天安门。今天天气很好，我们去看电影吧。", "chinese"),
        ("我 爱 北京 天安门 。 今天 天气 很 好 ， 我们 去 看 电影 吧 。", "spaces"),
        ("我 爱 北 京 天 安 门", "spaces"),
        ("今日は天気がいいから映画を見に行きましょう。", "characters"),
        ("วันนี้อากาศดีมากเราไปดูหนังกันเถอะ", "characters"),
        ("오늘은 날씨가 좋으니 영화를 보러 가자.", "spaces"),
        ("The 天安门广场天安门广场 is a square in the centre of the city of Beijing", "spaces"),
        ("Où êtes-vous né ?", "spaces"),
    ],
)
def test_the_segmenter_suits_the_text(tmp_path, line, segmenter):
    (tmp_path / "text").write_text(f"{line}\n" * 3)
    assert choose_segmenter(tmp_path / "text")[0] == segmenter


def test_text_with_spaces_keeps_its_name(tmp_path):
    """It is in checkpoints, and is made of the texts: the built-in ones never change either."""
    built_in = load_corpus(None, tmp_path, 1000)
    assert built_in.content_hash.startswith("b70d7664573d1cf4f304f3b823b89b3a")


# the cache


def test_a_text_that_changes_while_it_is_encoded_is_refused(tmp_path, monkeypatch):
    """Also one whose time was set back."""
    folder, cache = write_texts(tmp_path / "text", "a b\n"), tmp_path / "cache"
    path, encode = folder / "train.txt", module._encode
    stat = path.stat()

    def encode_and_change(*arguments):
        encode(*arguments)
        time.sleep(0.02)  # a tick of the file system's clock
        path.write_text("a c\n")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    monkeypatch.setattr(module, "_encode", encode_and_change)
    assert message_of(folder, cache, None) == f"{path}: this file was changed while it was read"
    assert encoded_folders(cache) == []


def test_id_that_has_no_entry_is_found_on_reading(tmp_path):
    folder, cache = write_texts(tmp_path / "text"), tmp_path / "cache"
    corpus = load_corpus(folder, cache, None)
    size = len(corpus.vocabulary)
    path = cache / encoded_folders(cache)[0] / "train.tokens"
    with path.open("r+b") as file:
        file.seek(4 * 3)
        file.write(np.array([size], dtype="<i4").tobytes())
    corpus.train.read(0, 3)
    with pytest.raises(UsageError, match=f"token id {size} at position 3 is not in 0 .. "):
        corpus.train.read(0, 5)


# bad input


def message_of(*arguments):
    with pytest.raises(UsageError) as caught:
        load_corpus(*arguments)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_and_empty_folders_are_named(tmp_path):
    cache, missing = tmp_path / "cache", tmp_path / "missing"
    assert message_of(missing, cache, None) == f"{missing}: no such file or folder"
    missing.mkdir()
    assert message_of(missing, cache, None) == (
        f"{missing}: no train text, one of train.txt, ptb.train.txt, wiki.train.tokens is"
        " needed; --data takes a single file, too"
    )
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert message_of(pipe, cache, None) == (
        f"{pipe}: this is neither a text nor a folder with train.txt, valid.txt and test.txt"
    )


@pytest.mark.parametrize(("sentences", "held_out"), [(3, 1), (40, 2), (1000, 50)])
def test_a_single_text_is_split_by_blocks_of_its_sentences(tmp_path, sentences, held_out):
    path = tmp_path / "my.txt"
    path.write_text("".join(f"w{number} end\n\n" for number in range(sentences)))
    corpus = load_corpus(path, tmp_path / "cache", None)
    texts = {name: getattr(corpus, name) for name in ("train", "valid", "test")}
    assert [text.num_sentences for text in texts.values()] == [
        sentences - 2 * held_out,
        held_out,
        held_out,
    ]
    lines = [2 * text.num_sentences for text in texts.values()]
    assert corpus.notes[0] == (
        f"{path}: a single text, of whose lines {lines[0]:,} to train, {lines[1]} to valid, "
        f"{lines[2]} to test"
    )
    assert corpus.test.name == f"{path}, test split"
    again = load_corpus(path, tmp_path / "cache", None)
    assert (again.notes, again.content_hash) == (corpus.notes, corpus.content_hash)
    (folder,) = (tmp_path / "cache").glob("split-*")
    words = [
        [line.split()[0] for line in (folder / f"{name}.txt").open() if line.split()]
        for name in texts
    ]
    assert sorted(word for split in words for word in split) == sorted(
        f"w{number}" for number in range(sentences)
    )
    numbers = [int(word[1:]) for word in words[0]]
    assert numbers == sorted(numbers)


def test_a_single_text_of_two_sentences_is_refused(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("a b\n\nc\n")
    assert message_of(path, tmp_path / "cache", None) == (
        f"{path}: 2 lines with words, at least 3 are needed, one each to train, to validate"
        " and to test: break the text into lines"
    )


def test_missing_and_doubled_splits_are_named(tmp_path):
    folder = write_texts(tmp_path / "text")
    (folder / "ptb.valid.txt").write_text("a b\n")
    with pytest.raises(
        UsageError, match=r"valid\.txt and ptb\.valid\.txt are both there, only one"
    ):
        find_splits(folder)
    (folder / "ptb.valid.txt").unlink()
    (folder / "test.txt").unlink()
    with pytest.raises(UsageError, match="no test text, one of test"):
        find_splits(folder)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"train": "a b\n", "test": "\n \n\u3000\n"},
            "test.txt: 3 lines without a word, at least one word is needed",
        ),
        ({"train": "\n\n"}, "train.txt: besides <unk> and <eos> the vocabulary holds no word;"),
        (
            {"train": "a b\n", "valid": b"a b\nb \xe9\n"},
            "valid.txt:2: byte 0xe9 at offset 6 of the file (byte 3 of the line) is not UTF-8",
        ),
    ],
)
def test_unusable_texts_are_named_and_nothing_is_left(tmp_path, texts, message):
    folder, cache = write_texts(tmp_path / "text", **texts), tmp_path / "cache"
    seen = message_of(folder, cache, None)
    assert seen.startswith(f"{folder}/{message}")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("size", [-5, 0, 3])
def test_vocabulary_size_is_checked_before_reading(tmp_path, size):
    assert message_of(tmp_path / "missing", tmp_path / "cache", size) == (
        f"vocabulary size {size}: at least 4 is needed, 2 special tokens and 2 words"
    )


def test_endless_words_are_unknown(tmp_path):
    long = "x" * 1001
    corpus = load_corpus(
        write_texts(tmp_path, f"a b {long} {long[1:]}\n"), tmp_path / "cache", None
    )
    assert corpus.vocabulary.tokens[2:] == ("a", "b", long[1:])


def test_large_text_takes_little_memory(tmp_path):
    folder = write_texts(tmp_path / "text", "a b c d e f g h i j\n" * 1_500_000)  # 30 MB
    growth = peak_growth(
        "from data.text_batches import StreamBatches; from data.text_corpus import load_corpus",
        "text = load_corpus(*map(Path, sys.argv[1:]), None).train\n"
        "assert text.num_tokens == 16_500_000\n"  # 66 MB of ids
        "batches = StreamBatches(text, 2, 20_000)\n"
        "for step in range(batches.batches_per_epoch): batches.batch(step)",
        *(folder, tmp_path / "cache"),
    )
    assert growth < 60 * 1024
