"""The summary of a training run, written as summary.json."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.base.files import write_whole
from parity.base.text import decimal
from parity.twins.training.checkpoint import Best
from parity.twins.training.text_source import TextSource


@dataclass
class Summary:
    """The results and measurements of a run.

    Attributes:
      framework: the framework's name.
      strategy: the name of the strategy that ran the replicas.
      kernels: "plain" or "fast".
      replicas: the number of replicas.
      dtype: the precision, "float32" or "float64".
      steps: the number of steps that this run trained.
      valid_perplexity: the perplexity on the validation text after each epoch, and after the
        last step.
      valid_bleu: the BLEU of answers to questions of the validation text at the same steps;
        empty for a network that does not decode.
      test_perplexity: the perplexity on the test text, or None if the run ended early.
      tested_step: the number of steps that the tested weights were trained for; see --newest.
      best_perplexity: split -> its lowest possible perplexity, or None if that is unknown.
      tokens_per_second: the training speed in real tokens/s: median, low and high reading.
      measured: what these readings cover: the number of their first step, and their numbers of
        steps (of so many after the warm-up), real tokens and seconds.
      seconds_per_step: the median time of a step, in seconds.
      waiting_share: the share of the training time that was spent waiting for data.
      bleu: the BLEU of the answers to the test questions: score (0 to 100), signature and
        number of sentences; None for a network that does not decode.
      exact_answers: the share of these answers that equal the reference; see `exact_share`.
      padding: for pairs, "source" and "target" -> share of positions without a token.
      seconds_to_first_step: seconds from the start of the process to the end of the first step.
      peak_memory: the most bytes of memory that each process of the run used for training.
      resident_memory: the bytes of memory used after the warm-up and at the end of training.
      product_flops_per_second: the FLOP of the matrix products, per second of whole steps.
      versions: package -> version, for the framework and for NumPy.
    """

    framework: str
    replicas: int
    dtype: str
    steps: int = 0
    valid_perplexity: list[float] = field(default_factory=list)
    valid_bleu: list[float | None] = field(default_factory=list)
    test_perplexity: float | None = None
    tested_step: int | None = None
    best_perplexity: dict[str, float | None] = field(default_factory=dict)
    tokens_per_second: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    seconds_per_step: float | None = None
    waiting_share: float | None = None
    bleu: dict[str, Any] | None = None
    exact_answers: float | None = None
    padding: Mapping[str, float] | None = None
    seconds_to_first_step: float | None = None
    peak_memory: list[int] = field(default_factory=list)
    resident_memory: dict[str, int] = field(default_factory=dict)
    product_flops_per_second: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    strategy: str = ""
    kernels: str = ""

    def figures(self, loss: float, speed: float, best: Best | None) -> str:
        """Return the results in words.

        Args:
          loss: the loss of the last step, in nats per token.
          speed: the recent speed in tokens/s, for a run too short to measure one.
          best: the best checkpoint, if there is one.
        """
        words = [f"loss {decimal(loss, 4)}"]
        if self.valid_perplexity:
            words.append(f"validation perplexity {decimal(self.valid_perplexity[-1], 3)}")
            if best is not None:
                figure = f"lowest {decimal(best.perplexity, 3)}"
                if best.bleu is not None:
                    figure = f"best BLEU {best.bleu:.2f}"
                words[-1] += f" ({figure}, in checkpoints/{best.name})"
        if self.test_perplexity is not None:
            words.append(f"test perplexity {decimal(self.test_perplexity, 3)}")
        if self.bleu is not None:
            words.append(f"BLEU {self.bleu['score']:.2f}, {self.exact_answers:.1%} exact")
        words.append(f"{self.tokens_per_second.get('median', speed):,.0f} tokens/s")
        return "; ".join(words)

    def write(self, path: Path, text: TextSource) -> None:
        """Write the summary as JSON, atomically, with its figures of the text filled in."""
        self.best_perplexity = {
            split: text.best_perplexity(split) for split in ("valid", "test")
        }
        self.padding = text.padding
        write_whole(path, json.dumps(_finite(vars(self)), indent=2).encode())


def _finite(value: Any) -> Any:
    """Return plain values with None for NaN and infinities, which JSON cannot represent."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
