"""Pairs of a question and an answer, segmented and encoded once into a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import built_in_pairs as synthetic_pairs
from data.cache import cached_folder, file_hash, file_stats, make_whole, settings_hash
from data.encoded_pairs import FACTS, EncodedPairs, encode_pairs, file_notes, with_turns
from data.pair_file import SPLITS, UNSPLIT, find_pair_files
from data.segmenters import Segmentation, read_user_dictionary
from data.vocabulary import Vocabulary, check_size
from parity.base.errors import UsageError
from parity.base.files import make_folder
from parity.base.special_tokens import PAIR_SPECIAL

_MOST_WORDS = 8  # that a refused question is answered with
_FORMAT = 1  # a change to what is written to the cache, or how, must raise this


@dataclass(frozen=True)
class PairCodec:
    """Both vocabularies of pairs, and how text is segmented into their tokens.

    Attributes:
      segmentation: how questions and answers are segmented.
      source_vocabulary: the vocabulary of questions.
      target_vocabulary: the vocabulary of answers.
      turns: how many earlier turns of a conversation stand before a question.
      source_limit: the most tokens of a question with them.
    """

    segmentation: Segmentation
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    turns: int = 0
    source_limit: int | None = None

    def read(self, question: str, earlier: Sequence[str] = ()) -> NDArray[np.int32]:
        """Return the ids of a question, int32 [source_time].

        Args:
          question: what was typed.
          earlier: the conversation before it, questions and answers in turn.

        Raises:
          UsageError: if it holds no word, or only words that are not in the vocabulary.
        """
        segment, vocabulary = self.segmentation.segment_source, self.source_vocabulary
        words = segment(question)
        if not words:
            raise UsageError(f"question {question[:80]!r}: there is no word in it")
        ids = vocabulary.encode_words(words)
        if bool((ids == vocabulary.unknown_id).all()):
            raise UsageError(
                f"question {question[:80]!r}: none of its words is in the vocabulary:"
                f" {' '.join(words)[:80]}; it has words such as"
                f" {' '.join(self.examples(question))}"
            )
        turns = [segment(turn) for turn in earlier[-self.turns :]] if self.turns else []
        return vocabulary.encode_words(with_turns(turns, words, self.source_limit))

    def examples(self, question: str = "") -> list[str]:
        """Return words of questions that are known: those that share a letter, then the rest.

        Both kinds come the most frequent first, and punctuation is left out.
        """
        vocabulary = self.source_vocabulary
        words = [
            word for word in vocabulary.tokens[len(vocabulary.special) :] if word[:1].isalnum()
        ]
        # of Chinese: a word of Latin letters shares some with nearly every other
        letters = {letter for letter in question if letter.isalnum() and not letter.isascii()}
        alike = [word for word in words if letters & set(word)]
        return list(dict.fromkeys([*alike[:_MOST_WORDS], *words]))[:_MOST_WORDS]

    def write(self, ids: Sequence[int]) -> str:
        """Return the text of an answer's ids."""
        return self.segmentation.join_target(self.target_vocabulary.decode(ids))


@dataclass(frozen=True)
class PairCorpus:
    """Two vocabularies and three encoded splits.

    Attributes:
      words: how text becomes ids, and ids text: by the vocabularies of the training split, the
        same one twice if it is shared.
      train: the training split.
      valid: the validation split.
      test: the test split.
      notes: one-line remarks for the user, the same whether read from the cache or not.
      content_hash: sha256 of the texts and the settings, in hexadecimal.
    """

    words: PairCodec
    train: EncodedPairs
    valid: EncodedPairs
    test: EncodedPairs
    notes: tuple[str, ...]
    content_hash: str


