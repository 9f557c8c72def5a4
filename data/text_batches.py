"""Batches [batch, time] of encoded text: a continuous stream, or one sentence per row.

Every batch is a pure function of (text, arguments, step), so all runs read the same batches,
resumed ones included. The order is random, but the same on every machine: it is that of raw
64-bit draws of PCG64, whose stream NumPy promises never to change (unlike that of
`Generator.permutation`).

One of several processes that share a batch can make its own rows alone. It then reads only
their tokens: the lengths of all rows are known without any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data.text_corpus import EncodedText
from parity.base.errors import UsageError
from parity.base.special_tokens import TEXT_EOS_ID

_BUCKET = 4  # tokens; sentences whose lengths differ by less may share a batch at random


@dataclass(frozen=True)
class Batch:
    """The batch of one step of training or evaluation, or some of its rows.

    Attributes:
      tokens: int64 [batch, time], the inputs; 0 beyond each length.
      targets: int64 [batch, time], the token after each input; 0 beyond each length.
      lengths: int64 [batch], real targets per row.
      carry: whether the state continues from the previous batch; otherwise it starts at zero.
      first_row: the place of the first of these rows in the whole batch.
      all_lengths: name -> the lengths of all rows of the whole batch, if these are only some
        of them; otherwise empty.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    carry: bool
    first_row: int = 0
    all_lengths: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Real targets in these rows."""
        return int(self.lengths.sum())


class ShuffledBatches:
    """Rows of similar lengths together, in the fewest batches of at most so many rows each.

    The sizes of the batches differ by at most one and no row is dropped. An epoch has an order
    of its own, of the rows as far as `_order` leaves it open, and of the batches.

    Args:
      num_rows: the number of rows.
      batch_size: the most rows of a batch.
      seed: determines the order of an epoch, together with its number.
      shuffle: False keeps the order of the text among rows of similar length, and the batches
        sorted by length: for evaluation.

    Attributes:
      batches_per_epoch: the number of batches.
      smallest_batch: the rows of the smallest one.
      notes: one-line remarks for the user.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, num_rows: int, batch_size: int, seed: int, shuffle: bool) -> None:
        self.batches_per_epoch = -(-num_rows // batch_size)
        self.smallest_batch = num_rows // self.batches_per_epoch
        self._num_rows, self._seed, self._shuffle = num_rows, seed, shuffle
        self._bounds = even_bounds(num_rows, self.batches_per_epoch)
        self._plan: tuple[int, NDArray[np.uint32], NDArray[np.uint32]] | None = None

    def size(self, step: int) -> int:
        """Return the number of rows in the batch of a step."""
        return len(self.rows(step))

    def rows(self, step: int) -> NDArray[np.uint32]:
        """Return the rows of the text in the batch of a step, in its order."""
        order, batch_order = self._epoch_plan(step // self.batches_per_epoch)
        index = int(batch_order[step % self.batches_per_epoch])
        return order[self._bounds[index] : self._bounds[index + 1]]

    def _order(self, draws: NDArray[np.uint64]) -> NDArray[np.integer]:
        """Return the rows sorted by length, those of similar length by numbers [num_rows]."""
        raise NotImplementedError

    def _epoch_plan(self, epoch: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the rows in the order of the batches, and the order of the batches."""
        if not self._shuffle:
            epoch = 0
        plan = self._plan  # read once: another thread may replace it
        if plan is None or plan[0] != epoch:
            draws, batch_draws = (
                random_keys(self._seed, epoch, stream, count)
                if self._shuffle
                else np.zeros(count, dtype=np.uint64)
                for stream, count in enumerate((self._num_rows, self.batches_per_epoch))
            )
            batch_order = np.argsort(batch_draws, kind="stable").astype(np.uint32)
            plan = self._plan = (epoch, self._order(draws).astype(np.uint32), batch_order)
        return plan[1:]


class StreamBatches:
    """Contiguous rows of a text read in parallel, [batch, time] per step.

    The num_tokens - 1 pairs of a token and the next one are cut into `batch_size` rows whose
    lengths differ by at most one, and each row is read from left to right. Each pair is used
    exactly once per epoch. Only the last batch of an epoch has lengths below `time`, possibly
    0.

    Args:
      text: an encoded text.
      batch_size: rows.
      time: targets per row.

    Attributes:
      batches_per_epoch, smallest_batch, notes: as of `ShuffledBatches`.
      tokens_per_epoch: the number of real targets.

    Raises:
      UsageError: if the text is shorter than one batch.

    Source: Zaremba et al. 2014, arXiv:1409.2329; they drop the pairs left over.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, text: EncodedText, batch_size: int, time: int) -> None:
        needed = batch_size * time + 1
        if text.num_tokens < needed:
            raise UsageError(
                f"{text.name}: {text.num_tokens:,} tokens are less than one batch: {batch_size}"
                f" rows x {time} tokens need {needed:,}; a smaller --batch-size or --time fewer"
            )
        self.smallest_batch = batch_size
        self.tokens_per_epoch = text.num_tokens - 1
        self._text, self._time = text, time
        bounds = even_bounds(self.tokens_per_epoch, batch_size)
        self._starts, self._sizes = bounds[:-1], np.diff(bounds)
        self.batches_per_epoch = -(-int(self._sizes.max()) // time)

    def size(self, step: int) -> int:
        """Return the number of rows in the batch of a step."""
        return len(self._sizes)

    def batch(self, step: int, rows: slice | None = None) -> Batch:
        """Return the batch of a step, always [batch_size, time].

        Args:
          step: the step; step // batches_per_epoch is the epoch.
          rows: the rows to make, which are padded as in the whole batch; None for all.
        """
        index = step % self.batches_per_epoch
        column = index * self._time
        all_lengths = np.clip(self._sizes - column, 0, self._time)
        own = rows or slice(None)
        lengths, starts = all_lengths[own], self._starts[own] + column
        tokens = np.zeros((len(lengths), self._time), dtype=np.int64)
        targets = np.zeros_like(tokens)
        for row, (start, length) in enumerate(
            zip(starts.tolist(), lengths.tolist(), strict=True)
        ):
            if length:
                ids = self._text.read(start, start + length + 1)
                tokens[row, :length] = ids[:-1]
                targets[row, :length] = ids[1:]
        part = _part(rows, all_lengths)
        return Batch(tokens, targets, lengths, index > 0, *part)


class SentenceBatches(ShuffledBatches):
    """One sentence per row, padded to the longest of its batch.

    A row reads `<eos>` w1 .. wn and its targets are w1 .. wn `<eos>`. Lines without words are
    left out. A sentence of more than `max_length` targets is cut into consecutive rows; each
    starts with the token before it, but with a zero state. Rows are sorted by length in steps
    of a few tokens.

    Args:
      text: an encoded text.
      max_length: the most targets of a row.
      batch_size, seed, shuffle: as for `ShuffledBatches`.

    Raises:
      UsageError: if the text has fewer rows than `batch_size`.
    """

    def __init__(
        self,
        text: EncodedText,
        batch_size: int,
        max_length: int,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self._text = text
        self._starts, self._lengths, num_cut = _rows(text, max_length)
        num_rows = len(self._lengths)
        if num_rows < batch_size:
            raise UsageError(
                f"{text.name}: {text.num_sentences:,} sentences make {num_rows:,} rows,"
                f" less than one batch of {batch_size:,}"
            )
        super().__init__(num_rows, batch_size, seed, shuffle)
        if num_cut:
            self.notes = (
                f"{text.name}: {num_cut:,} of {text.num_sentences:,} sentences are longer than"
                f" {max_length} targets and were cut into several rows",
            )
        self.tokens_per_epoch = int(self._lengths.sum(dtype=np.int64))

    def batch(self, step: int, rows: slice | None = None) -> Batch:
        """Return the batch of a step, [rows, longest of them], or some of its rows."""
        of_text = self.rows(step)
        all_lengths = self._lengths[of_text].astype(np.int64)
        own = rows or slice(None)
        lengths, starts = all_lengths[own], self._starts[of_text[own]]
        tokens = np.zeros((len(lengths), int(all_lengths.max())), dtype=np.int64)
        targets = np.zeros_like(tokens)
        tokens[:, 0] = TEXT_EOS_ID  # what precedes the first token of the text
        for row, (start, length) in enumerate(
            zip(starts.tolist(), lengths.tolist(), strict=True)
        ):
            # the token before a sentence is the previous <eos>, and before a row that was cut
            # off it is one of the same sentence: both are the first input
            before = min(start, 1)
            ids = self._text.read(start - before, start + length)
            tokens[row, 1 - before : length] = ids[:-1]
            targets[row, :length] = ids[before:]
        return Batch(tokens, targets, lengths, False, *_part(rows, all_lengths))

    def _order(self, draws: NDArray[np.uint64]) -> NDArray[np.integer]:
        # high bits: the bucket; low bits: a random number
        keys = ((self._lengths - 1) // _BUCKET).astype(np.uint64) << np.uint64(32)
        return np.argsort(keys | draws >> np.uint64(32), kind="stable")


def random_keys(seed: int, epoch: int, stream: int, count: int) -> NDArray[np.uint64]:
    """Return random numbers to sort by; stream 0 is for rows, 1 for batches."""
    return np.random.PCG64(np.random.SeedSequence([seed, epoch, stream])).random_raw(count)


def even_bounds(total: int, parts: int) -> NDArray[np.int64]:
    """Return parts + 1 bounds of 0 .. total; earlier parts may be larger by one."""
    size, larger = divmod(total, parts)
    part = np.arange(parts + 1, dtype=np.int64)
    bounds: NDArray[np.int64] = part * size + np.minimum(part, larger)
    return bounds


def _rows(
    text: EncodedText, max_length: int
) -> tuple[NDArray[np.integer], NDArray[np.integer], int]:
    """Return each row's first target and number of targets, and how many sentences were cut."""
    offsets = np.asarray(text.line_offsets)
    sizes = np.diff(offsets)
    worded = np.flatnonzero(sizes > 1)
    sizes, firsts = sizes[worded], offsets[worded]
    pieces = -(-sizes // max_length)
    row_of_piece = np.repeat(np.arange(len(pieces)), pieces)
    place = np.arange(len(row_of_piece)) - (np.cumsum(pieces) - pieces)[row_of_piece]
    starts = firsts[row_of_piece] + place * max_length
    lengths = np.minimum(sizes[row_of_piece] - place * max_length, max_length)
    return starts, lengths, int(np.count_nonzero(pieces > 1))


def _part(
    rows: slice | None, all_lengths: NDArray[np.int64]
) -> tuple[int, Mapping[str, NDArray[np.int64]]]:
    """Return `first_row` and `all_lengths` of a Batch."""
    return (0, {}) if rows is None else (rows.start, {"lengths": all_lengths})
