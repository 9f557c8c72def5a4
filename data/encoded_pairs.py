"""Pairs in a cache, as `pairs-<hash>`: segmented and encoded once, read one at a time.

Each split has `<split>.source` and `<split>.target` (ids, int32, little-endian), `<split>.text`
(lines of question, tab, answer), and `<split>.bounds` (int64, little-endian, [num_pairs + 1,
3]: where each row starts in these files, and where the last one ends).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.cache import sync, write_facts
from data.pair_file import SPLITS, UNSPLIT, read_pairs
from data.pair_splits import Notes, PairFeatures, assign_splits, text_hash
from data.parallel_segmentation import processes_for, segment_blocks
from data.segmenters import Segmentation
from data.vocabulary import Vocabulary, build_vocabulary, check_tokens, unknown_notes
from parity.base.errors import UsageError
from parity.base.progress import ByteProgressBar
from parity.base.special_tokens import PAIR_SPECIAL, PAIR_UNKNOWN_ID

FACTS = "facts.json"
TURN = "|"  # the token that ends an earlier turn of a conversation


class EncodedPairs:
    """One split's pairs on disk, read one at a time; safe to read from several threads.

    Attributes:
      name: the file it came from, and the split.
      num_pairs: the number of rows.
      source_lengths: ids of each question, uint32 [num_pairs].
      target_lengths: ids of each answer, without markers, uint32 [num_pairs].
      source_unknown_share: the share of words of questions that are `<unk>`.
      target_unknown_share: the same for answers.
    """

    def __init__(
        self, folder: Path, split: str, name: str, facts: dict[str, Any], sizes: dict[str, int]
    ) -> None:
        """Open a split.

        Args:
          folder: the folder of the cache that `encode_pairs` wrote.
          split: one of SPLITS.
          name: for messages.
          facts: those about the split.
          sizes: the size of the vocabulary of each side.
        """
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
        bounds = bounds.reshape(-1, 3).astype(np.int64, copy=False)
        self._bounds = dict(zip(self._paths, np.ascontiguousarray(bounds.T), strict=True))
        self.source_lengths = np.diff(self._bounds["source"]).astype(np.uint32)
        self.target_lengths = np.diff(self._bounds["target"]).astype(np.uint32)

    def first_pairs(self, count: int) -> EncodedPairs:
        """Return the first `count` pairs, or all if there are no more or for 0.

        The shares of unknown words are still those of the whole split.
        """
        if count == 0 or count >= self.num_pairs:
            return self
        shorter = copy(self)
        shorter.num_pairs = count
        shorter.source_lengths = self.source_lengths[:count]
        shorter.target_lengths = self.target_lengths[:count]
        return shorter

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
        """Return a question and its answer as they are in the file.

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


def encode_pairs(
    paths: dict[str, Path],
    segmentation: Segmentation,
    processes: int | None,
    settings: dict[str, Any],
    folder: Path,
) -> None:
    """Segment and split pairs; write the vocabularies, the encoded splits and their facts.

    Args:
      paths: the files of pairs, by split or as UNSPLIT.
      segmentation: how text is segmented.
      processes: how many do it; None for as many as there are cores, fewer for little text.
      settings: vocabulary sizes, limits and the way of splitting; see `load_pairs`.
      folder: where to write.

    Raises:
      UsageError: naming the file, if the pairs cannot be used.
    """
    notes: Notes = []
    segmented = {}
    for name, path in paths.items():
        each = _segment(path, folder / f"{name}.segmented", segmentation, processes, settings)
        _note_long(name, path, each, settings, notes)
        segmented[name] = each
    features = {name: each.features for name, each in segmented.items()}
    splits = assign_splits(paths, features, settings["split_by"], notes)
    size = sum(each.rows_path.stat().st_size for each in segmented.values())
    with ByteProgressBar("encoding", 2 * size) as progress:
        vocabularies = _vocabularies(paths, segmented, splits, settings, progress)
        for side, vocabulary in vocabularies.items():
            vocabulary.save(folder / f"{side}.vocabulary")
        with contextlib.ExitStack() as stack:
            writers = [_SplitWriter(folder, each, vocabularies, stack) for each in SPLITS]
            for name, each in segmented.items():
                for row, index in zip(each.rows(progress), splits[name].tolist(), strict=True):
                    if index >= 0:
                        writers[index].add(row)
            for writer in writers:
                sync(*writer.files.values())
    facts = {split: writer.facts for split, writer in zip(SPLITS, writers, strict=True)}
    for split in SPLITS:
        file = split if split in paths else UNSPLIT
        for side, vocabulary in vocabularies.items():
            found = unknown_notes(
                f"{side} words for {split}",
                facts[split][f"{side}_unknown_share"],
                len(vocabulary),
                settings[f"{side}_vocabulary_size"],
                getattr(segmentation, f"{side}_segmenter"),
                side,
            )
            notes += [(file, note) for note in found]
    files = {name: each.facts for name, each in segmented.items()}
    write_facts(folder / FACTS, {"splits": facts, "files": files, "notes": notes})
    for each in segmented.values():
        each.rows_path.unlink()


