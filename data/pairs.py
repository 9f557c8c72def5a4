"""Questions and answers in TSV, cut into tokens and encoded once into a cache.

A line is a question, a tab and an answer; a third column, as the attribution in Tatoeba's
cmn.txt, is kept out. The cache keeps `segmented-<hash>`, the tokens of a file, so that another
vocabulary or limit needs no segmenting, and `pairs-<hash>`, the encoded splits. As in
data/corpus.py names are made from contents and settings, folders are there whole or not at all,
and what was damaged is made again.

A file is split in one of two ways; both depend on nothing but its text and the settings.

`source`: the distinct questions, as tokens, are ranked by a hash. The first 5 % are for the
test, the next 5 % for validation, each at least one; all others are for training. So no
question lies in two splits.

`block`: for dialogues, in which each answer is the next question. A line whose question is not
the answer of the line before starts a conversation. Conversations in a row make blocks of a
hundredth of all pairs, at most 100, or a little more, for a block ends where a conversation
does; with fewer than three such blocks each conversation is one. Blocks are taken in the
order of a hash, 5 % for the test and 5 % for validation, those left out that would make it more
than 7.5 %; if there is no other, the smallest. Then pairs for validation that are for training
too, and pairs for the test that are for either, are dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from data import synthetic_pairs
from data.cache import file_hash, file_stat
from data.segment import Segmentation, read_user_dictionary
from data.text import CUT, read_blocks
from data.vocabulary import (
    Vocabulary,
    build_vocabulary,
    check_cap,
    check_tokens,
)
from data.workers import Texts, Workers
from parity.base.cores import usable_cores
from parity.base.errors import UsageError
from parity.base.files import make_folder, new_folder, write_whole
from parity.base.progress import ByteCounter
from parity.base.special_tokens import PAIR_SPECIAL, PAIR_UNKNOWN_ID, UNKNOWN

SPLITS = ("train", "valid", "test")
SPLIT_BY = ("source", "block")
ON_EMPTY = ("skip", "warn", "error")
HELD_OUT = 0.05  # share of test, and of validation

_FORMAT = 1  # a change to what is written to the cache, or how, must raise this
_MOSTLY_UNKNOWN = 0.2  # share of words from which a warning is given
_MOST_WORDS = 2_000_000  # distinct ones of a side, about 0.3 GB
_LARGEST_BLOCK = 100  # pairs after which a conversation's end is one of the block
_PAIRS_AT_ONCE = 1000
_BYTES_PER_PROCESS = 1 << 18  # of text; for less a process takes longer to start than it saves
_FACTS = "facts.json"
_ALL = "all"  # stands for the one file that is to be split


class EncodedPairs:
    """One split's pairs on disk, read one at a time; safe to read from several threads.

    Attributes:
      name: the file it came from, and the split.
      num_pairs: rows.
      source_lengths: ids of each question, uint32 [num_pairs].
      target_lengths: ids of each answer, without markers, uint32 [num_pairs].
      source_unknown_share: the share of words of questions that are `<unk>`.
      target_unknown_share: the same of answers.
    """

    def __init__(
        self, folder: Path, split: str, name: str, facts: dict[str, Any], sizes: dict[str, int]
    ) -> None:
        self.name = name
        self.num_pairs: int = facts["num_pairs"]
        self.source_unknown_share: float = facts["source_unknown_share"]
        self.target_unknown_share: float = facts["target_unknown_share"]
        self._sizes = sizes
        self._paths = {
            kind: folder / f"{split}.{kind}" for kind in ("source", "target", "text")
        }
        # open files rather than maps: pages of a map would count as this process's memory
        self._files = {kind: path.open("rb", buffering=0) for kind, path in self._paths.items()}
        bounds = np.fromfile(folder / f"{split}.bounds", dtype="<i8")
        bounds = bounds.reshape(self.num_pairs + 1, 3).astype(np.int64, copy=False)
        self._bounds = dict(zip(self._paths, np.ascontiguousarray(bounds.T), strict=True))
        self.source_lengths = np.diff(self._bounds["source"]).astype(np.uint32)
        self.target_lengths = np.diff(self._bounds["target"]).astype(np.uint32)

    def source(self, row: int) -> NDArray[np.int32]:
        """Return a question's ids, int32 [source_lengths[row]].

        Raises:
          IndexError: if the row is not in 0 .. num_pairs - 1.
          UsageError: if the file on disk was damaged.
        """
        return self._ids("source", row)

    def target(self, row: int) -> NDArray[np.int32]:
        """Return an answer's ids without markers, int32 [target_lengths[row]].

        Raises:
          IndexError, UsageError: as `source`.
        """
        return self._ids("target", row)

    def texts(self, row: int) -> tuple[str, str]:
        """Return a question and its answer as they stand in the file.

        Raises:
          IndexError, UsageError: as `source`.
        """
        question, _, answer = self._read("text", row, 1).decode().rstrip("\n").partition("\t")
        return question, answer

    def _ids(self, kind: str, row: int) -> NDArray[np.int32]:
        content = self._read(kind, row, 4)
        ids = np.frombuffer(content, dtype="<i4").astype(np.int32, copy=False)
        check_tokens(ids, self._sizes[kind], source=str(self._paths[kind]))
        return ids

    def _read(self, kind: str, row: int, size: int) -> bytes:
        if not 0 <= row < self.num_pairs:
            raise IndexError(f"{self.name}: pair {row} is not within 0 .. {self.num_pairs - 1}")
        start, stop = self._bounds[kind][row : row + 2].tolist()
        content = os.pread(self._files[kind].fileno(), size * (stop - start), size * start)
        if len(content) < size * (stop - start):
            raise UsageError(f"{self._paths[kind]}: this file was cut short; remove its folder")
        return content


@dataclass(frozen=True)
class PairCorpus:
    """Two vocabularies and three encoded splits.

    Attributes:
      source_vocabulary: of questions, from the training split.
      target_vocabulary: of answers; the same one if it is shared.
      segmentation: how text becomes tokens, and tokens text.
      notes: one-line remarks for the user, the same whether read from the cache or not.
      content_hash: sha256 of the texts and the settings, in hexadecimal.
      embedded: whether it is the corpus of data/synthetic_pairs.py.
    """

    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    segmentation: Segmentation
    train: EncodedPairs
    valid: EncodedPairs
    test: EncodedPairs
    notes: tuple[str, ...]
    content_hash: str
    embedded: bool

    def encode_source(self, text: str) -> NDArray[np.int32]:
        """Return the ids of a question; see the function of this name."""
        return encode_source(text, self.segmentation, self.source_vocabulary)


def encode_source(
    text: str, segmentation: Segmentation, vocabulary: Vocabulary
) -> NDArray[np.int32]:
    """Return the ids of a question that someone typed, int32 [source_time].

    Raises:
      UsageError: if it holds no word, or only words that are not in the vocabulary.
    """
    words = segmentation.segment_source(text)
    if not words:
        raise UsageError(f"question {text[:80]!r}: there is no word in it")
    ids = vocabulary.encode_words(words)
    if bool((ids == vocabulary.unknown_id).all()):
        raise UsageError(
            f"question {text[:80]!r}: none of its words is in the vocabulary:"
            f" {' '.join(words)[:80]}"
        )
    return ids


def load_pairs(
    path: Path | None,
    cache: Path,
    *,
    source_segmenter: str = "chinese",
    target_segmenter: str = "chinese",
    hmm: bool = True,
    user_dictionary: Path | None = None,
    source_vocabulary_size: int | None = None,
    target_vocabulary_size: int | None = None,
    share_vocabulary: bool = False,
    most_source: int | None = 50,
    most_target: int | None = 50,
    split_by: str = "source",
    on_empty: str = "warn",
    processes: int | None = None,
) -> PairCorpus:
    """Cut pairs into tokens and encode them, or find that done.

    Args:
      path: a file of pairs, or a folder that holds train.tsv, valid.tsv and test.tsv; None for
        the embedded corpus, which is then written into the cache.
      cache: a folder of its own, created if missing. Several processes may use it at once.
      source_segmenter: of questions, one of `data.segment.SEGMENTERS`.
      target_segmenter: of answers.
      hmm: whether `chinese` guesses words that are in no dictionary.
      user_dictionary: a file of words that `chinese` should know too.
      source_vocabulary_size: the largest, special tokens included; None for every word.
      target_vocabulary_size: the same of answers.
      share_vocabulary: one vocabulary for both sides; then both sizes must be the same.
      most_source: the most tokens of a question; pairs with more are dropped. None: no limit.
      most_target: the same of answers, without markers.
      split_by: how a file is split, "source" or "block"; see the head of this module.
      on_empty: "skip" drops pairs of which one side is empty, "warn" notes them, too, "error"
        refuses them.
      processes: that do the segmenting; None for as many as there are cores, fewer for little
        text.

    Raises:
      UsageError: naming file and line, if the pairs cannot be used.
    """
    _check_choice("split_by", split_by, SPLIT_BY)
    _check_choice("on_empty", on_empty, ON_EMPTY)
    check_cap(source_vocabulary_size, PAIR_SPECIAL)
    check_cap(target_vocabulary_size, PAIR_SPECIAL)
    if share_vocabulary and source_vocabulary_size != target_vocabulary_size:
        raise UsageError(
            f"vocabulary sizes {source_vocabulary_size} and {target_vocabulary_size}: with a"
            " shared vocabulary both must be the same"
        )
    for name, limit in (("most_source", most_source), ("most_target", most_target)):
        if limit is not None and limit < 1:
            raise UsageError(f"{name} {limit}: 1 or more is needed")
    notes: list[str] = []
    words = "" if user_dictionary is None else read_user_dictionary(user_dictionary, notes)
    segmentation = Segmentation(source_segmenter, target_segmenter, hmm, words, cache)
    make_folder(cache, read_only=True)
    embedded = path is None
    if path is None:
        path = _embedded_file(cache)
    paths = _find_files(path)
    segmented = {
        name: _segmented(file, cache, segmentation, processes) for name, file in paths.items()
    }
    for name, each in segmented.items():
        notes += each.notes(paths[name], on_empty)
    settings = {
        "format": _FORMAT,
        "segmented": {name: each.content_hash for name, each in segmented.items()},
        "source_vocabulary_size": source_vocabulary_size,
        "target_vocabulary_size": target_vocabulary_size,
        "share_vocabulary": share_vocabulary,
        "most_source": most_source,
        "most_target": most_target,
        "split_by": split_by if list(paths) == [_ALL] else None,
        "special": PAIR_SPECIAL,
    }
    content_hash = _hash(settings)
    folder = cache / f"pairs-{content_hash[:32]}"
    facts = _cached(
        folder, _encoded_sizes, lambda temporary: _encode(paths, segmented, settings, temporary)
    )
    for file, note in facts["notes"]:
        notes.append(f"{paths[file]}{note}")
    vocabularies = {
        side: Vocabulary.load(folder / f"{side}.vocabulary", PAIR_SPECIAL)
        for side in ("source", "target")
    }
    sizes = {side: len(vocabulary) for side, vocabulary in vocabularies.items()}
    splits = {}
    for split in SPLITS:
        name = str(paths[split]) if split in paths else f"{path}, {split} split"
        splits[split] = EncodedPairs(folder, split, name, facts["splits"][split], sizes)
    return PairCorpus(
        vocabularies["source"],
        vocabularies["target"],
        segmentation,
        **splits,
        notes=tuple(notes),
        content_hash=content_hash,
        embedded=embedded,
    )


def _find_files(path: Path) -> dict[str, Path]:
    """Return the file of each split of a folder, or of the one file to split."""
    if not path.is_dir():
        return {_ALL: path}
    paths = {split: path / f"{split}.tsv" for split in SPLITS}
    missing = [file.name for file in paths.values() if not file.exists()]
    if missing:
        raise UsageError(
            f"{path}: no {' and no '.join(missing)} in this folder; it must hold train.tsv,"
            " valid.tsv and test.tsv"
        )
    return paths


# Segmenting ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segmented:
    """A file's tokens in the cache.

    `pairs.tsv` holds the tokens of a question, of its answer, and both texts; `places` the line
    number and the number of the conversation of each, int64.
    """

    folder: Path
    facts: dict[str, Any]
    content_hash: str

    def rows(self, progress: ByteCounter) -> Iterator[list[str]]:
        """Yield question's tokens, answer's tokens, question, answer."""
        with (self.folder / "pairs.tsv").open("rb") as file:
            for line in file:
                progress.add(len(line))
                yield line[:-1].decode().split("\t")

    def places(self) -> NDArray[np.int64]:
        """Return line numbers and conversations, int64 [num_pairs, 2]."""
        places = np.fromfile(self.folder / "places", dtype="<i8")
        return places.astype(np.int64, copy=False).reshape(-1, 2)

    def notes(self, path: Path, on_empty: str) -> list[str]:
        """Return remarks on the file.

        Raises:
          UsageError: if pairs with an empty side are an error, or there are no others.
        """
        count, lines = self.facts["num_empty"], self.facts["empty_lines"]
        plural = count != 1
        dropped = f"{count:,} pair{'s' * plural} with an empty side, {_first(count, lines)}"
        if count and on_empty == "error":
            raise UsageError(
                f"{path}:{lines[0]}: {dropped}: a question and an answer are needed"
            )
        if self.facts["num_pairs"] == 0:
            raise UsageError(f"{path}: there is no pair with a word on both sides")
        notes = [f"{path}{note}" for note in self.facts["notes"]]
        if count and on_empty == "warn":
            notes.append(f"{path}: {dropped}, {'were' if plural else 'was'} dropped")
        return notes


def _segmented(
    path: Path, cache: Path, segmentation: Segmentation, processes: int | None
) -> _Segmented:
    stat = file_stat(path)
    settings = {
        "format": _FORMAT,
        "text": file_hash(path, cache),
        "segmentation": segmentation.content_hash,
    }
    content_hash = _hash(settings)
    folder = cache / f"segmented-{content_hash[:32]}"

    def make(temporary: Path) -> None:
        count = processes
        if count is None:
            needed = 1 + path.stat().st_size // _BYTES_PER_PROCESS
            count = min(usable_cores(), needed)
        with Workers(segmentation, count) as workers:
            _segment_file(path, temporary, workers)
        if file_stat(path) != stat:
            raise UsageError(f"{path}: this file was changed while it was read")

    return _Segmented(folder, _cached(folder, _segmented_sizes, make), content_hash)


def _segment_file(path: Path, folder: Path, workers: Workers) -> None:
    notes: list[str] = []
    num_pairs = num_empty = size = 0
    empty_lines: list[int] = []
    with (
        ByteCounter("segmenting", path.stat().st_size) as progress,
        (folder / "pairs.tsv").open("wb") as pairs_file,
        (folder / "places").open("wb") as places_file,
    ):
        pieces = _pieces(path, notes, progress)
        for done, (texts, places) in workers.segment(pieces):
            lines, kept = [], []
            for row, place in zip(
                zip(done.sources, done.targets, texts.sources, texts.targets, strict=True),
                places,
                strict=True,
            ):
                if row[0] and row[1]:
                    lines.append("\t".join(row) + "\n")
                    kept.append(place)
                else:
                    num_empty += 1
                    empty_lines += [place[0]] if len(empty_lines) < 3 else []
            content = "".join(lines).encode()
            pairs_file.write(content)
            places_file.write(np.array(kept, dtype="<i8").tobytes())
            num_pairs += len(kept)
            size += len(content)
        _sync(pairs_file, places_file)
    facts = {
        "num_pairs": num_pairs,
        "size": size,
        "num_empty": num_empty,
        "empty_lines": empty_lines,
        "notes": [note.removeprefix(str(path)) for note in notes],
    }
    write_whole(folder / _FACTS, json.dumps(facts, indent=1).encode())


def _pieces(
    path: Path, notes: list[str], progress: ByteCounter
) -> Iterator[tuple[Texts, tuple[Texts, list[tuple[int, int]]]]]:
    """Yield pairs as they stand, some at a time, and beside them line and conversation."""
    texts, places = Texts([], []), []
    columns, first = 0, 0  # of a line, and the line that said so
    before, conversation = None, -1  # the answer of the line before
    for number, line in _lines(path, notes, progress):
        source, target = "", ""
        if line.strip():
            fields = line.split("\t")
            if not columns and len(fields) in (2, 3):
                columns, first = len(fields), number
            if len(fields) != columns:
                raise _malformed(path, number, len(fields), columns, first)
            source, target = fields[0].strip(), fields[1].strip()
        if before is None or source != before:
            conversation += 1
        before = target
        texts.sources.append(source)
        texts.targets.append(target)
        places.append((number, conversation))
        if len(places) == _PAIRS_AT_ONCE:
            yield texts, (texts, places)
            texts, places = Texts([], []), []
    if places:
        yield texts, (texts, places)


def _lines(path: Path, notes: list[str], progress: ByteCounter) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, those that are too long left out."""
    number, cut = 0, False
    for block in read_blocks(path, notes, progress.add, mark_cuts=True):
        for line in block[:-1].split("\n"):
            if line.endswith(CUT):
                cut = True
                continue
            number += 1
            if not cut:
                yield number, line
            cut = False


