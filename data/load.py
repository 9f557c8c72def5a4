"""From a file or folder to batches: what a training run reads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from data.encoded_pairs import EncodedPairs
from data.pair_batches import PairBatches, pad_sources
from data.pair_corpus import PairCodec, PairCorpus, load_pairs
from data.segmenters import Segmentation
from data.text_batches import SentenceBatches, StreamBatches
from data.text_corpus import load_corpus
from data.text_splits import SPLITS
from data.vocabulary import Vocabulary
from parity.base.errors import UsageError
from parity.base.special_tokens import PAIR_SPECIAL

# Names of the files that a network trained on pairs needs besides its weights.
_SOURCE, _TARGET = "source.vocabulary.txt", "target.vocabulary.txt"
_DICTIONARY = "user_dictionary.txt"


@dataclass(frozen=True)
class LoadedText:
    """What a training run reads: a TextSource of parity/twins/training/text_source.py, which
    describes the methods.

    Attributes:
      train: the batches of the training split, each a pure function of the step.
      valid: the same of the validation split.
      test: the same of the test split.
      sizes: the sizes of the vocabularies, by field of the model.
      vocabularies: file name -> content of the vocabularies, one token per line.
      content_hash: sha256 of the text and the settings, in hexadecimal.
      notes: one-line remarks for the user.
      best_perplexities: split -> the lowest possible perplexity, where it is known.
      padding: for pairs, kind -> share of the training positions that hold no token.
      pairs: the corpus of pairs, else None.
    """

    train: Any
    valid: Any
    test: Any
    sizes: Mapping[str, int]
    vocabularies: Mapping[str, bytes]
    content_hash: str
    notes: tuple[str, ...]
    best_perplexities: Mapping[str, float | None] = field(default_factory=dict)
    padding: Mapping[str, float] | None = None
    pairs: PairCorpus | None = None

    def best_perplexity(self, split: str) -> float | None:
        return self.best_perplexities.get(split)

    def prefetch(self, function: Callable[[int], Any], start: int, stop: int) -> Prefetch:
        return Prefetch(function, start, stop)

    def num_sources(self, split: str) -> int:
        return int(self._split(split).num_pairs)

    def sources(
        self, split: str, rows: Iterable[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        pairs = self._split(split)
        return pad_sources([pairs.source(row) for row in rows if row < pairs.num_pairs])

    def references(self, split: str) -> list[str]:
        pairs = self._split(split)
        return [pairs.texts(row)[1] for row in range(pairs.num_pairs)]

    def pair(self, split: str, row: int) -> tuple[str, str]:
        return self._split(split).texts(row)

    def write(self, ids: Sequence[int]) -> str:
        if self.pairs is None:
            raise TypeError("this text has no answers")
        return self.pairs.words.write(ids)

    def _split(self, split: str) -> EncodedPairs:
        pairs: EncodedPairs = getattr(self.pairs, split)
        return pairs


Item = TypeVar("Item")


class Prefetch(Iterator[Item]):
    """Iterate over function(step) for start <= step < stop, computed in a background thread.

    An exception in the function is raised in place of its item. Use it as a context manager, or
    call `close`.

    Args:
      function: computes the item of a step; called only in the background thread.
      start: the first step.
      stop: the step after the last.
      depth: the most items that wait to be used.

    Attributes:
      waited: seconds spent so far waiting for an item that was not ready.
    """

    def __init__(
        self, function: Callable[[int], Item], start: int, stop: int, depth: int = 4
    ) -> None:
        self.waited = 0.0
        self._function, self._steps = function, iter(range(start, stop))
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._ahead: deque[Future[Item]] = deque()
        for step in islice(self._steps, depth):
            self._ahead.append(self._thread.submit(function, step))

    def __next__(self) -> Item:
        if not self._ahead:
            raise StopIteration
        started = time.perf_counter()
        try:
            item = self._ahead.popleft().result()
        except BaseException:
            self.close()
            raise
        self.waited += time.perf_counter() - started
        for step in islice(self._steps, 1):
            self._ahead.append(self._thread.submit(self._function, step))
        return item

    def close(self) -> None:
        """Stop the thread when the item it is computing is done."""
        self._ahead.clear()
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Prefetch[Item]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def load_words(
    vocabularies: Mapping[str, bytes], folder: Path, settings: Mapping[str, Any]
) -> PairCodec:
    """Return how a trained network reads questions and writes answers.

    Args:
      vocabularies: file name -> content, as `LoadedText.vocabularies` has them.
      folder: where they are from, for messages.
      settings: the spec's values by name.

    Raises:
      UsageError: naming file and line, if a file is not a vocabulary.
    """
    texts = dict.fromkeys((_SOURCE, _TARGET, _DICTIONARY), "")
    for name, content in vocabularies.items():
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise UsageError(
                f"{folder / name}:{line}: byte 0x{content[error.start]:02x} is not UTF-8"
            ) from None
    dictionary = texts[_DICTIONARY]
    read = {
        name: Vocabulary(
            texts[name].removesuffix("\n").split("\n"),
            source=str(folder / name),
            special=PAIR_SPECIAL,
        )
        for name in (_SOURCE, _TARGET)
    }
    segmentation = Segmentation(
        settings["source_segmenter"], settings["target_segmenter"], settings["hmm"], dictionary
    )
    return PairCodec(
        segmentation,
        read[_SOURCE],
        read[_TARGET],
        settings["turns"],
        settings["source_limit"],
    )


def load_stream_text(
    path: Path | None, cache: Path, settings: Mapping[str, Any], **of_pairs: Any
) -> LoadedText:
    """Read, encode and batch plain text, for a language model.

    Args:
      path: folder of text; None for the embedded corpus.
      cache: folder for encoded corpora.
      settings: the spec's values by name, of model, text and training together.
      **of_pairs: options that only `load_pair_text` reads.

    Raises:
      UsageError: if the text cannot be used.
    """
    del of_pairs
    corpus = load_corpus(path, cache, settings["vocabulary_size"], settings["target_segmenter"])
    corpus = replace(corpus, train=corpus.train.first_lines(settings["train_lines"]))
    sizes = settings["batch_size"], settings["time"]
    batches: dict[str, Any] = {
        split: StreamBatches(getattr(corpus, split), *sizes)
        if settings["batching"] == "stream"
        else SentenceBatches(
            getattr(corpus, split), *sizes, settings["seed"], shuffle=split == "train"
        )
        for split in SPLITS
    }
    return LoadedText(
        **batches,
        sizes={"vocabulary_size": len(corpus.vocabulary)},
        vocabularies={"vocabulary.txt": corpus.vocabulary.content},
        content_hash=corpus.content_hash,
        notes=(*corpus.notes, *batches["train"].notes),
        best_perplexities={split: corpus.best_perplexity(split) for split in SPLITS},
    )


def load_pair_text(
    path: Path | None,
    cache: Path,
    settings: Mapping[str, Any],
    *,
    user_dictionary: Path | None = None,
    on_empty: str = "warn",
) -> LoadedText:
    """Read, segment, encode and batch pairs of texts, for a network that writes answers.

    Args:
      path: folder of pairs, or file of pairs; None for the embedded corpus.
      cache: folder for encoded corpora.
      settings: the spec's values by name, of model, text and training together.
      user_dictionary: jieba's own dictionary of further words.
      on_empty: what to do with pairs that have an empty side: skip, warn or error.

    Raises:
      UsageError: if the text cannot be used.
    """
    corpus = load_pairs(path, cache, settings, user_dictionary, on_empty)
    corpus = replace(corpus, train=corpus.train.first_pairs(settings["train_lines"]))
    batches: dict[str, Any] = {
        split: PairBatches(
            getattr(corpus, split),
            settings["batch_size"],
            settings["seed"],
            shuffle=split == "train",
        )
        for split in SPLITS
    }
    padding = batches["train"].padding()
    source, target = corpus.words.source_vocabulary, corpus.words.target_vocabulary
    vocabularies = {_SOURCE: source.content, _TARGET: target.content}
    if dictionary := corpus.words.segmentation.user_dictionary:
        vocabularies[_DICTIONARY] = dictionary.encode()
    return LoadedText(
        **batches,
        sizes={
            "source_vocabulary_size": len(source),
            "target_vocabulary_size": len(target),
        },
        vocabularies=vocabularies,
        content_hash=corpus.content_hash,
        notes=(*corpus.notes, *batches["train"].notes, _padding_note(**padding)),
        padding=padding,
        pairs=corpus,
    )


def _padding_note(source: float, target: float) -> str:
    return f"training padding: {source:.1%} of question and {target:.1%} of answer positions"
