"""What a user sees of a training while it runs."""

from parity.base.progress import Counter
from parity.base.words import decimal
from parity.twins.training.evaluate import perplexity


class TrainingProgress(Counter):
    """Show steps, loss, perplexity, tokens/s and the time left; off a terminal as lines.

    There is a line now and then, one at the end of each epoch, and one after the last step.

    Args:
      label: what is being trained.
      start: the first step.
      stop: the step after the last.
      per_epoch: the number of steps in an epoch.
    """

    def __init__(self, label: str, start: int, stop: int, per_epoch: int):
        super().__init__(label, stop, "step", done=start)
        self._step, self._stop, self._per_epoch = start, stop, per_epoch

    def trained(self, loss: float, tokens_per_second: float) -> None:
        """Count one step.

        Args:
          loss: global loss in nats per token.
          tokens_per_second: recent throughput.
        """
        self._step += 1
        self.update(
            f"loss {decimal(loss, 4)}, perplexity {decimal(perplexity(loss), 2)}, "
            f"{tokens_per_second:,.0f} tokens/s",
            now=self._step % self._per_epoch == 0 or self._step == self._stop,
        )
