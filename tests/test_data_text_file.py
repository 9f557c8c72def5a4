"""Text files are read line by line, and every fault is named by file, line and byte."""

import gzip

import pytest
from conftest import run_python

from data.text_file import MAX_LINE, read_lines
from data.vocabulary import Vocabulary
from parity.base.errors import UsageError


def lines_and_notes(path, content):
    path.write_bytes(content)
    notes = []
    return list(read_lines(path, notes)), notes


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one two\nthree\n", ["one two", "three"]),
        (b"one two\nthree", ["one two", "three"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\n\n \ntwo\n\n", ["one", "", " ", "two", ""]),
        ("猫\u3000\u2028犬\x85\x0c\n".encode(), ["猫\u3000\u2028犬\x85\x0c"]),
        (b"\n", [""]),
    ],
)
def test_lines_end_at_line_feeds_only(tmp_path, content, expected):
    lines, notes = lines_and_notes(tmp_path / "train.txt", content)
    assert lines == expected
    assert notes == []


def test_byte_order_mark_is_stripped_and_noted(tmp_path):
    path = tmp_path / "train.txt"
    lines, notes = lines_and_notes(path, b"\xef\xbb\xbfone\n")
    assert lines == ["one"]
    assert notes == [f"{path}: the UTF-8 byte-order mark was left out"]


GBK = "; a text in GBK is converted by iconv -f gb18030 -t utf-8"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": the file is empty, at least one line of words is needed"),
        ("one two".encode("utf-16"), ": this is UTF-16, not UTF-8 text: save it as UTF-8"),
        (
            "one two\n".encode("utf-16-le"),
            ": this looks like UTF-16, not UTF-8: save it as UTF-8",
        ),
        (gzip.compress(b"one", mtime=0), ": this is gzip, not UTF-8 text: unpack it first"),
        (b"PK\x03\x04...", ": this is a zip archive, not UTF-8 text: unpack it first"),
        (
            b"one\ntwo \0 three\n",
            ":2: this is a binary file, not UTF-8 text: a zero byte at offset 8 of the file",
        ),
        (
            b"one\ntwo\n\xe7\x8c\xab \xff\n",
            ":3: byte 0xff at offset 12 of the file (byte 5 of the line) is not UTF-8" + GBK,
        ),
        (
            b"\xef\xbb\xbfone\n\xff\n",
            ":2: byte 0xff at offset 7 of the file (byte 1 of the line) is not UTF-8" + GBK,
        ),
        (  # a character cut in two by the end of the file
            b"one\n\xe7\x8c",
            ":2: byte 0xe7 at offset 4 of the file (byte 1 of the line) is not UTF-8" + GBK,
        ),
    ],
)
def test_unusable_content_is_named(tmp_path, content, message):
    path = tmp_path / "train.txt"
    with pytest.raises(UsageError) as caught:
        lines_and_notes(path, content)
    assert str(caught.value) == f"{path}{message}"
    assert caught.value.exit_status == 2


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.txt: no such file$"):
        list(read_lines(tmp_path / "nowhere.txt", []))
    with pytest.raises(UsageError, match=r"this is a folder, a text file is needed$"):
        list(read_lines(tmp_path, []))


@pytest.mark.parametrize("word", ["ab ", "猫 ", "猫", "xyz"])
@pytest.mark.parametrize("length", [MAX_LINE // 2, MAX_LINE + 10, 3 * MAX_LINE + 17])
def test_long_line_is_cut_without_losing_a_character(tmp_path, word, length):
    path = tmp_path / "train.txt"
    long = (word * (length // len(word.encode()) + 1)).rstrip()
    lines, notes = lines_and_notes(path, f"first\n{long}\nlast\n".encode())
    assert lines[0] == "first"
    assert lines[-1] == "last"
    assert "".join(lines[1:-1]) == long
    assert max(len(line.encode()) for line in lines) <= MAX_LINE
    if length < MAX_LINE:
        assert notes == []
    else:
        assert len(lines) > 3
        assert notes == [
            f"{path}:2: this line is longer than 1,048,576 bytes and was cut into several"
        ]
        if word.endswith(" "):
            assert {part for line in lines[1:-1] for part in line.split()} == {word.strip()}


def test_line_numbers_count_a_cut_line_once(tmp_path):
    path = tmp_path / "train.txt"
    with pytest.raises(UsageError, match=r"train\.txt:3: byte 0xff"):
        lines_and_notes(path, b"one\n" + b"word " * MAX_LINE + b"\n\xff\n")


def peak_growth(imports, code, *words):
    """Return by how many KiB the peak memory of a process grows while it runs some code."""
    code = (
        f"import resource, sys; from pathlib import Path\n{imports}\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"before = peak()\n{code}\nprint(peak() - before)"
    )
    return int(run_python("-c", code, *words, check=True).stdout)


@pytest.mark.parametrize("ending", ["", "\n"])
def test_huge_line_takes_little_memory(tmp_path, ending):
    path = tmp_path / "train.txt"
    with path.open("w") as file:
        for _ in range(200):
            file.write("word " * (MAX_LINE // 5) + ending)
    read = "for block in read_blocks(Path(sys.argv[1]), []): pass"
    growth = peak_growth("from data.text_file import read_blocks", read, path)
    assert growth < 32 * 1024  # of 200 MiB


# a file that is no vocabulary is refused by its line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<unk>\n<eos>\none\ntwo\none\n", ":5: token 'one' is already on line 3"),
        ("<unk>\n<eos>\none\n\ntwo\n", ":4: a blank line, a token is needed on every line"),
        ("<unk>\n<eos>\none two\n", ":3: token 'one two' holds white space"),
        ("<unk>\none\ntwo\n", ": token <eos> is missing, it must be on line 2"),
        ("<eos>\n<unk>\none\ntwo\n", ":2: token <unk> must be on line 1"),
        (
            "<unk>\n<eos>\n",
            ": besides <unk> and <eos> the vocabulary holds no word; at least 2 words are"
            " needed",
        ),
    ],
)
def test_unusable_vocabulary_file_is_named(tmp_path, content, message):
    path = tmp_path / "vocabulary.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        Vocabulary.load(path)
    assert str(caught.value) == f"{path}{message}"
