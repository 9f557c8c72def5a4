"""A folder of text, encoded once into a cache and read from there one piece at a time.

Words stand between spaces, or are found by a segmenter; see data/segmented_text.py. Every line
of a file, blank ones included, ends in `<eos>`: the published token counts of WikiText and the
Penn Treebank include these. The vocabulary is that of the training text.

The cache holds a folder per content and settings, `corpus-<hash>`, with `vocabulary.txt`, and
per split `<split>.tokens` (ids, int32, little-endian) and `<split>.lines` (the id count before
each line and after the last, int64, little-endian).
"""

from __future__ import annotations

import os
from collections import Counter
from copy import copy
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import built_in_text as synthetic_text
from data.cache import (
    cached_folder,
    file_hash,
    file_stats,
    make_whole,
    settings_hash,
    sync,
    write_facts,
)
from data.segmented_text import AUTO, choose_segmenter, find_words
from data.text_file import read_blocks
from data.text_splits import SPLITS, split_text
from data.vocabulary import (
    Vocabulary,
    build_vocabulary,
    check_size,
    check_tokens,
    unknown_notes,
)
from parity.base.errors import UsageError
from parity.base.files import make_folder
from parity.base.progress import ByteProgressBar
from parity.base.special_tokens import TEXT_EOS_ID, TEXT_SPECIAL, TEXT_UNKNOWN_ID

NAMES = ("{}.txt", "ptb.{}.txt", "wiki.{}.tokens")  # that a split's file may have

_FACTS = "corpus.json"
_FORMAT = 1  # a change to what is encoded, or how, must raise this
_LONGEST_WORD = 1000  # characters; a longer one is always `<unk>`
_LINE_END = "\0"  # stands for a line end among words; text never contains it


class EncodedText:
    """One split's token ids on disk, read a piece at a time; safe to read from several threads.

    Attributes:
      name: the text file it came from.
      num_tokens: the number of ids, one `<eos>` per line included.
      num_lines: the number of lines, blank ones included.
      num_sentences: the number of lines with a word.
      vocabulary_size: the number of entries in the vocabulary.
      unknown_share: the share of words (without line ends) that are `<unk>`.
    """

    def __init__(
        self, folder: Path, split: str, name: str, facts: dict[str, Any], vocabulary_size: int
    ) -> None:
        self.name = name
        self.num_tokens: int = facts["num_tokens"]
        self.num_lines: int = facts["num_lines"]
        self.num_sentences: int = facts["num_sentences"]
        self.unknown_share: float = facts["unknown_share"]
        self.vocabulary_size = vocabulary_size
        self._tokens_path = folder / f"{split}.tokens"
        self._lines_path = folder / f"{split}.lines"
        # an open file rather than a map: pages of a map would count as this process's memory
        self._file = self._tokens_path.open("rb", buffering=0)

    def read(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return ids start .. stop - 1, int32 [stop - start].

        Raises:
          IndexError: if the range is not within 0 .. num_tokens.
          UsageError: if the file on disk was damaged.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"{self.name}: {start}:{stop} is not within 0:{self.num_tokens}")
        count, offset = 4 * (stop - start), 4 * start
        content = os.pread(self._file.fileno(), count, offset)
        if len(content) < count:
            raise UsageError(f"{self._tokens_path}: this file was cut short; remove its folder")
        ids = np.frombuffer(content, dtype="<i4").astype(np.int32, copy=False)
        check_tokens(ids, self.vocabulary_size, source=str(self._tokens_path))
        return ids

    def first_lines(self, count: int) -> EncodedText:
        """Return the text of the first `count` lines, or of all if it has no more or for 0.

        Its `unknown_share` is still that of the whole text.
        """
        if count == 0 or count >= self.num_lines:
            return self
        offsets = np.array(self.line_offsets[: count + 1])
        shorter = copy(self)
        shorter.num_tokens, shorter.num_lines = int(offsets[-1]), count
        shorter.num_sentences = int(np.count_nonzero(np.diff(offsets) > 1))
        return shorter

    @property
    def line_offsets(self) -> NDArray[np.int64]:
        """Where each line starts and the last one ends: int64 [num_lines + 1], a memory map.

        A line is its words and `<eos>`; one of length 1 is blank. Pages that were read count as
        this process's memory until the array is dropped.
        """
        return np.memmap(self._lines_path, dtype="<i8", mode="r", shape=(self.num_lines + 1,))


