"""The text that a training reads: its interface, and loading it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from parity.base.plugins import load_object
from parity.base.progress import say
from parity.twins.cli.options import RunOptions, TrainOptions
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs


class TextSource(Protocol):
    """The batches of a text, made by the network's `load_text`.

    Attributes:
      train: the training text, with batches_per_epoch, smallest_batch and batch(step); for
        strategies of several processes also with size(step), a number of rows, and
        batch(step, rows), the batch of some rows alone; see data/text_batches.py.
      valid: the validation text, likewise.
      test: the test text, likewise.
      content_hash: a hash of text and vocabulary.
      vocabularies: file name -> content of a vocabulary file, one token per line.
      padding: for pairs, "source" and "target" -> share of positions without a token.
    """

    train: Any
    valid: Any
    test: Any
    content_hash: str
    vocabularies: Mapping[str, bytes]
    padding: Mapping[str, float] | None

    def prefetch(self, function: Callable[[int], StepInputs], start: int, stop: int) -> Any:
        """Compute function(step) ahead of time, for steps `start` to `stop` - 1.

        Returns:
          An iterator over the results, also a context manager, whose attribute `waited` is the
          number of seconds that its user has waited for results.
        """

    def best_perplexity(self, split: str) -> float | None:
        """Return the lowest possible perplexity of a split, or None if it is unknown."""

    def num_sources(self, split: str) -> int:
        """Return the number of sources in a split; only for networks that decode."""

    def sources(self, split: str, rows: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return sources, int64 [rows, source_time], and their lengths; rows past the last one
        are left out."""

    def references(self, split: str) -> list[str]:
        """Return the reference answers of a split, as they are in the text."""

    def pair(self, split: str, row: int) -> tuple[str, str]:
        """Return a question of a split and its reference answer, as they are in the text."""

    def write(self, tokens: Sequence[int]) -> str:
        """Return an answer, given as token ids, as readable text."""


def read_text(spec: Spec, options: TrainOptions) -> tuple[Spec, TextSource]:
    """Read, encode and batch the text of a network, and print its notes.

    Returns:
      The spec with the vocabulary sizes of the text, and the text.

    Raises:
      UsageError: if the text cannot be used.
    """
    text = load_text(spec, options)
    for note in text.notes:
        say(note)
    return spec.replace(**text.sizes), text


def load_text(spec: Spec, options: TrainOptions | RunOptions) -> Any:
    """Read, encode and batch the text of a network; arguments and errors of `read_text`."""
    return load_object(NETWORKS[spec.network].load_text)(
        options.data,
        options.cache,
        spec.values(),
        user_dictionary=options.user_dictionary,
        on_empty=options.on_empty,
    )