def _malformed(path: Path, number: int, seen: int, columns: int, first: int) -> UsageError:
    found = f"{path}:{number}: {seen} column{'s' * (seen != 1)}"
    if seen in (2, 3):
        return UsageError(f"{found}, but line {first} has {columns}: all must have as many")
    needed = str(columns) if columns else "2 (question, answer) or 3 (and a remark)"
    return UsageError(f"{found}, {needed} are needed, with a tab between")


# Splitting and encoding ----------------------------------------------------------------------

_Notes = list[tuple[str, str]]  # which file, and what is said after its path


@dataclass(frozen=True)
class _Measured:
    """What splitting needs to know of the pairs of a file.

    Attributes:
      kept: bool [num_pairs], within the limits.
      sources: hashes of questions, uint64 [num_pairs].
      pairs: hashes of question and answer, uint64 [num_pairs].
      conversations: int64 [num_pairs], ascending.
    """

    kept: NDArray[np.bool_]
    sources: NDArray[np.uint64]
    pairs: NDArray[np.uint64]
    conversations: NDArray[np.int64]


def _encode(
    paths: dict[str, Path],
    segmented: dict[str, _Segmented],
    settings: dict[str, Any],
    folder: Path,
) -> None:
    """Write vocabularies, encoded splits and the facts about them."""
    notes: _Notes = []
    with ByteCounter(
        "encoding", 3 * sum(each.facts["size"] for each in segmented.values())
    ) as bar:
        measured = {}
        for name, each in segmented.items():
            measured[name] = _measure(each, bar, settings)
            _note_long(name, paths[name], each, measured[name], settings, notes)
        splits = _assign(paths, measured, settings["split_by"], notes)
        vocabularies = _vocabularies(paths, segmented, splits, settings, bar)
        for side, vocabulary in vocabularies.items():
            vocabulary.save(folder / f"{side}.vocabulary")
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(_Writer(folder, each, vocabularies)) for each in SPLITS
            ]
            for name, each in segmented.items():
                for row, split in zip(each.rows(bar), splits[name].tolist(), strict=True):
                    if split >= 0:
                        writers[split].add(row)
    facts = {split: writer.facts for split, writer in zip(SPLITS, writers, strict=True)}
    for split in SPLITS:
        for side, vocabulary in vocabularies.items():
            share = facts[split][f"{side}_unknown_share"]
            if share > _MOSTLY_UNKNOWN:
                note = (
                    f": {share:.1%} of the {side} words for {split} are {UNKNOWN} with a"
                    f" vocabulary of {len(vocabulary):,}; more than {_MOSTLY_UNKNOWN:.0%}"
                    " teaches a model little"
                )
                notes.append((split if split in paths else _ALL, note))
    content = {
        "splits": facts,
        "vocabularies": {side: len(each.content) for side, each in vocabularies.items()},
        "notes": notes,
    }
    write_whole(folder / _FACTS, json.dumps(content, indent=1).encode())


