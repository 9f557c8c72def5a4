"""The results of a training that are compared, and the margin of each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parity.base.errors import NumericFailure
from parity.twins.cli.options import ConvergeOptions
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Quantity:
    """A result of a training.

    Attributes:
      name: its name in tables and files.
      read: returns it from a training's summary.json, as people read it.
      relative: whether its logarithms are compared, which makes the margin a ratio.
      margin: the smallest difference that matters: 0.01 is 1 % if `relative`, else a difference
        in the quantity's own unit.
      form: how a value is written.
    """

    name: str
    read: Callable[[Summary], float | None]
    relative: bool
    margin: float
    form: str

    def value(self, summary: Summary, training: str) -> float:
        """Return the quantity of a training.

        Args:
          summary: the training's summary.json, in which None stands for what is not finite.
          training: which training it is, for the message.

        Raises:
          NumericFailure: if it is not finite.
        """
        value = self.read(summary)
        if value is None or not math.isfinite(value):
            raise NumericFailure(
                f"{training}: the {self.name} is infinite or not a number: the training has "
                "diverged; a smaller --learning-rate or --clip-norm may help"
            )
        return value

    def scaled(self, value: float) -> float:
        """Return a value on the scale on which differences are taken."""
        return math.log(value) if self.relative else value

    @property
    def scaled_margin(self) -> float:
        """Return the margin on that scale."""
        return math.log1p(self.margin) if self.relative else self.margin

    def difference(self, scaled: float) -> float:
        """Return a difference on that scale as people read it: a share if `relative`."""
        return math.expm1(scaled) if self.relative else scaled


def quantities(spec: Spec, options: ConvergeOptions) -> list[Quantity]:
    """Return what is compared for a network, the most important first."""
    margin = options.margin

    def best(summary: Summary) -> float | None:
        values = [value for value in summary["valid_perplexity"] if value is not None]
        return min(values, default=None)

    found = [
        Quantity("test perplexity", lambda of: of["test_perplexity"], True, margin, "{:.3f}"),
        Quantity("best validation perplexity", best, True, margin, "{:.3f}"),
    ]
    if NETWORKS[spec.network].decodes:
        margins = options.margin_bleu, options.margin_exact

        def bleu(summary: Summary) -> float | None:
            return (summary["bleu"] or {}).get("score")

        found += [
            Quantity("test BLEU", bleu, False, margins[0], "{:.2f}"),
            Quantity(
                "exact answers", lambda of: of["exact_answers"], False, margins[1], "{:.3f}"
            ),
        ]
    return found
