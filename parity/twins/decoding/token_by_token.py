"""Decoding with a single hypothesis per sentence, whichever way its tokens are chosen."""

from typing import Protocol

import numpy as np

from parity.base.special_tokens import PAIR_EOS_ID
from parity.twins.decoding.hypotheses import (
    FIRST_PRODUCED,
    DecodingModel,
    Hypotheses,
    LiveHypotheses,
)


class Choose(Protocol):
    """A way of choosing the next token."""

    def __call__(
        self, log_probs: np.ndarray, sentences: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose a column per row.

        Args:
          log_probs: [rows, vocabulary without the ids that are never produced].
          sentences: int64 [rows], the sentence of each row.

        Returns:
          columns: int64 [rows].
          gaps: float [rows], the margin of each decision.
        """


def decode_token_by_token(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    max_tokens: int,
    choose: Choose,
) -> list[Hypotheses]:
    """Return one hypothesis per sentence, whose tokens are chosen one after the other.

    Args:
      model: computes the log probabilities.
      source: int64 [sentences, source_time].
      source_lengths: int64 [sentences], each >= 1.
      max_tokens: the most tokens of an answer, `<eos>` included.
      choose: chooses the next token of each live hypothesis.
    """
    live = LiveHypotheses(model, source, source_lengths)
    margins = np.full(len(source), np.inf)
    found: dict[int, Hypotheses] = {}
    for _ in range(max_tokens):
        if not len(live.sentences):
            break
        log_probs = live.advance()
        columns, gaps = choose(log_probs[:, FIRST_PRODUCED:], live.sentences)
        margins[live.sentences] = np.minimum(margins[live.sentences], gaps)
        tokens = columns + FIRST_PRODUCED
        totals = live.log_probs + log_probs[np.arange(len(tokens)), tokens]
        ended = tokens == PAIR_EOS_ID
        for row in np.flatnonzero(ended).tolist():
            sentence = int(live.sentences[row])
            hypothesis = live.hypothesis(row, totals[row], totals[row], finished=True)
            found[sentence] = Hypotheses((hypothesis,), float(margins[sentence]))
        unended = np.flatnonzero(~ended)
        live.extend(unended, tokens[unended], totals[unended])
    for row, sentence in enumerate(live.sentences.tolist()):
        total = live.log_probs[row]
        hypothesis = live.hypothesis(row, total, total, finished=False)
        found[sentence] = Hypotheses((hypothesis,), float(margins[sentence]))
    return [found[sentence] for sentence in range(len(source))]
