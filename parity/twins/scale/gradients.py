"""The bytes of a step's gradients, and how many rows of an embedding a batch touches."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parity.twins.spec.parameters import parameters
from parity.twins.spec.spec import Spec

_INDEX = 8  # bytes of a row's number


class Gradients(NamedTuple):
    """The bytes of a rank's gradients.

    Attributes:
      dense: of all gradients, as the engines send them here.
      embeddings: of those of embedding tables, which are a part of `dense`.
      sparse: of all gradients, if those of embedding tables were sent as the rows that the
        rank's batch has touched, each with its number.
    """

    dense: float
    embeddings: float
    sparse: float

    @property
    def touched(self) -> float:
        """Return the bytes of the touched rows."""
        return self.sparse - (self.dense - self.embeddings)


@lru_cache(maxsize=4096)
def gradients(spec: Spec, rows: float) -> Gradients:
    """Return the bytes of the gradients of a batch.

    Args:
      spec: the network, its text and its training.
      rows: the number of rows of a rank's batch.
    """
    item = np.dtype(spec.training.dtype).itemsize
    dense = embeddings = touched = 0.0
    for parameter in parameters(spec):
        size = float(np.prod(parameter.shape)) * item
        dense += size
        if parameter.name.endswith("embed/table"):
            vocabulary, width = parameter.shape
            words = rows * _tokens_per_row(spec, parameter.name)
            embeddings += size
            touched += different_words(vocabulary, words) * (width * item + _INDEX)
    return Gradients(dense, embeddings, dense - embeddings + touched)


def different_words(vocabulary: int, words: float) -> float:
    """Return how many different words are expected among some from a Zipf distribution.

    Words of real text are not independent of each other, which makes fewer of them different.
    """
    shares = 1 / np.arange(1, vocabulary + 1)
    shares /= shares.sum()
    return float(-np.expm1(words * np.log1p(-shares)).sum()) if vocabulary > 1 else 1.0


def _tokens_per_row(spec: Spec, table: str) -> int:
    *_, target = times = list(_times(spec))
    return times[0] if table.startswith("encoder/") else target


def _times(spec: Spec) -> Iterable[int]:
    """Yield the most tokens that a row can have: of the source, if any, and of the target."""
    for name in ("source_limit", "target_limit", "time"):
        if hasattr(spec.text, name):
            yield int(getattr(spec.text, name))
