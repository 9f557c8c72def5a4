"""What the harness knows about a network, beside what the network computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.spec.training import TrainSpec

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
class Preset:
    """Sizes, text and training that go together.

    Attributes:
      model: the sizes, of the network's `model` class.
      text: how text becomes batches, of the network's `text` class.
      training: how the network is trained.
    """

    model: Any
    text: Any
    training: TrainSpec


@dataclass(frozen=True)
class Network:
    """All that the harness and both trainers need to know about one network.

    A network of your own is one such entry; see docs/extending.md. What would load a framework,
    or NumPy code that a command may not need, is named by a path "package.module:function".

    Attributes:
      name: the name that `--network` takes.
      model: the dataclass of its sizes; each field becomes a flag.
      text: the dataclass of how text becomes batches; each field becomes a flag.
      presets: name -> sizes, text and training that `--preset` chooses; "tiny" is the default.
      benchmarks: the presets that `bench` times by default; `profile` takes the first.
      builders: framework -> path of the function that builds the network on one replica:
        (model, Inputs) -> Outputs, both of that side's networks.py.
      oracle: path of the network's forward and backward pass in NumPy; see
        parity/oracle/networks.py for its arguments.
      load_text: path of the function that reads its text; see `load_text` in data/load.py.
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
    model: type
    text: type
    presets: Mapping[str, Preset]
    benchmarks: tuple[str, ...]
    builders: Mapping[str, str]
    oracle: str
    load_text: str
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

    def builder(self, framework: str) -> Callable[[Any, Any], Any]:
        """Return the function that builds the network in a framework.

        Raises:
          UsageError: if the network has none for it.
        """
        if framework not in self.builders:
            raise UsageError(
                f"--network is {self.name!r}, which {framework} has no builder for; it has one "
                f"for {', '.join(self.builders)}"
            )
        found: Callable[[Any, Any], Any] = load_object(self.builders[framework])
        return found
