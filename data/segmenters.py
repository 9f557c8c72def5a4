"""Sentences segmented into tokens, and tokens joined to readable text again.

`chinese` is jieba's exact mode, once `in_chinese_width` has made a character of two widths one;
`characters` makes each character a token, but a run of Latin letters and digits a single one;
`english` follows the rules given at `english_tokens`; `spaces` is for text that is tokenized
already. For all of them white space, U+3000 included, only separates.
"""

from __future__ import annotations

import functools
import hashlib
import json
import marshal
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data.cache import make_whole
from data.text_file import read_lines
from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole

SEGMENTERS = ("chinese", "characters", "english", "spaces")

_WIDTH_RULES = 1  # to be raised with a change to which characters' width is changed, and how

Segmenter = Callable[[str], list[str]]

_LOCK = threading.Lock()  # held while a tokenizer is made


@dataclass(frozen=True)
class Segmentation:
    """How both sides of pairs are segmented; all that a checkpoint must keep of it.

    Attributes:
      source_segmenter: segments questions, one of `SEGMENTERS`.
      target_segmenter: segments answers.
      hmm: whether `chinese` guesses words that are in no dictionary.
      user_dictionary: additional words for `chinese`, as `read_user_dictionary` returns them.
      cache: a folder for jieba's dictionary; if None, each process parses it again.

    Raises:
      UsageError: if there is no such segmenter.
    """

    source_segmenter: str = "chinese"
    target_segmenter: str = "chinese"
    hmm: bool = True
    user_dictionary: str = ""
    cache: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("source_segmenter", "target_segmenter"):
            if getattr(self, name) not in SEGMENTERS:
                raise UsageError(
                    f"{name} {getattr(self, name)!r}: one of {', '.join(SEGMENTERS)} is needed"
                )

    def segment_source(self, text: str) -> list[str]:
        """Return the tokens of a question."""
        return self.segmenter(self.source_segmenter)(text)

    def join_target(self, tokens: Sequence[str]) -> str:
        """Return the text of an answer's tokens.

        `chinese`, `characters`: without spaces, but for one between tokens of Latin letters or
        digits. `english`: see `english_text`. `spaces`: with a space between tokens.
        """
        if self.target_segmenter == "english":
            return english_text(tokens)
        if self.target_segmenter == "spaces":
            return " ".join(tokens)
        text = ""
        for token in tokens:
            if text and _is_latin(text[-1]) and _is_latin(token[:1]):
                text += " "
            text += token
        return text

    def segmenter(self, name: str) -> Segmenter:
        """Return the segmenter of a name in `SEGMENTERS`, with these settings."""
        if name == "chinese":
            return functools.partial(_chinese, self.user_dictionary, self.cache, self.hmm)
        if name == "characters":
            return _characters
        return english_tokens if name == "english" else str.split

    @property
    def content_hash(self) -> str:
        """The sha256 of the settings and of jieba's version and dictionary, in hexadecimal."""
        facts = asdict(self) | {"width": _WIDTH_RULES}
        del facts["cache"]
        if "chinese" in (self.source_segmenter, self.target_segmenter):
            facts["jieba"] = _jieba_hash()
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# English -------------------------------------------------------------------------------------

# "Ａ" and "？" -> "A" and "?": the whole block of full-width forms
_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_ABBREVIATIONS = "mr|mrs|ms|dr|st|vs|etc"
_ENGLISH = re.compile(
    rf"""
    (?:{_ABBREVIATIONS})\.(?!\w)        # mr.
    | (?:[^\W\d_]\.){{2,}}              # a.m., u.s.
    | \d+(?:[.,:]\d+)+                  # 3.14, 1,000, 10:30
    | \w+(?:['-]\w+)*                   # don't, well-known, o'clock
    | \.{{2,}} | -{{2,}}                # ..., --
    | \S
    """,
    re.VERBOSE,
)
_ENDING = re.compile(r"(?!n't$)(\w.*?)(n't|'(?:s|m|d|re|ve|ll))")
_NO_SPACE_BEFORE = set(".,!?;:%)]}…，。！？；：）'") | {"...", "..", "n't"}
_NO_SPACE_AFTER = set("([{$£€¥（#")
_SENTENCE_ENDS = {".", "!", "?", "..."}


