"""The description of a network that the harness and both trainers work from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.base.special_tokens import PAIR_SPECIAL, TEXT_SPECIAL
from parity.twins.spec.training import TrainSpec

# A shape with named axes: "batch" stands for the number of rows, "time" and "source_time" for
# numbers of steps.
Axes = tuple[int | str, ...]

SEGMENTERS = ("chinese", "characters", "english", "spaces")  # those of data/segmenters.py
# The help of a flag that both networks have.
TARGET_SEGMENTER = "how the text, or for seq2seq the answers, are split into tokens; auto, the language model's default, looks at the text: at its spaces, or where words have none between them by jieba (chinese), or into characters"

# Logits with more elements than this are left out of a trace: they would be most of its bytes,
# and a mistake in them still shows in token_loss and in the gradients of kernel and bias.
MOST_LOGITS = 4_000_000


def records_logits(elements: int) -> bool:
    """Return whether a trace records logits with this many elements, padding included."""
    return elements <= MOST_LOGITS


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor.

    Attributes:
      name: the parameter's path; the frameworks' variables have the same name.
      shape: the canonical shape.
      mean: the mean of its initial values.
    """

    name: str
    shape: tuple[int, ...]
    mean: float = 0.0


GATES = {"lstm": 4, "gru": 3}


def cell_parameters(name: str, cell: str, inputs: int, hidden: int) -> list[Parameter]:
    """Return the parameters of a recurrent layer, of a cell "lstm" or "gru"."""
    gates = GATES[cell] * hidden
    return [
        Parameter(f"{name}/input_kernel", (inputs, gates)),
        Parameter(f"{name}/recurrent_kernel", (hidden, gates)),
        Parameter(f"{name}/bias", (gates,)),
    ]


@dataclass(frozen=True)
class Published:
    """What the authors of a recipe report of it.

    Attributes:
      corpus: the name of the text.
      train_sha256: the sha256 of the training text, to tell whether a user has that text.
      valid_perplexity: the perplexity on the validation text.
      test_perplexity: the perplexity on the test text.
      source: where it is reported.
    """

    corpus: str
    train_sha256: str
    valid_perplexity: float
    test_perplexity: float
    source: str


@dataclass(frozen=True)
class Preset:
    """A named choice of sizes, text and training that suit each other.

    Attributes:
      model: the sizes, an instance of the network's `model` class.
      text: how text becomes batches, an instance of the network's `text` class.
      training: how the network is trained.
      published: the result that is reported of exactly this recipe, if it is a published one.
    """

    model: Any
    text: Any
    training: TrainSpec
    published: Published | None = None


@dataclass(frozen=True)
class TextFormat:
    """How the lines of a text are written, for whatever makes up a text to train on.

    Attributes:
      suffix: what the names of its files end in.
      special: how many entries of a vocabulary are no words.
      vocabularies: for each of the sentences that a line holds, with tabs between them, the
        field of the model that has the size of its vocabulary.
      limits: the fields of the text that say the most words of each; empty where longer
        sentences are cut.
      at_spaces: values of the text's fields with which words are what stands between spaces.
    """

    suffix: str
    special: int
    vocabularies: tuple[str, ...]
    limits: tuple[str, ...] = ()
    at_spaces: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> bool:
        """Return whether a line holds several sentences."""
        return len(self.vocabularies) > 1


RUNNING_TEXT = TextFormat("txt", len(TEXT_SPECIAL), ("vocabulary_size",))
PAIRS = TextFormat(
    "tsv",
    len(PAIR_SPECIAL),
    ("source_vocabulary_size", "target_vocabulary_size"),
    ("source_limit", "target_limit"),
    {"source_segmenter": "spaces", "target_segmenter": "spaces"},
)


class Choices(Protocol):
    """What a random run is drawn by; see parity/twins/sweep/random_runs.py."""

    def one_of(self, *values: Any) -> Any:
        """Return one of some values."""

    def integer(self, lowest: int, highest: int) -> int:
        """Return a number, both ends included."""

    def boolean(self) -> bool:
        """Return true or false."""


