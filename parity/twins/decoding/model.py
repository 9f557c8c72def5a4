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
        """Read the sources, int64 [rows, source_time] and [rows], and return the state."""

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState]:
        """Read one token per row; return log probabilities [rows, vocabulary] and the state."""