def load_pairs(
    path: Path | None,
    cache: Path,
    settings: Mapping[str, Any],
    user_dictionary: Path | None = None,
    on_empty: str = "warn",
    processes: int | None = None,
) -> PairCorpus:
    """Segment and encode pairs, or find that done in the cache.

    Args:
      path: a file of pairs, or a folder that holds train.tsv, valid.tsv and test.tsv; None for
        the embedded corpus, which is then written into the cache.
      cache: a folder of its own, created if missing. Several processes may use it at once.
      settings: by name the values of the spec's fields that say how pairs are segmented and
        split, and how large the vocabularies and how long the pairs may be; None: no limit.
      user_dictionary: a file of additional words for `chinese`.
      on_empty: "skip" drops pairs with an empty side, "warn" also notes them, "error" refuses
        them.
      processes: how many segment; None for as many as there are cores, fewer for little text.

    Raises:
      UsageError: naming file and line, if the pairs cannot be used; for vocabularies of a size
        that is not allowed.
    """
    _check_sizes(settings)
    notes: list[str] = []
    words = "" if user_dictionary is None else read_user_dictionary(user_dictionary, notes)
    segmenters = settings["source_segmenter"], settings["target_segmenter"]
    segmentation = Segmentation(*segmenters, settings["hmm"], words, cache)
    make_folder(cache, read_only=True)
    if path is None:
        path = _embedded_file(cache)
    paths = find_pair_files(path)
    if settings["turns"] and UNSPLIT in paths and settings["split_by"] == "source":
        raise UsageError(
            f"{path}: --turns {settings['turns']} with --split-by source would put a"
            " conversation's turns into several splits; allowed: --split-by block"
        )
    stats = file_stats(paths.values())
    hashes = {name: file_hash(file) for name, file in paths.items()}
    encoded = _encoded_by(settings, segmentation, hashes)
    content_hash = settings_hash(encoded)
    folder = cache / f"pairs-{content_hash[:32]}"
    facts = cached_folder(
        folder,
        FACTS,
        lambda temporary: encode_pairs(paths, segmentation, processes, encoded, temporary),
        stats,
    )
    for name, file in paths.items():
        notes += file_notes(file, facts["files"][name], on_empty)
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
    limits = settings["turns"], settings["source_limit"]
    return PairCorpus(
        PairCodec(segmentation, vocabularies["source"], vocabularies["target"], *limits),
        **splits,
        notes=tuple(notes),
        content_hash=content_hash,
    )


def _check_sizes(settings: Mapping[str, Any]) -> None:
    sizes = settings["source_vocabulary_size"], settings["target_vocabulary_size"]
    for size in sizes:
        check_size(size, PAIR_SPECIAL)
    if settings["share_vocabulary"] and sizes[0] != sizes[1]:
        raise UsageError(
            f"vocabulary sizes {sizes[0]} and {sizes[1]}: with a shared vocabulary both"
            " must be the same"
        )


def _encoded_by(
    settings: Mapping[str, Any], segmentation: Segmentation, hashes: dict[str, str]
) -> dict[str, Any]:
    """Return what the encoded pairs depend on; its hash names them, so its keys stay."""
    return {
        "format": _FORMAT,
        "segmented": {
            name: settings_hash(
                {"format": 1, "text": text, "segmentation": segmentation.content_hash}
            )
            for name, text in hashes.items()
        },
        "source_vocabulary_size": settings["source_vocabulary_size"],
        "target_vocabulary_size": settings["target_vocabulary_size"],
        "share_vocabulary": settings["share_vocabulary"],
        "most_source": settings["source_limit"],
        "most_target": settings["target_limit"],
        "split_by": settings["split_by"] if list(hashes) == [UNSPLIT] else None,
        "special": PAIR_SPECIAL,
    } | ({"turns": settings["turns"]} if settings["turns"] else {})


def _embedded_file(cache: Path) -> Path:
    folder = cache / f"embedded-pairs-{synthetic_pairs.VERSION}"
    make_whole(folder, lambda temporary: synthetic_pairs.write_pairs(temporary / "pairs.tsv"))
    return folder / "pairs.tsv"
