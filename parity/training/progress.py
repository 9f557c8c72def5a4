"""What a user sees of a training while it runs."""

import math

from parity.base.progress import Counter


class TrainingProgress(Counter):
    """Show steps, loss, perplexity, tokens/s and the time left.

    Args:
      label: what is being trained.
      start: the first step.
      stop: the step after the last.
    """

    def __init__(self, label: str, start: int, stop: int):
        super().__init__(label, stop, "step", done=start)

    def trained(self, loss: float, tokens_per_second: float) -> None:
        """Count one step.

        Args:
          loss: global loss in nats per token.
          tokens_per_second: recent throughput.
        """
        self.update(
            f"loss {loss:.4f}, perplexity {math.exp(min(loss, 700)):.2f}, "
            f"{tokens_per_second:,.0f} tokens/s"
        )