@dataclass(frozen=True)
class Network:
    """Everything that the harness and both trainers need to know about one network.

    Your own network is one more such entry; see docs/extending.md. Code that would load a
    framework, or NumPy code that not every command needs, is given as a path
    "package.module:function". The functions below take the model, an instance of `model`.

    Attributes:
      name: the name that `--network` takes.
      model: the dataclass with the network's sizes; each field becomes a flag.
      text: the dataclass that says how text becomes batches; each field becomes a flag.
      presets: name -> preset, from which `--preset` chooses; "tiny" is the default.
      benchmarks: the presets that `bench` times by default; `profile` uses the first of them.
      strategy_benchmarks: those that `bench --strategies` times by default; the same if empty.
      builders: framework -> path of the function that builds the network on one replica:
        (model, Inputs) -> Outputs, two types of that framework's networks.py. The frameworks
        that only the benchmark starts have builders of their own kind: model -> network.
      oracle: the path of the network's forward and backward pass in NumPy; see
        parity/twins/oracle/language_model.py for its arguments.
      load_text: the path of the function that reads the text; see `load_text` in data/load.py.
      batch: name of each array in a batch -> its axes, rows first; all arrays are int64.
      lengths: time axis -> the array of the batch with the number of real steps of each row.
      vocabularies: name of each array of token ids in a batch -> the field of the model that
        has the size of their vocabulary.
      parameters: returns the parameters in the order of computation, lower layers first.
      state: returns the state that one batch passes to the next: name -> shape without rows.
      masks: returns the places where dropout acts, in the order in which their masks are drawn:
        name -> axes.
      activations: returns what a trace records of the forward pass, in the order in which a
        fault would show: name -> axes. Past the end of a row they are zero. "logits" is left
        out where it is too large: see `records_logits`.
      embeddings: name of each parameter of which a step reads nothing but some rows -> the array
        of the batch with their numbers. Processes send each other no gradients of other rows.
      loop: returns the activations that a single loop over time computes together, in their
        order within a time step; every one of them is computed for a step before any is
        computed for the next.
      row_lengths: returns the least and the greatest number of real steps that a row can have,
        by time axis, for how text becomes batches; empty if it is not known.
      contiguous: returns whether a batch goes on where the one before ended, row by row: then
        the state is carried along, and rows are not shuffled.
      unknown_id: the id in every vocabulary for the words that it lacks; None if there is none.
      decodes: whether the network writes text, which a trace may then record.
      text_format: how its text is written.
      draw: returns random values of fields of model and text, given what draws them, the
        values drawn for every network, and the most tokens of a row. `sweep` leaves out a
        network without it.

    Raises:
      ValueError: if a field names an array that the batch lacks.
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
    embeddings: Mapping[str, str] = field(default_factory=dict)
    loop: Callable[[Any], tuple[str, ...]] = lambda model: ()
    row_lengths: Callable[[Any], dict[str, tuple[int, int]]] = lambda text: {}
    contiguous: Callable[[Any], bool] = lambda text: False
    unknown_id: int | None = None
    decodes: bool = False
    strategy_benchmarks: tuple[str, ...] = ()
    text_format: TextFormat = RUNNING_TEXT
    draw: Callable[[Choices, Mapping[str, Any], int], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        for part, arrays in (
            ("lengths", self.lengths.values()),
            ("vocabularies", self.vocabularies),
            ("embeddings", self.embeddings.values()),
        ):
            for each in arrays:
                if each not in self.batch:
                    raise ValueError(
                        f"{part} of network {self.name!r} has {each!r}, an array that its batch "
                        f"lacks; it has {', '.join(self.batch)}"
                    )

    def builder(self, framework: str) -> Callable[..., Any]:
        """Return the function that builds the network in a framework.

        Raises:
          UsageError: if the network has no builder for that framework.
        """
        if framework not in self.builders:
            raise UsageError(
                f"--network is {self.name!r}, which {framework} has no builder for; it has one "
                f"for {', '.join(self.builders)}"
            )
        build: Callable[..., Any] = load_object(self.builders[framework])
        return build
