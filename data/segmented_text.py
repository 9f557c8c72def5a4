"""Text without spaces between its words, written once into the cache with spaces between them.

Whatever encodes and batches text then finds words at spaces, in every script. The cache holds a
folder per content and segmentation, `segmented-<hash>`, with a file for each split.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from data.cache import cached_folder, file_hash, file_stats, settings_hash, sync, write_facts
from data.pair_file import PairBlock
from data.parallel_segmentation import processes_for, segment_blocks
from data.segmenters import Segmentation
from data.text_file import read_blocks
from parity.base.progress import ByteProgressBar

AUTO = "auto"  # stands for the segmenter that suits a text

_FACTS = "facts.json"
_FORMAT = 1  # a change to what is written to the cache must raise this
_LINES_PER_BLOCK = 1000
# Scripts written without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff"
_UNSPACED = f"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff{_CHINESE}"
# A word has one or two such letters on average where a text is segmented, a sentence more.
_LONGEST_MEAN = 4


def choose_segmenter(path: Path) -> tuple[str, str]:
    """Return the segmenter that suits a text, and a remark unless words are at its spaces.

    It is judged by the first megabyte: a text needs a segmenter if most of its letters are of
    scripts without spaces between words, and more than four stand together on average.

    Args:
      path: the training text.

    Raises:
      UsageError: naming file and line, if it cannot be read.
    """
    sample = "".join(islice(read_blocks(path, []), 2))
    if sample.isascii():
        return "spaces", ""
    letters = len(re.findall(r"[^\W\d_]", sample))
    unspaced, chinese = (len(re.findall(f"[{each}]", sample)) for each in (_UNSPACED, _CHINESE))
    words = len(re.findall(rf"\S*[{_UNSPACED}]\S*", sample))
    if 2 * unspaced <= letters or unspaced <= _LONGEST_MEAN * words:
        return "spaces", ""
    other = "another --target-segmenter changes that"
    if 10 * chinese > 9 * unspaced:  # Japanese has kana among its Chinese characters
        return "chinese", f"Chinese without spaces, cut into words by jieba; {other}"
    return "characters", f"no spaces between words, cut into characters; {other}"


def find_words(
    paths: dict[str, Path], cache: Path, segmenter: str
) -> tuple[dict[str, Path], list[tuple[str, str]]]:
    """Return texts whose words stand between spaces, those of the cache or written there.

    Args:
      paths: split -> its text.
      cache: a folder that exists.
      segmenter: one of `data.segmenters.SEGMENTERS`; with "spaces" the texts are those given.

    Returns:
      Split -> its text, with the lines that were given; and remarks, each a split and what
      follows the name of its text.

    Raises:
      UsageError: naming file and line, if a text cannot be read; for another segmenter.
    """
    if segmenter == "spaces":
        return paths, []
    segmentation = Segmentation(segmenter, segmenter, cache=cache)
    stats = file_stats(paths.values())
    settings = {
        "format": _FORMAT,
        "segmentation": segmentation.content_hash,
        "texts": {split: file_hash(path) for split, path in paths.items()},
    }
    target = cache / f"segmented-{settings_hash(settings)[:32]}"

    def make(temporary: Path) -> None:
        notes: list[tuple[str, str]] = []
        for split, path in paths.items():
            remarks: list[str] = []
            _write(path, temporary / f"{split}.txt", segmentation, remarks)
            notes += [(split, remark.removeprefix(str(path))) for remark in remarks]
        write_facts(temporary / _FACTS, {"notes": notes})

    notes = cached_folder(target, _FACTS, make, stats)["notes"]
    return {split: target / f"{split}.txt" for split in paths}, notes


def _write(path: Path, to: Path, segmentation: Segmentation, notes: list[str]) -> None:
    size = path.stat().st_size
    with (
        ByteProgressBar("segmenting", size) as progress,
        to.open("wb") as file,
        contextlib.closing(
            segment_blocks(_blocks(path, notes, progress), segmentation, processes_for(size))
        ) as blocks,
    ):
        for _, (_, lines) in blocks:
            file.write("".join(f"{line}\n" for line in lines).encode())
        sync(file)


def _blocks(path: Path, notes: list[str], progress: ByteProgressBar) -> Iterator[PairBlock]:
    for text in read_blocks(path, notes, progress.add):
        lines = iter(text[:-1].split("\n"))
        while some := list(islice(lines, _LINES_PER_BLOCK)):
            yield PairBlock(targets=some)
