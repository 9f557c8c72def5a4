"""What a run learns of its network: validation after each epoch, and the test at the end."""

import time
from collections.abc import Callable

from parity.base.progress import say
from parity.cli.options import TrainOptions
from parity.spec.networks import NETWORKS
from parity.training.answers import answer_questions
from parity.training.evaluate import evaluate
from parity.training.events import EventWriter
from parity.training.strategy import Strategy
from parity.training.summary import Summary
from parity.training.training_text import TrainingText


class Validation:
    """Evaluates the weights of a run, and notes what it finds in the run's summary.

    Args:
      strategy: the training; of several processes all evaluate, and rank 0 alone answers.
      text: the text with the splits.
      options: the options of the run.
      summary: the summary of the run.
      check: a function called after each batch; it raises an exception to give up.
    """

    def __init__(
        self,
        strategy: Strategy,
        text: TrainingText,
        options: TrainOptions,
        summary: Summary,
        check: Callable[[], None],
    ):
        self._strategy, self._text, self._options = strategy, text, options
        self._summary, self._check = summary, check
        self._group = strategy.build.group
        self._decodes = NETWORKS[strategy.spec.network].decodes

    def validate(self, step: int, events: EventWriter, speed: float) -> None:
        """Evaluate the validation text.

        Args:
          step: the number of steps trained.
          events: the writer of TensorBoard events.
          speed: the recent speed of training, in real tokens/s.
        """
        started = time.perf_counter()
        value = evaluate(self._strategy, self._text, "valid", self._check).perplexity
        self._summary.valid_perplexity.append(value)
        events.perplexity("valid", step, value)
        best = self._text.best_perplexity("valid")
        least = f"; lowest possible {best:.3f}" if best else ""
        say(
            f"epoch {step // self._text.train.batches_per_epoch}: validation perplexity "
            f"{value:.3f}{least}; trained at {speed:,.0f} tokens/s, "
            f"validated in {time.perf_counter() - started:.1f} s"
        )

    def test(self, step: int, events: EventWriter) -> None:
        """Evaluate the test text, and answer its questions if the network can."""
        value = evaluate(self._strategy, self._text, "test", self._check).perplexity
        self._summary.test_perplexity = value
        events.perplexity("test", step, value)
        best = self._text.best_perplexity("test")
        say(f"test perplexity {value:.3f}" + (f"; lowest possible {best:.3f}" if best else ""))
        if self._decodes:
            if self._group.rank == 0:
                self._answer(step, events)
            self._group.barrier()

    def _answer(self, step: int, events: EventWriter) -> None:
        """Answer the test questions and compare the answers with the references."""
        started, options = time.perf_counter(), self._options
        found = answer_questions(self._strategy, self._text, options, self._check)
        score, exact = found.bleu, found.exact_share
        self._summary.bleu, self._summary.exact_answers = score, exact
        events.scalar("bleu/test", step, score["score"])
        say(
            f"test BLEU {score['score']:.2f} over {len(found.texts):,} answers, "
            f"{exact:.1%} of them exact; beam {options.beam}, "
            f"{time.perf_counter() - started:.1f} s; {score['signature']}"
        )