@dataclass(frozen=True)
class Corpus:
    """A vocabulary and three encoded texts.

    Attributes:
      notes: one-line remarks for the user, the same whether read from the cache or not.
      content_hash: sha256 of the texts and the settings, in hexadecimal.
      embedded: whether it is the corpus of data/built_in_text.py, cut at spaces.
    """

    vocabulary: Vocabulary
    train: EncodedText
    valid: EncodedText
    test: EncodedText
    notes: tuple[str, ...]
    content_hash: str
    embedded: bool

    def best_perplexity(self, split: str) -> float | None:
        """Return the lowest perplexity possible on a split, where it is known.

        It is known for the whole embedded corpus with its whole vocabulary: with a smaller one,
        words that become `<unk>` are easier to predict.
        """
        text = getattr(self, split)
        whole = text.unknown_share == 0 and self.train.unknown_share == 0
        whole = whole and text.num_lines == synthetic_text.NUM_SENTENCES[split]
        return synthetic_text.best_perplexity(split) if self.embedded and whole else None


def load_corpus(
    folder: Path | None, cache: Path, vocabulary_size: int | None, segmenter: str = AUTO
) -> Corpus:
    """Encode a folder of text, or find that done in the cache.

    Args:
      folder: holds train, valid and test, each named as one of `NAMES`; or a single text, of
        which `split_text` makes the three; None for the embedded corpus, which is then written
        into the cache.
      cache: a folder of its own, created if missing. Several processes may use it at once.
      vocabulary_size: the most entries, `<unk>` and `<eos>` included; None for every word.
      segmenter: what cuts lines into words, one of `data.segmenters.SEGMENTERS`; AUTO for the
        one that suits the training text.

    Raises:
      UsageError: naming the file and line, if the texts cannot be used.
    """
    check_size(vocabulary_size)
    embedded = folder is None
    make_folder(cache, read_only=True)
    if folder is None:
        folder = _embedded_folder(cache)
    single = folder if folder.is_file() else None
    paths = find_splits(folder) if single is None else split_text(single, cache)
    names = {
        split: str(path) if single is None else f"{single}, {split} split"
        for split, path in paths.items()
    }
    why = ""
    if segmenter == AUTO:
        segmenter, why = choose_segmenter(paths["train"])
    paths, of_words = find_words(paths, cache, segmenter)
    notes = [f"{folder}: {why}"] if why else []
    notes += [f"{names[split]}{note}" for split, note in of_words]
    stats = file_stats(paths.values())
    settings: dict[str, Any] = {
        "format": _FORMAT,
        "vocabulary_size": vocabulary_size,
        "special": TEXT_SPECIAL,
        "texts": {split: file_hash(path) for split, path in paths.items()},
    }
    # text that is cut at spaces keeps the name it had before there were segmenters
    if segmenter != "spaces":
        settings["segmenter"] = segmenter
    content_hash = settings_hash(settings)
    target = cache / f"corpus-{content_hash[:32]}"

    facts = cached_folder(
        target,
        _FACTS,
        lambda temporary: _encode(paths, names, temporary, vocabulary_size, segmenter),
        stats,
    )
    vocabulary = Vocabulary.load(target / "vocabulary.txt")
    texts: dict[str, EncodedText] = {}
    for split, name in names.items():
        texts[split] = EncodedText(target, split, name, facts[split], len(vocabulary))
        # they lack the path, because the cache may have seen this text under another name
        notes += [f"{name}{note}" for note in facts[split]["notes"]]
    if single is not None:
        lines = ", ".join(f"{text.num_lines:,} to {split}" for split, text in texts.items())
        notes.insert(0, f"{single}: a single text, of whose lines {lines}")
    return Corpus(
        vocabulary,
        texts["train"],
        texts["valid"],
        texts["test"],
        tuple(notes),
        content_hash,
        embedded and segmenter == "spaces",
    )


