"""Padded batches of encoded pairs: questions [batch, source_time], answers [batch, time].

As in data/text_batches.py, every batch is a pure function of (pairs, arguments, step), and one
of several processes can make its own rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.text_batches import even_bounds, random_keys
from parity.base.errors import UsageError
from parity.base.special_tokens import PAIR_EOS_ID, PAIR_GO_ID

# Of the widths tried on dialogues and on Tatoeba's sentences these are among those that need
# the least padding, and they leave more to chance than 1 and 1, which need as little.
_TARGET_BUCKET = 2  # tokens; answers whose lengths differ by less may share a batch at random
_SOURCE_BUCKET = 1  # the same for questions, among answers of one bucket


@dataclass(frozen=True)
class PairBatch:
    """The batch of one step of training or evaluation, or some of its rows.

    Attributes:
      source: int64 [batch, source_time], questions without markers; 0 beyond each length.
      source_lengths: int64 [batch], each >= 1.
      tokens: int64 [batch, time], inputs of the decoder `<go>` y1 .. yn; 0 beyond each length.
      targets: int64 [batch, time], y1 .. yn `<eos>`; 0 beyond each length.
      lengths: int64 [batch], real targets per row, n + 1.
      carry: always False: no state is carried from one batch to the next.
      first_row: the place of the first of these rows in the whole batch.
      all_lengths: name -> the lengths of all rows of the whole batch, of questions and of
        answers, if these are only some of them; otherwise empty.
    """

    source: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    carry: bool = False
    first_row: int = 0
    all_lengths: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Real targets in these rows."""
        return int(self.lengths.sum())


class Pairs(Protocol):
    """What batches need of a split; `data.encoded_pairs.EncodedPairs` is one.

    Attributes:
      name: for messages.
      num_pairs: the number of rows.
      source_lengths: ids of each question, an integer array [num_pairs].
      target_lengths: ids of each answer, without markers, an integer array [num_pairs].
    """

    name: str
    num_pairs: int
    source_lengths: NDArray[np.integer]
    target_lengths: NDArray[np.integer]

    def source(self, row: int) -> NDArray[np.int32]:
        """Return a question's ids."""

    def target(self, row: int) -> NDArray[np.int32]:
        """Return an answer's ids, without markers."""


class PairBatches:
    """Pairs of similar lengths together, padded to the longest of their batch.

    An epoch's pairs are shuffled, sorted by the length of the answer and, among answers of
    similar length, by that of the question, and cut into the fewest batches of at most
    `batch_size` rows. The sizes of the batches differ by at most one, no pair is dropped, and
    the order of the batches is shuffled too. In one bucket of answers questions are sorted from
    short to long and in the next from long to short, so a batch that spans two buckets has
    questions of similar lengths.

    Args:
      pairs: an encoded split.
      batch_size: the most rows.
      seed: determines the order of an epoch, together with its number.
      shuffle: False keeps the order of the text among pairs of similar lengths, and the batches
        sorted by length: for evaluation. Then there may be fewer pairs than `batch_size`.

    Attributes:
      batches_per_epoch: the number of batches.
      smallest_batch: the rows of the smallest one.
      tokens_per_epoch: the number of real targets, one `<eos>` per pair included.
      notes: one-line remarks for the user.

    Raises:
      UsageError: if there are fewer pairs to train on than `batch_size`.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size {batch_size}: 1 or more is needed")
        if seed < 0:
            raise UsageError(f"seed {seed}: 0 or more is needed")
        if not shuffle:  # for evaluation few pairs are enough
            batch_size = min(batch_size, pairs.num_pairs)
        if pairs.num_pairs < batch_size:
            raise UsageError(
                f"{pairs.name}: {pairs.num_pairs:,} pairs are less than one batch of"
                f" {batch_size:,}"
            )
        self._pairs, self._seed, self._shuffle = pairs, seed, shuffle
        self.notes: tuple[str, ...] = ()
        self.tokens_per_epoch = int(pairs.target_lengths.sum(dtype=np.int64)) + pairs.num_pairs
        self.batches_per_epoch = -(-pairs.num_pairs // batch_size)
        self.smallest_batch = pairs.num_pairs // self.batches_per_epoch
        self._bounds = even_bounds(pairs.num_pairs, self.batches_per_epoch)
        self._plan: tuple[int, NDArray[np.uint32], NDArray[np.uint32]] | None = None

    def rows(self, step: int) -> NDArray[np.int64]:
        """Return the rows of the pairs in the batch of a step, int64 [batch], in its order."""
        order, batch_order = self._epoch_plan(step // self.batches_per_epoch)
        index = int(batch_order[step % self.batches_per_epoch])
        return order[self._bounds[index] : self._bounds[index + 1]].astype(np.int64)

    def size(self, step: int) -> int:
        """Return the number of rows in the batch of a step."""
        return len(self.rows(step))

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
        if rows is None:
            return PairBatch(source, source_lengths, tokens, targets, lengths)
        return PairBatch(
            source,
            source_lengths[rows],
            tokens,
            targets,
            lengths[rows],
            first_row=rows.start,
            all_lengths={"source_lengths": source_lengths, "lengths": lengths},
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

    def _epoch_plan(self, epoch: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the pairs in the order of the batches, and the order of the batches."""
        if not self._shuffle:
            epoch = 0
        plan = self._plan  # read once: another thread may replace it
        if plan is None or plan[0] != epoch:
            keys = self._keys()
            batch_keys: NDArray[np.uint64] = np.zeros(self.batches_per_epoch, dtype=np.uint64)
            if self._shuffle:
                draws = random_keys(self._seed, epoch, 0, self._pairs.num_pairs)
                order = np.lexsort((draws, keys))
                batch_keys = random_keys(self._seed, epoch, 1, self.batches_per_epoch)
            else:
                order = np.argsort(keys, kind="stable")
            batch_order = np.argsort(batch_keys, kind="stable").astype(np.uint32)
            plan = self._plan = (epoch, order.astype(np.uint32), batch_order)
        return plan[1:]

    def _keys(self) -> NDArray[np.int64]:
        """Return the sort keys of pairs: the answer's bucket, then the question's."""
        target = (self._pairs.target_lengths.astype(np.int64) - 1) // _TARGET_BUCKET
        source = (self._pairs.source_lengths.astype(np.int64) - 1) // _SOURCE_BUCKET
        source = np.where(target % 2 == 1, source.max() - source, source)
        return target * (int(source.max()) + 1) + source


def pad_sources(
    sources: Sequence[NDArray[np.integer]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return questions as one array, and their lengths.

    Args:
      sources: the ids of each question; at least one question, with at least one id each.

    Returns:
      source: int64 [batch, source_time], 0 beyond each length.
      source_lengths: int64 [batch].

    Raises:
      UsageError: if there is no question, or one without ids.
    """
    source_lengths = np.array([len(ids) for ids in sources], dtype=np.int64)
    if len(sources) == 0 or source_lengths.min() < 1:
        raise UsageError(
            f"questions of {source_lengths.tolist()} tokens: at least one question is needed,"
            " and at least one token in each"
        )
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