def english_tokens(text: str) -> list[str]:
    """Segment English text into tokens.

    The text is put in lower case, ’ becomes ' and what is full-width half-width. A token is a
    run of letters and digits, inner hyphens and apostrophes included (well-known, o'clock); a
    number with its inner points, commas and colons (3.14, 1,000, 10:30); an abbreviation of
    single letters (u.s.) or one of mr. mrs. ms. dr. st. vs. etc.; dots or hyphens in a row;
    any other sign.
    n't and 's 'm 'd 're 've 'll at a word's end are tokens of their own: do n't, i 'm, ca n't,
    tom 's, so that don't and do share an entry.
    """
    tokens: list[str] = []
    for token in _ENGLISH.findall(text.translate(_HALF_WIDTH).lower().replace("’", "'")):
        parts = _ENDING.fullmatch(token) if "'" in token else None
        tokens += parts.groups() if parts else [token]
    return tokens


def english_text(tokens: Sequence[str]) -> str:
    """Return the text of English tokens.

    There is no space before closing signs and endings such as n't and 's, none after opening
    ones; quotation marks open and close alternately. Sentences and the word I get
    a capital; the capitals of names are lost.
    """
    text, attach, quoted, starts = "", True, False, True
    for token in tokens:
        before, after = not attach, True
        if token in _NO_SPACE_BEFORE or (token.startswith("'") and len(token) > 1):
            before = False
        elif token in _NO_SPACE_AFTER:
            after = False
        elif token == '"':
            before, after = before and not quoted, quoted
            quoted = not quoted
        word = token
        if token[0].isalnum():
            if starts or token == "i":
                word = token[0].upper() + token[1:]
            starts = False
        elif token in _SENTENCE_ENDS:
            starts = True
        text += (" " if before else "") + word
        attach = not after
    return text


# Chinese -------------------------------------------------------------------------------------

# Letters and digits are half-width in Chinese text, signs full-width, as typesetters have it. A
# keyboard may give either, and each would be a word of its own.
_LETTERS_AND_DIGITS = {code: half for code, half in _HALF_WIDTH.items() if chr(half).isalnum()}
_SIGNS = {sign: chr(ord(sign) + 0xFEE0) for sign in "?!,:;()"} | {".": "。"}
# Not inside 3.14, 10:30 or a,b; a point only where it ends a Chinese sentence.
_HALF_WIDTH_SIGN = re.compile(
    r"(?<![0-9A-Za-z])[?!,:;()]|[?!,:;()](?![0-9A-Za-z])|(?<=[\u4E00-\u9FD5])\.(?![0-9A-Za-z.])"
)

_CHARACTER = re.compile(r"[0-9A-Za-z\u00C0-\u024F]+|\S")

# The characters that jieba's patterns allow in a word; any other one is a token of its own.
_WORD = re.compile(r"[\u4E00-\u9FD5a-zA-Z0-9+#&._%\-]+")


def read_user_dictionary(path: Path, notes: list[str]) -> str:
    """Read a user dictionary of jieba, whose lines are a word, its frequency and its tag.

    Frequency and tag may be missing: jieba then uses the lowest frequency at which the word is
    found. Blank lines are left out.

    Args:
      path: the file.
      notes: one-line remarks for the user are appended here.

    Returns:
      The lines, with single spaces, joined by line breaks.

    Raises:
      UsageError: naming the line, if it cannot be used or repeats a word.
    """
    lines = [" ".join(line.split()) for line in read_lines(path, notes)]
    _check_user_dictionary(lines, str(path))
    if not any(lines):
        raise UsageError(f"{path}: there is no word in this user dictionary")
    return "\n".join(line for line in lines if line)


