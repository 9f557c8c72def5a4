"""What a training run reads, and how it is found."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from parity.base.plugins import load_object
from parity.base.progress import say
from parity.cli.options import TrainOptions
from parity.spec.batch_io import StepInputs
from parity.spec.networks import NETWORKS
from parity.spec.spec import Spec


class TrainingText(Protocol):
    """What a run reads; the network's `load_text` makes it.

    Attributes:
      train, valid, test: each with batches_per_epoch, smallest_batch and batch(step).
      content_hash: of text and vocabulary.
      vocabularies: file name -> content of the vocabularies, one token a line.
      padding: of pairs, kind -> share of positions that hold no token.
    """

    train: Any
    valid: Any
    test: Any
    content_hash: str
    vocabularies: Mapping[str, bytes]
    padding: Mapping[str, float] | None

    def prefetch(self, function: Callable[[int], StepInputs], start: int, stop: int) -> Any:
        """Iterate over function(step) for steps start .. stop - 1.

        The iterator has `waited` seconds, and is a context manager.
        """

    def best_perplexity(self, split: str) -> float | None:
        """Return the lowest possible perplexity of a split, or None where it is not known."""

    def num_sources(self, split: str) -> int:
        """Return how many sources a split has; of networks that decode."""

    def sources(self, split: str, rows: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return sources, int64 [rows, source_time], and their lengths; rows beyond the last
        are left out."""

    def references(self, split: str) -> list[str]:
        """Return the answers of a split as they were written."""

    def write(self, tokens: Sequence[int]) -> str:
        """Return what the ids of an answer say, to be read."""


def read_text(spec: Spec, options: TrainOptions) -> tuple[Spec, TrainingText]:
    """Read, encode and batch the text of a network, and say what there is to note.

    Returns:
      The spec with the sizes of the real vocabularies, and the text.

    Raises:
      UsageError: if the text cannot be used.
    """
    text = load_object(NETWORKS[spec.network].load_text)(
        options.data,
        options.cache,
        spec.values(),
        user_dictionary=options.user_dictionary,
        on_empty=options.on_empty,
    )
    for note in text.notes:
        say(note)
    return spec.replace(**text.sizes), text