def with_turns(
    earlier: Sequence[list[str]], question: list[str], limit: int | None
) -> list[str]:
    """Return a question's tokens behind those of the turns before it, `TURN` after each.

    Args:
      earlier: the tokens of each turn, the latest one last; the first ones are left out where
        there would be more tokens than the limit.
      question: the question's tokens.
      limit: the most tokens; None for no limit.
    """
    tokens = question
    for turn in reversed(earlier):
        longer = [*turn, TURN, *tokens]
        if limit is not None and len(longer) > limit:
            break
        tokens = longer
    return tokens


def file_notes(path: Path, facts: dict[str, Any], on_empty: str) -> list[str]:
    """Return remarks on a file of pairs, given the facts about it.

    Raises:
      UsageError: if pairs with an empty side are an error.
    """
    count, lines = facts["num_empty"], facts["empty_lines"]
    plural = count != 1
    dropped = f"{count:,} pair{'s' * plural} with an empty side, {_on_lines(count, lines)}"
    if count and on_empty == "error":
        raise UsageError(f"{path}:{lines[0]}: {dropped}: a question and an answer are needed")
    notes = [f"{path}{note}" for note in facts["notes"]]
    if count and on_empty == "warn":
        notes.append(f"{path}: {dropped}, {'were' if plural else 'was'} dropped")
    return notes


@dataclass(frozen=True)
class _Segmented:
    """A file's pairs as tokens, on disk while they are encoded.

    Attributes:
      rows_path: a line per pair: the tokens of question and answer, and both texts.
      features: what splitting needs to know.
      lines: line numbers, int64 [num_pairs].
      facts: num_empty, empty_lines, notes.
    """

    rows_path: Path
    features: PairFeatures
    lines: NDArray[np.int64]
    facts: dict[str, Any]

    def rows(self, progress: ByteProgressBar) -> Iterator[list[str]]:
        """Yield the question's tokens, the answer's tokens, the question and the answer."""
        with self.rows_path.open("rb") as file:
            for line in file:
                progress.add(len(line))
                yield line[:-1].decode().split("\t")


def _segment(
    path: Path,
    rows_path: Path,
    segmentation: Segmentation,
    processes: int | None,
    settings: dict[str, Any],
) -> _Segmented:
    """Write the tokens of a file's pairs to `rows_path`."""
    notes, empty = list[str](), list[int]()
    if processes is None:
        processes = processes_for(path.stat().st_size)
    limits = [settings[name] or sys.maxsize for name in ("most_source", "most_target")]
    kept: list[NDArray[np.bool_]] = []
    hashes: list[NDArray[np.uint64]] = []  # [pairs, 2]: of the question, and of both
    places: list[NDArray[np.int64]] = []  # [pairs, 2]: the line, and the conversation
    with (
        ByteProgressBar("segmenting", path.stat().st_size) as progress,
        rows_path.open("wb") as file,
        contextlib.closing(
            segment_blocks(read_pairs(path, notes, progress), segmentation, processes)
        ) as blocks,
    ):
        turns, conversation = deque[list[str]](maxlen=settings.get("turns", 0)), -1
        for block, tokens in blocks:
            rows, alone = [], []  # alone: without earlier turns, which decide no split
            for *row, place in zip(
                *tokens, block.sources, block.targets, block.places, strict=True
            ):
                if place[1] != conversation:
                    turns.clear()
                    conversation = place[1]
                pair = row[:2]
                if row[0]:
                    question = row[0].split(" ")
                    row[0] = " ".join(with_turns(turns, question, limits[0]))
                    turns.append(question)
                if row[0] and row[1]:
                    rows.append((row, place))
                    alone.append(pair)
                else:
                    empty.append(place[0])
            file.write("".join("\t".join(row) + "\n" for row, _ in rows).encode())
            sides = [row[:2] for row, _ in rows]
            fit = [
                all(side.count(" ") < most for side, most in zip(row, limits, strict=True))
                for row in sides
            ]
            pair_hashes = [(text_hash(row[0]), text_hash("\t".join(row))) for row in alone]
            kept.append(np.array(fit, dtype=bool))
            hashes.append(np.array(pair_hashes, dtype=np.uint64).reshape(-1, 2))
            places.append(np.array([place for _, place in rows], dtype=np.int64).reshape(-1, 2))
    if not any(map(len, places)):
        raise UsageError(f"{path}: there is no pair with a word on both sides")
    sources, pairs = np.concatenate(hashes).T
    lines, conversations = np.concatenate(places).T
    facts = {
        "num_empty": len(empty),
        "empty_lines": empty[:3],
        "notes": [note.removeprefix(str(path)) for note in notes],
    }
    features = PairFeatures(np.concatenate(kept), sources, pairs, conversations)
    return _Segmented(rows_path, features, lines, facts)


