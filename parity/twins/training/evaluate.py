"""Evaluates a network: its loss and perplexity on a split, and its answers to the questions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.twins.decoding.evaluation import bleu, exact_share, find_answers
from parity.twins.decoding.hypotheses import Hypothesis
from parity.twins.spec.initial import zero_state
from parity.twins.spec.step_arrays import StepInputs, step_inputs
from parity.twins.training.strategy import Strategy
from parity.twins.training.text_source import TextSource, local_batch, whole_batch


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a network on some batches of a split.

    Attributes:
      inputs: the batches that have a real token, in the order in which they were evaluated; of
        several processes, rank 0 has all rows of them, and the others have none.
      losses: the loss of each batch in nats per real token, float64 [batches].
      tokens: the number of real tokens of each batch, int64 [batches].
      perplexity: exp(mean loss per real token), the mean taken over all of these batches.
    """

    inputs: Sequence[StepInputs]
    losses: np.ndarray
    tokens: np.ndarray
    perplexity: float


def evaluate(
    strategy: Strategy,
    text: TextSource,
    split: str,
    check: Callable[[], None],
    most: int | None = None,
    keep: bool = False,
) -> Evaluation:
    """Evaluate the current weights on a split.

    Args:
      strategy: a strategy that was built with `evaluates`.
      text: the text with the split.
      split: "train", "valid" or "test".
      check: a function called after each batch; it raises an exception to give up.
      most: the largest number of batches to evaluate; see `batches_to_evaluate`. None: all.
      keep: whether to keep the batches in the result; otherwise `inputs` is empty, and memory
        does not grow with the text.
    """
    batches, spec, group = getattr(text, split), strategy.spec, strategy.build.group
    total, counted = 0.0, 0
    kept, losses, tokens = list[StepInputs](), list[float](), list[int]()
    state: Mapping[str, np.ndarray] | None = None
    for step in batches_to_evaluate(batches.batches_per_epoch, most):
        batch = local_batch(batches, step, group, strategy.replicas)
        inputs = step_inputs(spec, step, batch, train=False)
        if inputs.num_tokens == 0:
            continue
        if state is None or not inputs.carry:
            state = zero_state(spec, inputs.rows)
        result = strategy.evaluate(inputs, state)
        state = result.state
        total += result.loss * inputs.num_tokens
        counted += inputs.num_tokens
        losses.append(result.loss)
        tokens.append(inputs.num_tokens)
        if keep:
            arrays = whole_batch(group, inputs)
            kept += [] if arrays is None else [StepInputs(arrays, inputs.carry)]
        check()
    reported = perplexity(total / counted)
    return Evaluation(kept, np.array(losses), np.array(tokens, np.int64), reported)


def batches_to_evaluate(batches: int, most: int | None) -> list[int]:
    """Return which batches of a split are evaluated: the first ones, and always the last.

    The last batch is often a partial one, on which mistakes show that no whole batch shows.

    Args:
      batches: the number of batches in the split.
      most: the largest number of batches to evaluate, at least 1; None for all.
    """
    if most is None or most >= batches:
        return list(range(batches))
    return [*range(most - 1), batches - 1]


def perplexity(loss: float) -> float:
    """Return exp(loss) for a loss in nats per token; infinity if that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Search:
    """How the questions of a text are answered.

    Attributes:
      beam: the number of hypotheses that beam search keeps.
      length_penalty: the exponent of its length penalty.
      longest: the most tokens of an answer, with `<eos>`; None for as many as the spec allows.
    """

    beam: int
    length_penalty: float
    longest: int | None


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
    strategy: Strategy, text: TextSource, search: Search, check: Callable[[], None]
) -> Answers:
    """Answer the test questions by beam search.

    Args:
      strategy: a strategy whose network decodes.
      text: the text with the questions.
      search: the settings of the search.
      check: a function called after each batch; it raises an exception to give up.
    """
    limit = int(strategy.spec.text.target_limit) + 1  # with <eos>
    hypotheses = find_answers(
        strategy.decoder(),
        text,
        "test",
        search.beam,
        search.length_penalty,
        limit if search.longest is None else search.longest,
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