def _measure(segmented: _Segmented, bar: ByteCounter, settings: dict[str, Any]) -> _Measured:
    count = segmented.facts["num_pairs"]
    sources, pairs = np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
    kept = np.zeros(count, dtype=bool)
    most_source, most_target = (
        sys.maxsize if settings[name] is None else settings[name]
        for name in ("most_source", "most_target")
    )
    for row, (source, target, *_) in enumerate(segmented.rows(bar)):
        sources[row] = _text_hash(source)
        pairs[row] = _text_hash(f"{source}\t{target}")
        kept[row] = source.count(" ") < most_source and target.count(" ") < most_target
    return _Measured(kept, sources, pairs, segmented.places()[:, 1])


def _note_long(
    name: str,
    path: Path,
    segmented: _Segmented,
    measured: _Measured,
    settings: dict[str, Any],
    notes: _Notes,
) -> None:
    """Note the pairs beyond the limits.

    Raises:
      UsageError: if all are.
    """
    long = np.flatnonzero(~measured.kept)
    if not len(long):
        return
    sides = (("a question", "most_source"), ("an answer", "most_target"))
    limits = [f"{settings[key]} in {side}" for side, key in sides if settings[key]]
    allowed = f"{' and '.join(limits)} are allowed"
    if not measured.kept.any():
        raise UsageError(f"{path}: all {len(long):,} pairs have too many tokens: {allowed}")
    first = _first(len(long), segmented.places()[long[:3], 0].tolist())
    notes.append(
        (
            name,
            f": {len(long):,} of {len(measured.kept):,} pairs, {first}, have too many tokens"
            f" and were dropped: {allowed}",
        )
    )


