"""What the searches need of a network."""

from typing import Protocol

import numpy as np

DecoderState = dict[str, np.ndarray]


class DecodingModel(Protocol):
    """A network with its weights, one step of the decoder at a time.

    A state is a dict of arrays whose first axis is rows, one row per hypothesis: the searches
    select, repeat and drop rows by indexing. If it holds `weights` [rows, source_time], the
    attention of the last step, then hypotheses carry them.
    """

    def start(self, source: np.ndarray, source_lengths: np.ndarray) -> DecoderState:
        """Read source sentences, and return the state before the first token.

        Args:
          source: token ids, int64 [rows, source_time].
          source_lengths: real tokens per row, int64 [rows], each >= 1.
        """

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState]:
        """Read one token per row.

        Args:
          tokens: the last token of each row, int64 [rows]; `<go>` before the first step.
          state: what `start` or the previous step returned, or any choice of its rows.

        Returns:
          The log probabilities of the next token [rows, vocabulary], and the state.
        """
