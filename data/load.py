"""From a file or folder to batches: what a training run reads, whichever network it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.corpus import SPLITS, load_corpus
from data.language_model import make_batches
from data.pairs import PairCorpus, load_pairs
from data.prefetch import Prefetch
from data.seq2seq import PairBatches


@dataclass(frozen=True)
class TrainingText:
    """What a training run reads.

    Attributes:
      train, valid, test: batches, each a pure function of the step.
      sizes: field of the model -> entries of the vocabulary it is the size of.
      vocabularies: file name -> content of the vocabularies, one token a line.
      content_hash: of text and settings, in hexadecimal.
      notes: one-line remarks for the user.
      best_perplexities: split -> the lowest possible one, where it is known.
      pairs: the corpus behind the batches of pairs, else None.
    """

    train: Any
    valid: Any
    test: Any
    sizes: Mapping[str, int]
    vocabularies: Mapping[str, bytes]
    content_hash: str
    notes: tuple[str, ...]
    best_perplexities: Mapping[str, float | None] = field(default_factory=dict)
    pairs: PairCorpus | None = None

    def best_perplexity(self, split: str) -> float | None:
        """Return the lowest possible perplexity of a split, or None where it is not known."""
        return self.best_perplexities.get(split)

    def prefetch(self, function: Callable[[int], Any], start: int, stop: int) -> Prefetch:
        """Iterate over function(step) for steps start .. stop - 1, made ahead in a thread."""
        return Prefetch(function, start, stop)


def load_text(
    network: str,
    path: Path | None,
    cache: Path,
    settings: Mapping[str, Any],
    *,
    user_dictionary: Path | None = None,
    on_empty: str = "warn",
) -> TrainingText:
    """Read, encode and batch the text of a network.

    Args:
      network: "language-model" or "seq2seq".
      path: folder of text, or of pairs, or file of pairs; None for the embedded corpus.
      cache: folder for encoded corpora.
      settings: the spec's values by name, of model, text and training together.
      user_dictionary: of jieba, for pairs.
      on_empty: what to do with pairs of which one side is empty: skip, warn or error.

    Raises:
      InputError: if the text cannot be used.
    """
    if network == "seq2seq":
        return _pairs(path, cache, settings, user_dictionary, on_empty)
    corpus = load_corpus(path, cache, settings["vocabulary_size"])
    batches = {
        split: make_batches(
            getattr(corpus, split),
            settings["batching"],
            settings["batch_size"],
            settings["time"],
            settings["seed"],
            shuffle=split == "train",
        )
        for split in SPLITS
    }
    return TrainingText(
        **batches,
        sizes={"vocabulary_size": len(corpus.vocabulary)},
        vocabularies={"vocabulary.txt": corpus.vocabulary.content},
        content_hash=corpus.content_hash,
        notes=(*corpus.notes, *batches["train"].notes),
        best_perplexities={split: corpus.best_perplexity(split) for split in SPLITS},
    )


def _pairs(
    path: Path | None,
    cache: Path,
    settings: Mapping[str, Any],
    user_dictionary: Path | None,
    on_empty: str,
) -> TrainingText:
    corpus = load_pairs(
        path,
        cache,
        source_segmenter=settings["source_segmenter"],
        target_segmenter=settings["target_segmenter"],
        hmm=settings["hmm"],
        user_dictionary=user_dictionary,
        source_vocabulary_size=settings["source_vocabulary_size"],
        target_vocabulary_size=settings["target_vocabulary_size"],
        share_vocabulary=settings["share_vocabulary"],
        most_source=settings["source_limit"],
        most_target=settings["target_limit"],
        split_by=settings["split_by"],
        on_empty=on_empty,
    )
    batches = {
        split: PairBatches(
            getattr(corpus, split),
            settings["batch_size"],
            settings["seed"],
            shuffle=split == "train",
        )
        for split in SPLITS
    }
    vocabularies = {
        "source.vocabulary.txt": corpus.source_vocabulary.content,
        "target.vocabulary.txt": corpus.target_vocabulary.content,
    }
    if user_dictionary is not None:
        vocabularies["user_dictionary.txt"] = user_dictionary.read_bytes()
    return TrainingText(
        **batches,
        sizes={
            "source_vocabulary_size": len(corpus.source_vocabulary),
            "target_vocabulary_size": len(corpus.target_vocabulary),
        },
        vocabularies=vocabularies,
        content_hash=corpus.content_hash,
        notes=(*corpus.notes, *batches["train"].notes),
        pairs=corpus,
    )
