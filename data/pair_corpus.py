"""Pairs of a question and an answer, segmented and encoded once into a cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import built_in_pairs as synthetic_pairs
from data.cache import cached_folder, file_hash, file_stats, make_whole, settings_hash
from data.encoded_pairs import FACTS, EncodedPairs, encode_pairs, file_notes
from data.pair_file import SPLITS, UNSPLIT, find_pair_files
from data.segmenters import Segmentation, read_user_dictionary
from data.vocabulary import Vocabulary, check_size
from parity.base.errors import UsageError
from parity.base.files import make_folder
from parity.base.special_tokens import PAIR_SPECIAL

_FORMAT = 1  # a change to what is written to the cache, or how, must raise this


@dataclass(frozen=True)
class PairOptions:
    """How pairs are read, segmented, encoded and split.

    Attributes:
      source_segmenter: segments questions, one of `data.segmenters.SEGMENTERS`.
      target_segmenter: segments answers.
      hmm: whether `chinese` guesses words that are in no dictionary.
      user_dictionary: a file of additional words for `chinese`.
      source_vocabulary_size: the largest, special tokens included; None for every word.
      target_vocabulary_size: the same for answers.
      share_vocabulary: one vocabulary for both sides; both sizes must then be equal.
      source_limit: the most tokens of a question; pairs with more are dropped. None: no limit.
      target_limit: the same for answers, without markers.
      turns: how many earlier turns of a conversation stand before a question, as many of them
        as `source_limit` leaves room for; see `with_turns`.
      split_by: how a single file is split, "source" or "block"; see data/pair_splits.py.
      on_empty: "skip" drops pairs with an empty side, "warn" also notes them, "error" refuses
        them.

    Raises:
      UsageError: for a value that is not allowed.
    """

    source_segmenter: str = "chinese"
    target_segmenter: str = "chinese"
    hmm: bool = True
    user_dictionary: Path | None = None
    source_vocabulary_size: int | None = None
    target_vocabulary_size: int | None = None
    share_vocabulary: bool = False
    source_limit: int | None = 50
    target_limit: int | None = 50
    turns: int = 0
    split_by: str = "source"
    on_empty: str = "warn"

    def __post_init__(self) -> None:
        sizes = self.source_vocabulary_size, self.target_vocabulary_size
        for size in sizes:
            check_size(size, PAIR_SPECIAL)
        if self.share_vocabulary and sizes[0] != sizes[1]:
            raise UsageError(
                f"vocabulary sizes {sizes[0]} and {sizes[1]}: with a shared vocabulary both"
                " must be the same"
            )


@dataclass(frozen=True)
class PairCorpus:
    """Two vocabularies and three encoded splits.

    Attributes:
      source_vocabulary: the vocabulary of questions, from the training split.
      target_vocabulary: the vocabulary of answers; the same one if it is shared.
      segmentation: how text becomes tokens, and tokens text.
      train: the training split.
      valid: the validation split.
      test: the test split.
      notes: one-line remarks for the user, the same whether read from the cache or not.
      content_hash: sha256 of the texts and the settings, in hexadecimal.
    """

    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    segmentation: Segmentation
    train: EncodedPairs
    valid: EncodedPairs
    test: EncodedPairs
    notes: tuple[str, ...]
    content_hash: str


def load_pairs(
    path: Path | None,
    cache: Path,
    options: PairOptions = PairOptions(),
    processes: int | None = None,
) -> PairCorpus:
    """Segment and encode pairs, or find that done in the cache.

    Args:
      path: a file of pairs, or a folder that holds train.tsv, valid.tsv and test.tsv; None for
        the embedded corpus, which is then written into the cache.
      cache: a folder of its own, created if missing. Several processes may use it at once.
      options: how the pairs are read, segmented, encoded and split.
      processes: how many segment; None for as many as there are cores, fewer for little text.

    Raises:
      UsageError: naming file and line, if the pairs cannot be used.
    """
    notes: list[str] = []
    segmentation = _segmentation(options, cache, notes)
    make_folder(cache, read_only=True)
    if path is None:
        path = _embedded_file(cache)
    paths = find_pair_files(path)
    if options.turns and UNSPLIT in paths and options.split_by == "source":
        raise UsageError(
            f"{path}: --turns {options.turns} with --split-by source would put a conversation's"
            " turns into several splits; allowed: --split-by block"
        )
    stats = file_stats(paths.values())
    hashes = {name: file_hash(file) for name, file in paths.items()}
    settings = _settings(options, segmentation, hashes)
    content_hash = settings_hash(settings)
    folder = cache / f"pairs-{content_hash[:32]}"
    facts = cached_folder(
        folder,
        FACTS,
        lambda temporary: encode_pairs(paths, segmentation, processes, settings, temporary),
        stats,
    )
    for name, file in paths.items():
        notes += file_notes(file, facts["files"][name], options.on_empty)
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
    )


def _segmentation(options: PairOptions, cache: Path, notes: list[str]) -> Segmentation:
    words = ""
    if options.user_dictionary is not None:
        words = read_user_dictionary(options.user_dictionary, notes)
    return Segmentation(
        options.source_segmenter, options.target_segmenter, options.hmm, words, cache
    )


def _settings(
    options: PairOptions, segmentation: Segmentation, hashes: dict[str, str]
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
        "source_vocabulary_size": options.source_vocabulary_size,
        "target_vocabulary_size": options.target_vocabulary_size,
        "share_vocabulary": options.share_vocabulary,
        "most_source": options.source_limit,
        "most_target": options.target_limit,
        "split_by": options.split_by if list(hashes) == [UNSPLIT] else None,
        "special": PAIR_SPECIAL,
    } | ({"turns": options.turns} if options.turns else {})


def _embedded_file(cache: Path) -> Path:
    folder = cache / f"embedded-pairs-{synthetic_pairs.VERSION}"
    make_whole(folder, lambda temporary: synthetic_pairs.write_pairs(temporary / "pairs.tsv"))
    return folder / "pairs.tsv"