def _assign(
    paths: dict[str, Path], measured: dict[str, _Measured], split_by: str | None, notes: _Notes
) -> dict[str, NDArray[np.int8]]:
    """Return each pair's place in SPLITS, -1 for those dropped, int8 [num_pairs] per file."""
    if split_by is None:
        for place, split in enumerate(SPLITS):
            held = measured[split]
            if place and (seen := int(np.isin(held.sources, measured["train"].sources).sum())):
                note = f": {seen:,} of {len(held.sources):,} questions are in train.tsv too"
                notes.append((split, note))
        return {
            split: np.where(measured[split].kept, place, -1).astype(np.int8)
            for place, split in enumerate(SPLITS)
        }
    path, of_file = paths[_ALL], measured[_ALL]
    kept = np.flatnonzero(of_file.kept)
    splits = np.full(len(of_file.kept), -1, dtype=np.int8)
    starts = np.flatnonzero(np.diff(of_file.conversations[kept], prepend=-1))
    if split_by == "source":
        splits[kept] = _by_source(path, of_file.sources[kept])
        if len(starts) < len(kept) / 2:
            note = (
                ": most questions are the answer of the line before, as in dialogues: then"
                " splitting by source lets parts of one conversation into several splits,"
                " splitting by block does not"
            )
            notes.append((_ALL, note))
    else:
        places = _by_block(path, of_file.sources[kept], starts)
        num_dropped = _drop_repeated(places, of_file.pairs[kept])
        splits[kept] = places
        if num_dropped:
            note = (
                f": {num_dropped:,} pairs for validation or test were dropped because the same"
                " pair is in another split"
            )
            notes.append((_ALL, note))
    for place, split in enumerate(SPLITS):
        if not (splits == place).any():
            raise UsageError(
                f"{path}: of {len(kept):,} pairs none is left for {split}: the same pairs are"
                " everywhere"
            )
    return {_ALL: splits}


