"""What a run learns of its network: validation after each epoch, and the test at the end."""

import time
from collections.abc import Callable

from parity.base.progress import say
from parity.base.text import decimal
from parity.twins.cli.options import TrainOptions
from parity.twins.decoding.greedy import greedy_search
from parity.twins.spec.networks import NETWORKS
from parity.twins.training.answers import answer_questions
from parity.twins.training.checkpoint import best_checkpoint, forget_best, keep_best
from parity.twins.training.evaluate import evaluate
from parity.twins.training.events import EventWriter
from parity.twins.training.strategy import Strategy
from parity.twins.training.summary import Summary
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import TrainedStep

_SAMPLES = 3  # questions that are answered after each epoch, to be looked at
_SHOWN = 60  # characters of a question, and of an answer


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
        text: TextSource,
        options: TrainOptions,
        summary: Summary,
        check: Callable[[], None],
    ):
        self._strategy, self._text, self._options = strategy, text, options
        self._summary, self._check = summary, check
        self._group = strategy.build.group
        self._checkpoints = options.out / "checkpoints"
        self._decodes = NETWORKS[strategy.spec.network].decodes

    def resume(self, step: int) -> None:
        """Continue from the checkpoint of a step, of which a later one cannot be the best."""
        best = best_checkpoint(self._checkpoints)
        if best is None or self._group.rank > 0:
            return
        if best.step > step or self._options.allow_change:
            forget_best(self._checkpoints)

    def validate(self, trained: TrainedStep, events: EventWriter, speed: float) -> None:
        """Evaluate the validation text, keep the best checkpoint, and answer some questions.

        Args:
          trained: the step that was trained last.
          events: the writer of TensorBoard events.
          speed: the recent speed of training, in real tokens/s.
        """
        if self._options.evaluate == 0:
            return
        started, step = time.perf_counter(), trained.number + 1
        value = self._perplexity("valid")
        self._summary.valid_perplexity.append(value)
        events.perplexity("valid", step, value)
        best = self._text.best_perplexity("valid")
        least = f"; lowest possible {best:.3f}" if best else ""
        epoch, rest = divmod(step, self._text.train.batches_per_epoch)
        say(
            f"{f'step {step}' if rest else f'epoch {epoch}'}: validation perplexity "
            f"{decimal(value, 3)}{least}; trained at {speed:,.0f} tokens/s, "
            f"validated in {time.perf_counter() - started:.1f} s"
        )
        if self._group.rank == 0:
            keep_best(self._checkpoints, step, value)
            # the weights of a step that is not settled are about to change
            if self._decodes and trained.settled:
                self._answer_some()
        if self._decodes:
            self._group.barrier()

    def test(self, step: int, events: EventWriter) -> None:
        """Evaluate the test text, and answer its questions if the network can."""
        if self._options.evaluate == 0:
            return
        value = self._perplexity("test")
        self._summary.test_perplexity = value
        events.perplexity("test", step, value)
        best = self._text.best_perplexity("test")
        least = f"; lowest possible {best:.3f}" if best else ""
        say(f"test perplexity {decimal(value, 3)}{least}")
        if self._decodes:
            if self._group.rank == 0:
                self._answer(step, events)
            self._group.barrier()

    def _perplexity(self, split: str) -> float:
        most = self._options.evaluate
        return evaluate(self._strategy, self._text, split, self._check, most).perplexity

    def _answer_some(self) -> None:
        """Answer a few questions of the validation text, the same each time."""
        count, limit = (
            self._text.num_sources("valid"),
            int(self._strategy.spec.text.target_limit),
        )
        rows = sorted({each * count // _SAMPLES for each in range(_SAMPLES)})
        source, lengths = self._text.sources("valid", rows)
        longest = self._options.longest or limit + 1  # with <eos>
        found = greedy_search(self._strategy.decoder(), source, lengths, longest)
        for row, hypotheses in zip(rows, found, strict=True):
            question, reference = self._text.pair("valid", row)
            answer = self._text.write(hypotheses.best.tokens)
            say(f"  {_line(question)} -> {_line(answer)} (reference: {_line(reference)})")

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


def _line(text: str) -> str:
    """Return a text, cut off where it is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