def _check_user_dictionary(lines: Sequence[str], source: str) -> None:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        where = f"{source}:{number}"
        word = fields[0]
        tags = fields[2:] if len(fields) > 1 and _is_number(fields[1]) else fields[1:]
        if len(tags) > 1 or not all(re.fullmatch("[a-zA-Z]+", tag) for tag in tags):
            raise UsageError(
                f"{where}: {line[:80]!r}: a word, a frequency (a whole number) and a tag (Latin"
                " letters) are needed, with spaces between; the last two may be missing"
            )
        has_frequency = len(tags) < len(fields) - 1
        # neither Python nor jieba converts a number of more than 4,300 digits
        if has_frequency and not (len(fields[1]) <= 10 and 1 <= int(fields[1]) <= 10**9):
            raise UsageError(f"{where}: frequency {fields[1][:80]}: 1 to 1000000000 is needed")
        if not _WORD.fullmatch(word):
            raise UsageError(
                f"{where}: word {word[:80]!r} is never found: only Chinese characters, Latin"
                " letters, digits and +#&._%- can make a word"
            )
        if word in seen:
            raise UsageError(f"{where}: word {word!r} is already on line {seen[word]}")
        seen[word] = number


def _chinese(user_dictionary: str, cache: Path | None, hmm: bool, text: str) -> list[str]:
    tokenizer = _tokenizer(user_dictionary, cache)
    text = in_chinese_width(text)
    # in pieces, because jieba's notion of white space differs from that of `str.split`
    return [token for piece in text.split() for token in tokenizer.lcut(piece, HMM=hmm)]


def _characters(text: str) -> list[str]:
    return _CHARACTER.findall(in_chinese_width(text))


def in_chinese_width(text: str) -> str:
    """Return Chinese text with half-width letters and digits and full-width signs."""
    text = text.translate(_LETTERS_AND_DIGITS)
    return _HALF_WIDTH_SIGN.sub(lambda found: _SIGNS[found.group()], text)


def _tokenizer(user_dictionary: str, cache: Path | None) -> Any:
    with _LOCK:  # otherwise two threads would each take the seconds and the memory
        return _make_tokenizer(user_dictionary, cache)


@functools.lru_cache(maxsize=2)  # each takes about 100 MB
def _make_tokenizer(user_dictionary: str, cache: Path | None) -> Any:
    tokenizer = _jieba().Tokenizer()
    # jieba's own cache is in a folder that all users share, and it trusts what is there
    tokenizer.FREQ, tokenizer.total = _frequencies(tokenizer, cache)
    tokenizer.initialized = True
    for line in user_dictionary.split("\n") if user_dictionary else ():
        fields = line.split()
        number = fields[1] if len(fields) > 1 and _is_number(fields[1]) else None
        tokenizer.add_word(fields[0], number)
    return tokenizer


def _frequencies(tokenizer: Any, cache: Path | None) -> tuple[dict[str, int], int]:
    """Return jieba's word frequencies and their sum, from the cache if that is undamaged."""
    if cache is None:
        frequencies, total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
        return frequencies, total

    def make(temporary: Path) -> None:
        frequencies = tokenizer.gen_pfdict(tokenizer.get_dict_file())
        write_whole(temporary / "frequencies", marshal.dumps(frequencies))

    make_folder(cache, read_only=True)
    folder = cache / f"jieba-{_jieba_hash()[:16]}-{marshal.version}"
    make_whole(folder, make)
    frequencies, total = marshal.loads((folder / "frequencies").read_bytes())
    return frequencies, total


@functools.cache
def _jieba_hash() -> str:
    """Return a hash of jieba's version and its dictionary."""
    jieba = _jieba()
    digest = hashlib.sha256(jieba.__version__.encode())
    with jieba.Tokenizer().get_dict_file() as file:
        digest.update(file.read())
    return digest.hexdigest()


@functools.cache
def _jieba() -> Any:
    """Import jieba, which takes a while and is needed only for Chinese."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its regular expressions and pkg_resources
        import jieba
    return jieba


def _is_latin(letter: str) -> bool:
    return letter.isalnum() and letter < "\u0250"


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()
