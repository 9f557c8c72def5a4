"""What a training run came to."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.base.files import write_whole
from parity.training.text import TrainingText


@dataclass
class Summary:
    """What a run came to, also written as summary.json.

    Attributes:
      framework, strategy, kernels, replicas, dtype: what ran.
      steps: how many steps this run did.
      valid_perplexity: after each epoch.
      test_perplexity: at the end, or None if the run was cut short.
      best_perplexity: lowest possible perplexity of the splits, where it is known.
      tokens_per_second: median, low and high reading of training alone, real tokens/s.
      seconds_per_step: median, seconds.
      waiting_share: part of the training time spent waiting for data.
      bleu: of the answers to the test questions, for a network that writes: score (0 to 100),
        signature, and sentences.
      exact_answers: share of those answers that are the reference; see `exact_share`.
      padding: of pairs, kind -> share of positions that hold no token.
      seconds_to_first_step: from the start of the process to the end of the first step.
      peak_memory: most bytes that each process of the run has held until training ended.
      resident_memory: bytes held after the warm-up, and at the end of training.
      product_flops_per_second: of the matrix products alone, over the time of whole steps.
      versions: of the framework and of NumPy.
    """

    framework: str
    replicas: int
    dtype: str
    steps: int = 0
    valid_perplexity: list[float] = field(default_factory=list)
    test_perplexity: float | None = None
    best_perplexity: dict[str, float | None] = field(default_factory=dict)
    tokens_per_second: dict[str, float] = field(default_factory=dict)
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

    def write(self, path: Path, text: TrainingText) -> None:
        """Write it as JSON, with what is known of the text, whole or not at all."""
        self.best_perplexity = {
            split: text.best_perplexity(split) for split in ("valid", "test")
        }
        self.padding = text.padding
        write_whole(path, json.dumps(_finite(vars(self)), indent=2).encode())


def _finite(value: Any) -> Any:
    """Return plain values with None for infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
