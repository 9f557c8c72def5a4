"""Padded batches of encoded pairs: questions [batch, source_time], answers [batch, time].

As in data/text_batches.py, every batch is a pure function of (pairs, arguments, step), and one
of several processes can make its own rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.encoded_pairs import EncodedPairs
from data.text_batches import Batch, ShuffledBatches
from parity.base.errors import UsageError
from parity.base.special_tokens import PAIR_EOS_ID, PAIR_GO_ID

# Of the widths tried on dialogues and on Tatoeba's sentences these are among those that need
# the least padding, and they leave more to chance than 1 and 1, which need as little.
_TARGET_BUCKET = 2  # tokens; answers whose lengths differ by less may share a batch at random
_SOURCE_BUCKET = 1  # the same for questions, among answers of one bucket


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """The batch of one step of training or evaluation, or some of its rows.

    Attributes:
      source: int64 [batch, source_time], questions without markers; 0 beyond each length.
      source_lengths: int64 [batch], each >= 1.
      tokens: int64 [batch, time], inputs of the decoder `<go>` y1 .. yn; 0 beyond each length.
      targets: int64 [batch, time], y1 .. yn `<eos>`; 0 beyond each length.
      lengths: int64 [batch], real targets per row, n + 1.
      carry: always False: no state is carried from one batch to the next.
      first_row, all_lengths: as of `Batch`.
    """

    source: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    carry: bool = False


class PairBatches(ShuffledBatches):
    """Pairs of similar lengths together, padded to the longest of their batch.

    Pairs are sorted by the length of the answer and, among answers of similar length, by that
    of the question. In one bucket of answers questions are sorted from short to long and in the
    next from long to short, so a batch that spans two buckets has questions of similar lengths.

    Args:
      pairs: an encoded split.
      batch_size, seed, shuffle: as for `ShuffledBatches`; to evaluate there may be fewer pairs
        than `batch_size`.

    Raises:
      UsageError: if there are fewer pairs to train on than `batch_size`.
    """

    def __init__(
        self, pairs: EncodedPairs, batch_size: int, seed: int, shuffle: bool = True
    ) -> None:
        if not shuffle:  # for evaluation few pairs are enough
            batch_size = min(batch_size, pairs.num_pairs)
        if pairs.num_pairs < batch_size:
            raise UsageError(
                f"{pairs.name}: {pairs.num_pairs:,} pairs are less than one batch of"
                f" {batch_size:,}"
            )
        super().__init__(pairs.num_pairs, batch_size, seed, shuffle)
        self._pairs = pairs

    def batch(self, step: int, rows: slice | None = None) -> PairBatch:
        """Return the batch of a step; step // batches_per_epoch is the epoch.

        Args:
          step: the step.
          rows: the rows to make, which are padded as in the whole batch; None for all.
        """
        pairs = self.rows(step)
        source_lengths = self._pairs.source_lengths[pairs].astype(np.int64)
        lengths = self._pairs.target_lengths[pairs].astype(np.int64) + 1
        if rows is not None:
            pairs = pairs[rows]
        source = np.zeros((len(pairs), int(source_lengths.max())), dtype=np.int64)
        tokens = np.zeros((len(pairs), int(lengths.max())), dtype=np.int64)
        targets = np.zeros_like(tokens)
        tokens[:, 0] = PAIR_GO_ID
        for row, pair in enumerate(pairs.tolist()):
            question, ids = self._pairs.source(pair), self._pairs.target(pair)
            source[row, : len(question)] = question
            tokens[row, 1 : len(ids) + 1] = ids
            targets[row, : len(ids)] = ids
            targets[row, len(ids)] = PAIR_EOS_ID
        part = rows or slice(0, None)
        return PairBatch(
            tokens,
            targets,
            lengths[part],
            part.start,
            {} if rows is None else {"source_lengths": source_lengths, "lengths": lengths},
            source=source,
            source_lengths=source_lengths[part],
        )

    def padding(self) -> dict[str, float]:
        """Return the shares of positions that hold no token, in the first epoch.

        They are those of `source` [batch, source_time] and of `target` [batch, time], each
        batch padded to its own longest rows.
        """
        order, _ = self._epoch_plan(0)
        sources, targets = self._pairs.source_lengths, self._pairs.target_lengths
        return {
            "source": _padded_share(sources[order], self._bounds, 0),
            "target": _padded_share(targets[order], self._bounds, 1),
        }

    def _order(self, draws: NDArray[np.uint64]) -> NDArray[np.integer]:
        target = (self._pairs.target_lengths.astype(np.int64) - 1) // _TARGET_BUCKET
        source = (self._pairs.source_lengths.astype(np.int64) - 1) // _SOURCE_BUCKET
        source = np.where(target % 2 == 1, source.max() - source, source)
        return np.lexsort((draws, source, target))


def pad_sources(
    sources: Sequence[NDArray[np.integer]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return questions as one array, and their lengths.

    Args:
      sources: the ids of each question; at least one question, with at least one id each.

    Returns:
      source: int64 [batch, source_time], 0 beyond each length.
      source_lengths: int64 [batch].
    """
    source_lengths = np.array([len(ids) for ids in sources], dtype=np.int64)
    source = np.zeros((len(sources), int(source_lengths.max())), dtype=np.int64)
    for row, ids in enumerate(sources):
        source[row, : len(ids)] = ids
    return source, source_lengths


def _padded_share(
    lengths: NDArray[np.integer], bounds: NDArray[np.int64], markers: int
) -> float:
    """Return the share of padded positions if rows are cut into batches at `bounds`."""
    longest = np.maximum.reduceat(lengths, bounds[:-1]).astype(np.int64) + markers
    positions = int((longest * np.diff(bounds)).sum())
    real = int(lengths.sum(dtype=np.int64)) + markers * len(lengths)
    return 1 - real / positions