def find_splits(folder: Path) -> dict[str, Path]:
    """Return the file of each split of a folder.

    Raises:
      UsageError: if there is none, or more than one, for a split.
    """
    if not folder.exists():
        raise UsageError(f"{folder}: no such file or folder")
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: this is neither a text nor a folder with train.txt, valid.txt and"
            " test.txt"
        )
    paths = {}
    for split in SPLITS:
        names = [name.format(split) for name in NAMES]
        found = [name for name in names if (folder / name).exists()]
        if not found:
            raise UsageError(
                f"{folder}: no {split} text, one of {', '.join(names)} is needed; --data takes"
                " a single file, too"
            )
        if len(found) > 1:
            raise UsageError(f"{folder}: {' and '.join(found)} are both there, only one may be")
        paths[split] = folder / found[0]
    return paths


def _encode(
    paths: dict[str, Path],
    names: dict[str, str],
    folder: Path,
    vocabulary_size: int | None,
    segmenter: str,
) -> None:
    sizes = {split: path.stat().st_size for split, path in paths.items()}
    with ByteProgressBar("encoding", sum(sizes.values()) + sizes["train"]) as progress:
        counts = _count_words(paths["train"], progress)
        vocabulary = build_vocabulary(counts, vocabulary_size, source=names["train"])
        del counts
        vocabulary.save(folder / "vocabulary.txt")
        facts = {}
        for split, path in paths.items():
            facts[split] = _encode_text(path, names[split], folder, split, vocabulary, progress)
            facts[split]["notes"] += unknown_notes(
                "words",
                facts[split]["unknown_share"],
                len(vocabulary),
                vocabulary_size,
                segmenter,
            )
    write_facts(folder / _FACTS, facts)


def _count_words(path: Path, progress: ByteProgressBar) -> Counter[str]:
    counts: Counter[str] = Counter()
    for block in read_blocks(path, [], progress.add):  # its notes are given when it is encoded
        words = block.split()
        if max(map(len, words), default=0) > _LONGEST_WORD:
            words = [word for word in words if len(word) <= _LONGEST_WORD]
        counts.update(words)
    return counts


def _encode_text(
    path: Path,
    name: str,
    folder: Path,
    split: str,
    vocabulary: Vocabulary,
    progress: ByteProgressBar,
) -> dict[str, Any]:
    """Write a split's ids and line offsets, and return the facts about it."""
    ids_of = {token: place for place, token in enumerate(vocabulary.tokens)}
    ids_of[_LINE_END] = -1  # not yet TEXT_EOS_ID: a text may hold the word `<eos>` itself
    notes: list[str] = []
    num_tokens = num_lines = num_sentences = num_unknown = 0
    with (
        (folder / f"{split}.tokens").open("wb") as tokens_file,
        (folder / f"{split}.lines").open("wb") as lines_file,
    ):
        lines_file.write(np.zeros(1, dtype="<i8").tobytes())
        for block in read_blocks(path, notes, progress.add):
            words = block.replace("\n", f" {_LINE_END} ").split()
            ids = np.fromiter(
                map(ids_of.get, words, repeat(TEXT_UNKNOWN_ID)), dtype="<i4", count=len(words)
            )
            ends = np.flatnonzero(ids == -1) + 1  # where the next line starts
            ids[ends - 1] = TEXT_EOS_ID
            tokens_file.write(ids.tobytes())
            lines_file.write((ends + num_tokens).astype("<i8").tobytes())
            num_tokens += len(ids)
            num_lines += len(ends)
            num_sentences += int(np.count_nonzero(np.diff(ends, prepend=0) > 1))
            num_unknown += int(np.count_nonzero(ids == TEXT_UNKNOWN_ID))
        sync(tokens_file, lines_file)
    if num_sentences == 0:
        raise UsageError(
            f"{name}: {num_lines} lines without a word, at least one word is needed"
        )
    return {
        "num_tokens": num_tokens,
        "num_lines": num_lines,
        "num_sentences": num_sentences,
        "unknown_share": num_unknown / (num_tokens - num_lines),
        "notes": [note.removeprefix(str(path)) for note in notes],
    }


def _embedded_folder(cache: Path) -> Path:
    folder = cache / f"embedded-{synthetic_text.VERSION}"
    make_whole(folder, synthetic_text.write_corpus)
    return folder
