"""What the harness knows about a network, beside what the network computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# A shape whose parts may be names: "batch" for the rows, "time" and "source_time" for steps.
Axes = tuple[int | str, ...]

# Logits of more elements than this are left out of a trace: they would be most of its bytes,
# and what they decide is recorded all the same (token_loss, gradients of kernel and bias).
MOST_LOGITS = 4_000_000


def records_logits(elements: int) -> bool:
    """Return whether a trace records logits of so many elements, padding included."""
    return elements <= MOST_LOGITS


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor.

    Attributes:
      name: path of the parameter, which the frameworks' own variables carry too.
      shape: canonical shape.
      mean: about which its initial values are drawn.
    """

    name: str
    shape: tuple[int, ...]
    mean: float = 0.0


@dataclass(frozen=True)
class Network:
    """The names and shapes of all that a step of a network reads, computes and changes.

    Attributes:
      name: as `--network` takes it.
      batch: array of a batch -> its axes, rows first; all are int64.
      lengths: axis of time -> the array of the batch that has each row's real steps on it.
      vocabularies: array of a batch that holds token ids -> field of the model with the size of
        their vocabulary.
      parameters: of a model, along its path of computation, lower layers first.
      state: of a model, what one batch hands to the next: name -> shape without the rows.
      masks: of a model, where dropout acts, in the order of drawing: name -> axes.
      activations: of a model, what a trace holds of the forward pass, in the order in which a
        fault would show: name -> axes. Beyond a row's length each is zero. "logits" may be too
        many: see `records_logits`.
      loop: of a model, which activations one loop over time computes together, each step of all
        of them before the next step of any, in the order within a step.
      taps: of a model, those of the activations that one layer hands to the next, lower layers
        first; isolation cuts there.
      decodes: whether it writes text, so that a trace may record what it wrote.
    """

    name: str
    batch: Mapping[str, Axes]
    lengths: Mapping[str, str]
    vocabularies: Mapping[str, str]
    parameters: Callable[[Any], tuple[Parameter, ...]]
    state: Callable[[Any], dict[str, tuple[int, ...]]]
    masks: Callable[[Any], dict[str, Axes]]
    activations: Callable[[Any], dict[str, Axes]]
    taps: Callable[[Any], tuple[str, ...]]
    loop: Callable[[Any], tuple[str, ...]] = lambda model: ()
    decodes: bool = False
