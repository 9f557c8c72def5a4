"""Answers the test questions with the current weights, and scores the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parity.twins.cli.options import TrainOptions
from parity.twins.decoding.evaluation import bleu, exact_share, find_answers
from parity.twins.decoding.hypotheses import Hypothesis
from parity.twins.training.strategy import Strategy
from parity.twins.training.text_source import TextSource


@dataclass(frozen=True)
class Answers:
    """The answers to all questions of the test text.

    Attributes:
      hypotheses: the best hypothesis for each question.
      texts: the answers as readable text.
      references: the reference answers.
      bleu: the BLEU of the answers: score (0 to 100), signature and number of sentences.
      exact_share: the share of the answers that equal the reference; see `exact_share`.
    """

    hypotheses: Sequence[Hypothesis]
    texts: Sequence[str]
    references: Sequence[str]
    bleu: dict[str, Any]
    exact_share: float


def answer_questions(
    strategy: Strategy, text: TextSource, options: TrainOptions, check: Callable[[], None]
) -> Answers:
    """Answer the test questions by beam search.

    Args:
      strategy: a strategy whose network decodes.
      text: the text with the questions.
      options: the options of the search.
      check: a function called after each batch; it raises an exception to give up.
    """
    limit = int(strategy.spec.text.target_limit) + 1  # with <eos>
    hypotheses = find_answers(
        strategy.decoder(),
        text,
        "test",
        options.beam,
        options.length_penalty,
        limit if options.longest is None else options.longest,
        check,
    )
    texts = [text.write(hypothesis.tokens) for hypothesis in hypotheses]
    references = text.references("test")
    segmenter = strategy.spec.text.target_segmenter
    return Answers(
        hypotheses,
        texts,
        references,
        bleu(texts, references, segmenter),
        exact_share(texts, references, segmenter),
    )
