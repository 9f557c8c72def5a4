"""Files of pairs: a line is a question, a tab and an answer.

A third column, such as the attribution in Tatoeba's cmn.txt, is left out. In a dialogue each
answer is the next question: a line whose question is not the answer of the line before starts a
conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data.text_file import CUT, read_blocks
from parity.base.errors import UsageError
from parity.base.progress import ByteProgressBar

SPLITS = ("train", "valid", "test")
UNSPLIT = "all"  # stands for a single file that has yet to be split

_PAIRS_PER_BLOCK = 1000


@dataclass(frozen=True)
class PairBlock:
    """Consecutive pairs of a file; the lists have an entry per pair.

    Attributes:
      sources: questions, empty where the line has none.
      targets: answers.
      places: the line number, and the number of the conversation.
    """

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)


def find_pair_files(path: Path) -> dict[str, Path]:
    """Return the file of each split of a folder, or {UNSPLIT: path} for a single file.

    Raises:
      UsageError: if a folder lacks a split.
    """
    if not path.is_dir():
        return {UNSPLIT: path}
    paths = {split: path / f"{split}.tsv" for split in SPLITS}
    missing = [file.name for file in paths.values() if not file.exists()]
    if missing:
        raise UsageError(
            f"{path}: no {' and no '.join(missing)} in this folder; it must hold train.tsv,"
            " valid.tsv and test.tsv"
        )
    return paths


def read_pairs(path: Path, notes: list[str], progress: ByteProgressBar) -> Iterator[PairBlock]:
    """Yield the pairs of a file, about a thousand at a time.

    Args:
      path: the file.
      notes: one-line remarks for the user are appended here.
      progress: counts the bytes that were read.

    Raises:
      UsageError: naming the line, if it does not have 2 or 3 columns, as many as the first.
    """
    block = PairBlock()
    columns, first_line = 0, 0  # of the first line that has any
    previous_answer, conversation = None, -1
    for number, line in _numbered_lines(path, notes, progress):
        source, target = "", ""
        if line.strip():
            fields = line.split("\t")
            if not columns and len(fields) in (2, 3):
                columns, first_line = len(fields), number
            if len(fields) != columns:
                raise _malformed(path, number, len(fields), columns, first_line)
            source, target = fields[0].strip(), fields[1].strip()
        if previous_answer is None or source != previous_answer:
            conversation += 1
        previous_answer = target
        block.sources.append(source)
        block.targets.append(target)
        block.places.append((number, conversation))
        if len(block.places) == _PAIRS_PER_BLOCK:
            yield block
            block = PairBlock()
    if block.places:
        yield block


def _numbered_lines(
    path: Path, notes: list[str], progress: ByteProgressBar
) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, except for those that are too long."""
    number, cut = 0, False
    for text in read_blocks(path, notes, progress.add, mark_cuts=True):
        for line in text[:-1].split("\n"):
            if line.endswith(CUT):
                cut = True
                continue
            number += 1
            if not cut:
                yield number, line
            cut = False


def _malformed(path: Path, number: int, seen: int, columns: int, first_line: int) -> UsageError:
    found = f"{path}:{number}: {seen} column{'s' * (seen != 1)}"
    if seen in (2, 3):
        return UsageError(
            f"{found}, but line {first_line} has {columns}: all must have as many"
        )
    needed = str(columns) if columns else "2 (question, answer) or 3 (and a remark)"
    return UsageError(f"{found}, {needed} are needed, with a tab between")
