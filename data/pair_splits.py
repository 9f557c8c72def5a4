"""Which pairs of a file are for training, for validation and for the test.

A file is split in one of two ways; both depend on nothing but its text and the settings.

`source`: the distinct questions, as tokens, are ordered by a hash. The first 5 % are for the
test and the next 5 % for validation, at least one each; all others are for training. So no
question is in two splits.

`block`: for dialogues, in which each answer is the next question. Consecutive conversations
form blocks of a hundredth of all pairs, at most 100, or slightly more because a block ends with
a conversation; if that makes fewer than three blocks, each conversation is one. Blocks are
taken in the order of a hash, 5 % of the pairs for the test and 5 % for validation, skipping
those that would make it more than 7.5 %; if none fits, the smallest is taken. Then pairs for
validation that are also in training, and pairs for the test that are also in either, are
dropped.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.pair_file import SPLITS, UNSPLIT
from parity.base.errors import UsageError

HELD_OUT = 0.05  # share of the test, and of validation

_LARGEST_BLOCK = 100  # pairs after which the end of a conversation ends the block

Notes = list[tuple[str, str]]  # which file, and the remark that follows its path


@dataclass(frozen=True)
class PairFeatures:
    """What splitting needs to know of the pairs of a file.

    Attributes:
      kept: bool [num_pairs], whether a pair is within the length limits.
      sources: hashes of questions, uint64 [num_pairs].
      pairs: hashes of question and answer, uint64 [num_pairs].
      conversations: int64 [num_pairs], ascending.
    """

    kept: NDArray[np.bool_]
    sources: NDArray[np.uint64]
    pairs: NDArray[np.uint64]
    conversations: NDArray[np.int64]


def text_hash(text: str) -> int:
    """Return a hash of 64 bits that is the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def assign_splits(
    paths: dict[str, Path],
    features: dict[str, PairFeatures],
    split_by: str | None,
    notes: Notes,
) -> dict[str, NDArray[np.int8]]:
    """Return each pair's index in SPLITS, -1 for those dropped, int8 [num_pairs] per file.

    Args:
      paths: the files, by split or as UNSPLIT.
      features: those of each file's pairs.
      split_by: "source" or "block" for an unsplit file, None for files that are the splits.
      notes: one-line remarks for the user are appended here.

    Raises:
      UsageError: if a split would have no pairs.
    """
    if split_by is None:
        return _by_file(features, notes)
    return {UNSPLIT: _split_file(paths[UNSPLIT], features[UNSPLIT], split_by, notes)}


def _by_file(features: dict[str, PairFeatures], notes: Notes) -> dict[str, NDArray[np.int8]]:
    splits = {}
    for index, split in enumerate(SPLITS):
        sources = features[split].sources
        if index and (seen := int(np.isin(sources, features["train"].sources).sum())):
            note = f": {seen:,} of {len(sources):,} questions are in train.tsv too"
            notes.append((split, note))
        splits[split] = np.where(features[split].kept, index, -1).astype(np.int8)
    return splits


def _split_file(
    path: Path, features: PairFeatures, split_by: str, notes: Notes
) -> NDArray[np.int8]:
    kept = np.flatnonzero(features.kept)
    splits = np.full(len(features.kept), -1, dtype=np.int8)
    starts = np.flatnonzero(np.diff(features.conversations[kept], prepend=-1))
    if split_by == "source":
        splits[kept] = _by_source(path, features.sources[kept])
        if len(starts) < len(kept) / 2:
            note = (
                ": most questions are the answer of the line before, as in dialogues: then"
                " splitting by source lets parts of one conversation into several splits,"
                " splitting by block does not"
            )
            notes.append((UNSPLIT, note))
    else:
        indices = _by_block(path, features.sources[kept], starts)
        num_dropped = _drop_repeated(indices, features.pairs[kept])
        splits[kept] = indices
        if num_dropped:
            note = (
                f": {num_dropped:,} pairs for validation or test were dropped because the same"
                " pair is in another split"
            )
            notes.append((UNSPLIT, note))
    for index, split in enumerate(SPLITS):
        if not (splits == index).any():
            raise UsageError(
                f"{path}: of {len(kept):,} pairs none is left for {split}: the same pairs are"
                " everywhere"
            )
    return splits


def _by_source(path: Path, sources: NDArray[np.uint64]) -> NDArray[np.int8]:
    distinct, of_pair = np.unique(sources, return_inverse=True)  # in the order of the hash
    if len(distinct) < len(SPLITS):
        raise UsageError(
            f"{path}: {len(distinct)} distinct question{'s' * (len(distinct) != 1)}, at least"
            f" {len(SPLITS)} are needed, one each to train, to validate and to test"
        )
    held_out = max(1, round(HELD_OUT * len(distinct)))
    indices = np.zeros(len(distinct), dtype=np.int8)
    indices[:held_out] = SPLITS.index("test")
    indices[held_out : 2 * held_out] = SPLITS.index("valid")
    return indices[of_pair.reshape(-1)]


def _by_block(
    path: Path, sources: NDArray[np.uint64], starts: NDArray[np.int64]
) -> NDArray[np.int8]:
    """Return the indices in SPLITS of pairs, given the rows at which conversations start."""
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
    # by the first question of a block: what comes later in the file must not change the order
    order = np.argsort(sources[blocks], kind="stable")
    of_block = np.zeros(len(blocks), dtype=np.int8)
    for split in ("test", "valid"):
        index, size = SPLITS.index(split), 0
        free = [block for block in order.tolist() if of_block[block] == 0]
        for block in free:
            if size < HELD_OUT * total and size + sizes[block] <= 1.5 * HELD_OUT * total:
                of_block[block], size = index, size + int(sizes[block])
        if not size:
            of_block[min(free, key=lambda block: int(sizes[block]))] = index
    return np.repeat(of_block, sizes)


def _drop_repeated(indices: NDArray[np.int8], pairs: NDArray[np.uint64]) -> int:
    """Put -1 where a held-out pair is in an earlier split too, and return how many are."""
    num_dropped = 0
    for index in (1, 2):
        earlier = pairs[(indices >= 0) & (indices < index)]
        repeated = (indices == index) & np.isin(pairs, earlier)
        indices[repeated] = -1
        num_dropped += int(repeated.sum())
    return num_dropped