def _by_source(path: Path, sources: NDArray[np.uint64]) -> NDArray[np.int8]:
    distinct, of_pair = np.unique(sources, return_inverse=True)  # in the order of the hash
    if len(distinct) < len(SPLITS):
        raise UsageError(
            f"{path}: {len(distinct)} distinct question{'s' * (len(distinct) != 1)}, at least"
            f" {len(SPLITS)} are needed, one each to train, to validate and to test"
        )
    held_out = max(1, round(HELD_OUT * len(distinct)))
    places = np.zeros(len(distinct), dtype=np.int8)
    places[:held_out] = SPLITS.index("test")
    places[held_out : 2 * held_out] = SPLITS.index("valid")
    return places[of_pair.reshape(-1)]


def _by_block(
    path: Path, sources: NDArray[np.uint64], starts: NDArray[np.int64]
) -> NDArray[np.int8]:
    """Return places in SPLITS of pairs whose conversations start at some rows."""
    if len(starts) < len(SPLITS):
        raise UsageError(
            f"{path}: {len(starts)} conversation{'s' * (len(starts) != 1)}, at least"
            f" {len(SPLITS)} are needed, one each to train, to validate and to test; a line"
            " whose question is not the answer of the line before starts one"
        )
    total = len(sources)
    enough = min(max(total // 100, 1), _LARGEST_BLOCK)
    blocks = [0]
    for start in starts.tolist():
        if start - blocks[-1] >= enough:
            blocks.append(start)
    if len(blocks) < len(SPLITS):
        blocks = starts.tolist()
    sizes = np.diff(blocks, append=total)
    # of the block's first question, for what comes later in the file must not change it
    order = np.argsort(sources[blocks], kind="stable")
    of_block = np.zeros(len(blocks), dtype=np.int8)
    for split in ("test", "valid"):
        place, size = SPLITS.index(split), 0
        free = [block for block in order.tolist() if of_block[block] == 0]
        for block in free:
            if size < HELD_OUT * total and size + sizes[block] <= 1.5 * HELD_OUT * total:
                of_block[block], size = place, size + int(sizes[block])
        if not size:
            of_block[min(free, key=lambda block: int(sizes[block]))] = place
    return np.repeat(of_block, sizes)


def _drop_repeated(places: NDArray[np.int8], pairs: NDArray[np.uint64]) -> int:
    """Put -1 where a pair held out is in an earlier split too, and return how many are."""
    num_dropped = 0
    for place in (1, 2):
        earlier = pairs[(places >= 0) & (places < place)]
        repeated = (places == place) & np.isin(pairs, earlier)
        places[repeated] = -1
        num_dropped += int(repeated.sum())
    return num_dropped


def _vocabularies(
    paths: dict[str, Path],
    segmented: dict[str, _Segmented],
    splits: dict[str, NDArray[np.int8]],
    settings: dict[str, Any],
    bar: ByteCounter,
) -> dict[str, Vocabulary]:
    """Return the vocabularies of the training pairs, the same one twice if shared."""
    name = "train" if "train" in paths else _ALL
    path = paths[name]
    source: Counter[str] = Counter()
    target = source if settings["share_vocabulary"] else Counter()
    for row, split in zip(segmented[name].rows(bar), splits[name].tolist(), strict=True):
        if split != 0:
            continue
        source.update(row[0].split(" "))
        target.update(row[1].split(" "))
        if max(len(source), len(target)) > _MOST_WORDS:
            raise UsageError(
                f"{path}: more than {_MOST_WORDS:,} distinct words on a side: cut into tokens"
                " of which more are alike"
            )
    cap = settings["source_vocabulary_size"]
    vocabulary = build_vocabulary(source, cap, f"{path}, questions", PAIR_SPECIAL)
    if settings["share_vocabulary"]:
        return {"source": vocabulary, "target": vocabulary}
    cap = settings["target_vocabulary_size"]
    return {
        "source": vocabulary,
        "target": build_vocabulary(target, cap, f"{path}, answers", PAIR_SPECIAL),
    }


class _Writer:
    """Writes one split: ids of questions and of answers, texts, and where each row starts."""

    def __init__(self, folder: Path, split: str, vocabularies: dict[str, Vocabulary]) -> None:
        self._vocabularies = vocabularies
        kinds = ("source", "target", "text", "bounds")
        self._files = {kind: (folder / f"{split}.{kind}").open("wb") for kind in kinds}
        self._bounds, self._unknown = [0, 0, 0], [0, 0]
        self._num_pairs = 0
        self._files["bounds"].write(np.array(self._bounds, dtype="<i8").tobytes())

    def add(self, row: list[str]) -> None:
        """Write question's tokens, answer's tokens, question, answer."""
        for place, (side, vocabulary) in enumerate(self._vocabularies.items()):
            ids = vocabulary.encode_words(row[place].split(" "))
            self._files[side].write(ids.astype("<i4", copy=False).tobytes())
            self._bounds[place] += len(ids)
            self._unknown[place] += int(np.count_nonzero(ids == PAIR_UNKNOWN_ID))
        text = f"{row[2]}\t{row[3]}\n".encode()
        self._files["text"].write(text)
        self._bounds[2] += len(text)
        self._files["bounds"].write(np.array(self._bounds, dtype="<i8").tobytes())
        self._num_pairs += 1

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of the split."""
        sizes = dict(zip((*self._vocabularies, "text"), self._bounds, strict=True))
        shares = {
            f"{side}_unknown_share": self._unknown[place] / max(self._bounds[place], 1)
            for place, side in enumerate(self._vocabularies)
        }
        return {"num_pairs": self._num_pairs, "sizes": sizes, **shares}

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            with file:
                if error is None:
                    _sync(file)


# The cache -----------------------------------------------------------------------------------


def _cached(
    folder: Path,
    sizes: Callable[[dict[str, Any]], dict[str, int]],
    make: Callable[[Path], None],
) -> dict[str, Any]:
    """Return the facts of a folder of the cache, made if it is not there or damaged.

    Args:
      folder: in the cache.
      sizes: of facts, the bytes of each file.
      make: writes files and facts to a folder.
    """
    facts = _read_facts(folder, sizes)
    if facts is None:
        if folder.exists():  # damaged; what is left is ours alone and can be made again
            shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as temporary:
            make(temporary)
        facts = _read_facts(folder, sizes)
        if facts is None:
            raise UsageError(f"{folder}: what was just written here is gone or damaged")
    return facts


def _read_facts(
    folder: Path, sizes: Callable[[dict[str, Any]], dict[str, int]]
) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads((folder / _FACTS).read_bytes())
        for name, size in sizes(facts).items():
            if (folder / name).stat().st_size != size:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts


def _segmented_sizes(facts: dict[str, Any]) -> dict[str, int]:
    return {"pairs.tsv": facts["size"], "places": 16 * facts["num_pairs"]}


def _encoded_sizes(facts: dict[str, Any]) -> dict[str, int]:
    sizes = {f"{side}.vocabulary": facts["vocabularies"][side] for side in ("source", "target")}
    for split in SPLITS:
        of_split = facts["splits"][split]
        for kind, size in (("source", 4), ("target", 4), ("text", 1)):
            sizes[f"{split}.{kind}"] = size * of_split["sizes"][kind]
        sizes[f"{split}.bounds"] = 24 * (of_split["num_pairs"] + 1)
    return sizes


def _sync(*files: BinaryIO) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())


def _hash(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _text_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _first(count: int, lines: list[int]) -> str:
    """Return "on line 3" or "on lines 3, 4, 9 and further ones"."""
    numbers = ", ".join(map(str, lines))
    more = " and further ones" if count > len(lines) else ""
    return f"on line{'s' * (count != 1)} {numbers}{more}"


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} {value!r}: one of {', '.join(allowed)} is needed")


def _embedded_file(cache: Path) -> Path:
    folder = cache / f"embedded-pairs-{synthetic_pairs.VERSION}"
    if not folder.exists():
        with new_folder(folder) as temporary:
            synthetic_pairs.write_pairs(temporary / "pairs.tsv")
    return folder / "pairs.tsv"
