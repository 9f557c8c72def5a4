"""The tokens of files of pairs, kept in a cache as `segmented-<hash>`.

So another vocabulary, limit or split needs no segmenting, which for Chinese takes most of the
time. `pairs.tsv` holds the tokens of a question and of its answer, and both texts; `places` the
line number and the number of the conversation of each pair, int64, little-endian.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.cache import cached_folder, file_hash, file_stat, settings_hash, sync, write_facts
from data.pair_file import read_pairs
from data.parallel_segmentation import segment_blocks
from data.segmenters import Segmentation
from parity.base.cores import usable_cores
from parity.base.errors import UsageError
from parity.base.progress import ByteCounter

_FORMAT = 1  # a change to what is written to the cache, or how, must raise this
_BYTES_PER_PROCESS = 1 << 18  # with less text a process takes longer to start than it saves
_FACTS = "facts.json"


@dataclass(frozen=True)
class SegmentedPairs:
    """A file's tokens in the cache.

    Attributes:
      folder: the folder, in the cache.
      facts: num_pairs, size (bytes of pairs.tsv), num_empty, empty_lines, notes.
      content_hash: sha256 of the text and the segmentation, in hexadecimal.
    """

    folder: Path
    facts: dict[str, Any]
    content_hash: str

    def rows(self, progress: ByteCounter) -> Iterator[list[str]]:
        """Yield the question's tokens, the answer's tokens, the question and the answer."""
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
        dropped = f"{count:,} pair{'s' * plural} with an empty side, {on_lines(count, lines)}"
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


def segment_file(
    path: Path, cache: Path, segmentation: Segmentation, processes: int | None
) -> SegmentedPairs:
    """Segment a file of pairs, or find that done in the cache.

    Args:
      path: the file.
      cache: an existing folder.
      segmentation: how text is segmented.
      processes: how many do it; None for as many as there are cores, fewer for little text.

    Raises:
      UsageError: naming file and line, if the pairs cannot be used.
    """
    stat = file_stat(path)
    content_hash = settings_hash(
        {
            "format": _FORMAT,
            "text": file_hash(path, cache),
            "segmentation": segmentation.content_hash,
        }
    )
    folder = cache / f"segmented-{content_hash[:32]}"

    def make(temporary: Path) -> None:
        count = processes
        if count is None:
            needed = 1 + path.stat().st_size // _BYTES_PER_PROCESS
            count = min(usable_cores(), needed)
        _write_tokens(path, temporary, segmentation, count)
        if file_stat(path) != stat:
            raise UsageError(f"{path}: this file was changed while it was read")

    return SegmentedPairs(folder, cached_folder(folder, _FACTS, make), content_hash)


def on_lines(count: int, lines: list[int]) -> str:
    """Return "on line 3", or "on lines 3, 4, 9 and further ones" if `lines` are not all."""
    numbers = ", ".join(map(str, lines))
    more = " and further ones" if count > len(lines) else ""
    return f"on line{'s' * (count != 1)} {numbers}{more}"


def _write_tokens(path: Path, folder: Path, segmentation: Segmentation, processes: int) -> None:
    notes: list[str] = []
    num_pairs = num_empty = size = 0
    empty_lines: list[int] = []
    with (
        ByteCounter("segmenting", path.stat().st_size) as progress,
        (folder / "pairs.tsv").open("wb") as pairs_file,
        (folder / "places").open("wb") as places_file,
        contextlib.closing(
            segment_blocks(read_pairs(path, notes, progress), segmentation, processes)
        ) as segmented,
    ):
        for block, tokens in segmented:
            lines, kept = [], []
            for *row, place in zip(
                *tokens, block.sources, block.targets, block.places, strict=True
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
        sync(pairs_file, places_file)
    facts = {
        "num_pairs": num_pairs,
        "size": size,
        "num_empty": num_empty,
        "empty_lines": empty_lines,
        "notes": [note.removeprefix(str(path)) for note in notes],
    }
    write_facts(folder / _FACTS, facts)
