"""Tokens and their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.text_file import read_lines
from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.base.special_tokens import TEXT_SPECIAL, UNKNOWN

FEWEST_WORDS = 2  # with a single word there is nothing to predict

_MOSTLY_UNKNOWN = 0.2  # share of unknown words above which a warning is given
_FINER = {"chinese": " characters", "spaces": ""}  # segmenter -> what to try in its place


class Vocabulary:
    """Tokens in the order of their ids, special tokens first.

    Args:
      tokens: all tokens, including the special ones.
      source: where they come from, for messages.
      special: the tokens that must come first, `<unk>` among them.

    Raises:
      UsageError: if a special token is missing or not in its place, if a token is repeated,
        empty or contains white space, or if there are fewer than two words.
    """

    def __init__(
        self,
        tokens: Iterable[str],
        source: str = "vocabulary",
        special: Sequence[str] = TEXT_SPECIAL,
    ) -> None:
        self.tokens: tuple[str, ...] = tuple(tokens)
        self.special: tuple[str, ...] = tuple(special)
        self.unknown_id = self.special.index(UNKNOWN)
        self._ids: dict[str, int] = {}
        for line, token in enumerate(self.tokens, 1):
            if not token.strip():
                raise UsageError(
                    f"{source}:{line}: a blank line, a token is needed on every line"
                )
            if token.split() != [token]:
                raise UsageError(f"{source}:{line}: token {token!r} holds white space")
            if token in self._ids:
                first = self._ids[token] + 1
                raise UsageError(f"{source}:{line}: token {token!r} is already on line {first}")
            self._ids[token] = line - 1
        for place, token in enumerate(self.special, 1):
            if token not in self._ids:
                raise UsageError(
                    f"{source}: token {token} is missing, it must be on line {place}"
                )
            if self._ids[token] != place - 1:
                seen = self._ids[token] + 1
                raise UsageError(f"{source}:{seen}: token {token} must be on line {place}")
        words = self.tokens[len(self.special) :]
        if len(words) < FEWEST_WORDS:
            found = ", ".join(map(repr, words)) or "no word"
            before = ", ".join(self.special[:-1])
            raise UsageError(
                f"{source}: besides {before} and {self.special[-1]} the vocabulary holds"
                f" {found}; at least {FEWEST_WORDS} words are needed"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def encode_words(self, words: Sequence[str]) -> NDArray[np.int32]:
        """Return ids, int32 [words]; a word spelled like a special token is `<unk>`.

        So no input can end a row or count as padding.
        """
        found = map(self._ids.get, words, repeat(self.unknown_id))
        ids = np.fromiter(found, dtype=np.int32, count=len(words))
        ids[ids < len(self.special)] = self.unknown_id
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of ids.

        Raises:
          UsageError: if an id is not in 0 .. size - 1.
        """
        array = np.asarray(list(ids), dtype=np.int64)
        check_tokens(array, len(self))
        return [self.tokens[place] for place in array]

    def save(self, path: Path) -> None:
        """Write one token per line; its id is the line number minus one.

        Raises:
          UsageError: if the file cannot be written.
        """
        write_whole(path, self.content)

    @classmethod
    def load(cls, path: Path, special: Sequence[str] = TEXT_SPECIAL) -> Vocabulary:
        """Read what `save` wrote.

        Raises:
          UsageError: naming the line, if the file is not a vocabulary.
        """
        return cls(read_lines(path, []), source=str(path), special=special)

    @property
    def content(self) -> bytes:
        """The vocabulary file: one token per line."""
        return "".join(f"{token}\n" for token in self.tokens).encode()


def build_vocabulary(
    counts: Mapping[str, int],
    max_size: int | None,
    source: str = "vocabulary",
    special: Sequence[str] = TEXT_SPECIAL,
) -> Vocabulary:
    """Take the most frequent words; among equally frequent ones, in code point order.

    Args:
      counts: word -> occurrences. A word spelled like a special token is that token.
      max_size: the largest size, special tokens included; None for no limit.
      source: where the words come from, for messages.
      special: the tokens that come first.

    Raises:
      UsageError: if the size is too small or there are fewer than two words.
    """
    check_size(max_size, special)
    words = sorted(counts.keys() - set(special), key=lambda word: (-counts[word], word))
    limit = None if max_size is None else max_size - len(special)
    return Vocabulary((*special, *words[:limit]), source=source, special=special)


def check_size(max_size: int | None, special: Sequence[str] = TEXT_SPECIAL) -> None:
    """Refuse a vocabulary size that leaves too little room, before any text is read.

    Raises:
      UsageError: if it does.
    """
    smallest = len(special) + FEWEST_WORDS
    if max_size is not None and max_size < smallest:
        raise UsageError(
            f"vocabulary size {max_size}: at least {smallest} is needed,"
            f" {len(special)} special tokens and {FEWEST_WORDS} words"
        )


def unknown_notes(
    words: str, share: float, size: int, limit: int | None, segmenter: str, side: str = ""
) -> list[str]:
    """Return a remark on a text of which many words are unknown, else none.

    Args:
      words: what they are words of, such as "words for test".
      share: the share that is `<unk>`.
      size: the number of entries in the vocabulary.
      limit: the largest size that was allowed.
      segmenter: what made the words, one of `data.segmenters.SEGMENTERS`.
      side: "source" or "target" of pairs, as the flags have it.
    """
    if share <= _MOSTLY_UNKNOWN:
        return []
    full = size == limit
    flag = f"--{side}-vocabulary-size" if side else "--vocabulary-size"
    advice = f"try a larger {flag}" if full else "try more training text"
    if segmenter in _FINER:
        other = "" if _FINER[segmenter] else "another "
        advice += f" or {other}--{side or 'target'}-segmenter{_FINER[segmenter]}"
    return [
        f": {share:.1%} of the {words} are {UNKNOWN} with a vocabulary of {size:,}; more than"
        f" {_MOSTLY_UNKNOWN:.0%} teaches a model little: {advice}"
    ]


def check_tokens(
    ids: NDArray[np.integer], vocabulary_size: int, source: str = "tokens"
) -> None:
    """Refuse ids that are not in the vocabulary, before a framework sees them.

    Args:
      ids: an integer array of any shape.
      vocabulary_size: the number of entries.
      source: where the ids come from, for messages.

    Raises:
      UsageError: naming the first such id and its position.
    """
    if ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < vocabulary_size):
        return
    first = int(np.flatnonzero((ids < 0) | (ids >= vocabulary_size))[0])
    position = tuple(int(i) for i in np.unravel_index(first, ids.shape))
    where = position[0] if len(position) == 1 else position
    raise UsageError(
        f"{source}: token id {int(ids.flat[first])} at position {where} is not in"
        f" 0 .. {vocabulary_size - 1}"
    )