def _on_lines(count: int, lines: list[int]) -> str:
    """Return "on line 3", or "on lines 3, 4, 9 and further ones" if `lines` are not all."""
    numbers = ", ".join(map(str, lines))
    more = " and further ones" if count > len(lines) else ""
    return f"on line{'s' * (count != 1)} {numbers}{more}"


class _SplitWriter:
    """Writes one split: ids of questions and of answers, texts, and where each row starts."""

    def __init__(
        self,
        folder: Path,
        split: str,
        vocabularies: dict[str, Vocabulary],
        stack: contextlib.ExitStack,
    ) -> None:
        self._vocabularies = vocabularies
        self.files = {
            kind: stack.enter_context((folder / f"{split}.{kind}").open("wb"))
            for kind in ("source", "target", "text", "bounds")
        }
        self._bounds, self._unknown = [0, 0, 0], [0, 0]
        self._num_pairs = 0
        self.files["bounds"].write(np.array(self._bounds, dtype="<i8").tobytes())

    def add(self, row: list[str]) -> None:
        """Write the question's tokens, the answer's tokens, the question and the answer."""
        for place, (side, vocabulary) in enumerate(self._vocabularies.items()):
            ids = vocabulary.encode_words(row[place].split(" "))
            self.files[side].write(ids.astype("<i4", copy=False).tobytes())
            self._bounds[place] += len(ids)
            self._unknown[place] += int(np.count_nonzero(ids == PAIR_UNKNOWN_ID))
        text = f"{row[2]}\t{row[3]}\n".encode()
        self.files["text"].write(text)
        self._bounds[2] += len(text)
        self.files["bounds"].write(np.array(self._bounds, dtype="<i8").tobytes())
        self._num_pairs += 1

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the split."""
        shares = {
            f"{side}_unknown_share": self._unknown[place] / max(self._bounds[place], 1)
            for place, side in enumerate(self._vocabularies)
        }
        return {"num_pairs": self._num_pairs, **shares}


def _note_long(
    name: str,
    path: Path,
    segmented: _Segmented,
    settings: dict[str, Any],
    notes: Notes,
) -> None:
    """Note the pairs that exceed the limits.

    Raises:
      UsageError: if all do.
    """
    kept = segmented.features.kept
    long = np.flatnonzero(~kept)
    if not len(long):
        return
    sides = (("a question", "most_source"), ("an answer", "most_target"))
    limits = [f"{settings[key]} in {side}" for side, key in sides if settings[key]]
    allowed = f"{' and '.join(limits)} are allowed"
    if not kept.any():
        raise UsageError(f"{path}: all {len(long):,} pairs have too many tokens: {allowed}")
    lines = _on_lines(len(long), segmented.lines[long[:3]].tolist())
    notes.append(
        (
            name,
            f": {len(long):,} of {len(kept):,} pairs, {lines}, have too many tokens"
            f" and were dropped: {allowed}",
        )
    )


def _vocabularies(
    paths: dict[str, Path],
    segmented: dict[str, _Segmented],
    splits: dict[str, NDArray[np.int8]],
    settings: dict[str, Any],
    progress: ByteProgressBar,
) -> dict[str, Vocabulary]:
    """Return the vocabularies of the training pairs, the same one twice if shared."""
    name = "train" if "train" in paths else UNSPLIT
    path = paths[name]
    source: Counter[str] = Counter()
    target = source if settings["share_vocabulary"] else Counter()
    for row, index in zip(segmented[name].rows(progress), splits[name].tolist(), strict=True):
        if index != 0:
            continue
        source.update(row[0].split(" "))
        target.update(row[1].split(" "))
    size = settings["source_vocabulary_size"]
    vocabulary = build_vocabulary(source, size, f"{path}, questions", PAIR_SPECIAL)
    if settings["share_vocabulary"]:
        return {"source": vocabulary, "target": vocabulary}
    size = settings["target_vocabulary_size"]
    return {
        "source": vocabulary,
        "target": build_vocabulary(target, size, f"{path}, answers", PAIR_SPECIAL),
    }
