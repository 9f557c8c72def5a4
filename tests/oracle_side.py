"""A side made of the oracle: real training, in NumPy, for tests that need no framework."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from data.load import LoadedText
from data.pair_batches import PairBatch
from data.text_batches import Batch as TextBatch
from parity.trace.writer import Writer
from parity.twins.cli.options import TrainOptions
from parity.twins.oracle.language_model import network_function
from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec, TrainSpec, learning_rate
from parity.twins.spec.step_arrays import StepInputs, StepResult, step_inputs
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.trace.side import TrainedSide
from parity.twins.training.strategy import Build

VOCABULARY = 7


_TRAINING = TrainSpec(
    batch_size=5,
    optimizer="adam",
    learning_rate=0.01,
    clip_norm=0.05,
    epochs=2,
    decay=0.5,
    seed=3,
    dtype="float64",
)


def small_spec(**values) -> Spec:
    """Return a small spec with dropout, clipping and Adam, but for the values given."""
    model = LanguageModelSpec(
        vocabulary_size=VOCABULARY, embedding_size=3, hidden_size=4, num_layers=2, keep=0.75
    )
    return Spec("language-model", model, LanguageModelText(time=4), _TRAINING).replace(**values)


def small_pairs_spec(**values) -> Spec:
    """Return a small seq2seq with dropout, clipping and Adam, but for the values given."""
    model = Seq2seqSpec(
        source_vocabulary_size=VOCABULARY,
        target_vocabulary_size=VOCABULARY + 2,
        embedding_size=3,
        hidden_size=4,
        num_layers=2,
        keep=0.75,
    )
    text = PairText(source_limit=5, target_limit=3)
    return Spec("seq2seq", model, text, _TRAINING).replace(**values)


def pair_batch(spec: Spec, source_lengths, lengths, step: int = 0) -> PairBatch:
    """Draw pairs of the given lengths, each side padded to its longest."""
    draw = np.random.default_rng([step, 98])
    lengths, source_lengths = np.asarray(lengths), np.asarray(source_lengths)
    shape, source_shape = ((len(each), each.max()) for each in (lengths, source_lengths))
    source = draw.integers(4, spec.model.source_vocabulary_size, source_shape)
    tokens, targets = draw.integers(4, spec.model.target_vocabulary_size, (2, *shape))
    beyond = np.arange(shape[1]) >= lengths[:, None]
    source[np.arange(source_shape[1]) >= source_lengths[:, None]] = 0
    tokens[beyond] = targets[beyond] = 0
    return PairBatch(tokens, targets, lengths, source=source, source_lengths=source_lengths)


def text_batch(spec: Spec, step: int, per_epoch: int = 4) -> TextBatch | PairBatch:
    """Draw a batch: ragged for sentences, one row of no tokens; carried within an epoch.

    Pairs are ragged on both sides, and the longest lie in other rows at every step.
    """
    draw = np.random.default_rng([step, 99])
    if spec.network == "seq2seq":
        rows = spec.training.batch_size
        most = spec.text.source_limit, spec.text.target_limit + 1
        ragged = [draw.integers(1, limit + 1, rows) for limit in most]
        for place, (lengths, limit) in enumerate(zip(ragged, most, strict=True)):
            lengths[(step + 2 * place) % rows] = limit
        return pair_batch(spec, *ragged, step)
    shape = spec.training.batch_size, spec.text.time
    sentences = spec.text.batching == "sentences"
    lengths = np.full(shape[0], shape[1])
    if sentences:
        lengths = draw.integers(1, shape[1] + 1, shape[0])
        lengths[0], lengths[-1] = shape[1], 0
    tokens = draw.integers(0, spec.model.vocabulary_size, shape)
    # the next token is mostly its successor: there is something to learn
    targets = np.where(draw.random(shape) < 0.9, (tokens + 1) % spec.model.vocabulary_size, 0)
    return TextBatch(tokens, targets, lengths, not sentences and step % per_epoch != 0)


class Batches:
    """Batches by step, as the data has them."""

    def __init__(self, spec: Spec, per_epoch: int, smallest: int | None = None):
        self.spec, self.batches_per_epoch = spec, per_epoch
        self.smallest_batch = smallest or spec.training.batch_size

    def batch(self, step: int) -> TextBatch:
        return text_batch(self.spec, step, self.batches_per_epoch)


def text(spec: Spec, per_epoch: int = 4, smallest: int | None = None) -> LoadedText:
    """Return what a run reads: `per_epoch` batches, and two each of validation and test."""
    return LoadedText(
        Batches(spec, per_epoch, smallest),
        Batches(spec, 2),
        Batches(spec, 2),
        sizes={},
        vocabularies={"vocabulary.txt": b"a\nb\n"},
        content_hash="a" * 64,
        notes=(),
        best_perplexities={"valid": 1.5, "test": None},
    )


class OracleStrategy:
    """Trains with the oracle, rounding what it holds to the run's precision after each step."""

    framework = "numpy"
    entry = StrategyEntry("oracle", "oracle_side:OracleStrategy", "NumPy, in one piece")

    def __init__(self, spec: Spec, build: Build):
        self.spec, self.build, self.replicas = spec, build, build.replicas
        self.drift = 0.0
        self.load(initial_snapshot(spec))

    def load(self, snapshot):
        self.held = dict(snapshot)

    def snapshot(self):
        return dict(self.held)

    def sources(self):
        return {"forward": "oracle_side.py:1 (OracleStrategy)"}

    def replica_distances(self):
        distances = np.zeros(self.replicas)
        distances[1:] = self.drift
        return {name: distances.copy() for name in self.held}

    def step(self, inputs, state, learning_rate, record=False):
        oracle = Oracle(self.spec, self.held)
        oracle.state = {name: np.asarray(part, np.float64) for name, part in state.items()}
        if not inputs.carry:
            assert not any(part.any() for part in state.values())
        sizes = split_rows(inputs.rows, self.replicas)
        dtype = self.spec.training.dtype
        found = {
            name: np.asarray(array, dtype)
            for name, array in oracle.step(inputs, learning_rate, sizes).items()
        }
        self.held = {name: found[name] for name in self.held}
        losses, norm = found["loss/replicas"], float(found["gradient_norm"])
        state = {name: found[f"forward/{name}"] for name in state}
        tensors = {}
        if record:
            given = ("loss/", "gradient_norm")
            tensors = {name: a for name, a in found.items() if not name.startswith(given)}
            for name, distances in self.replica_distances().items():
                tensors[f"replicas/{name}"] = distances
        return StepResult(losses, state, norm, tensors)

    def evaluate(self, inputs, state):
        weights = {
            name.split("/", 1)[1]: np.asarray(array, np.float64)
            for name, array in self.held.items()
            if name.startswith("weight/")
        }
        network = network_function(self.spec.network)
        found, _ = network(self.spec.model, weights, inputs.batch, {}, state)
        rows = found["token_loss"].sum(axis=1) / inputs.num_tokens
        sizes = split_rows(len(rows), self.replicas)
        losses = np.add.reduceat(rows, np.cumsum([0, *sizes[:-1]]))
        return StepResult(losses, {name: found[name] for name in state}, 0.0, {})


def train_with(make, spec: Spec, options: TrainOptions, parts=None, **side):
    """Run a training; return the strategy, which `make(spec, build)` makes, and the summary."""
    # a plug-in imports this module while the registries, which that module reads, are filled
    from parity.twins.training.start import Side, run_training

    made = []

    def make_strategy(spec, build):
        made.append(make(spec, build))
        return made[0]

    side = Side(make_strategy, dict, **side)
    summary = run_training(side, parts or text(spec), spec, options)
    return made[0], summary


def random_inputs(spec: Spec, lengths, *, carry: bool = True, step: int = 0) -> StepInputs:
    """Draw inputs of the given lengths, with the spec's dropout masks."""
    rows, time = len(lengths), spec.text.time
    draw = np.random.default_rng(step)
    tokens, targets = draw.integers(0, spec.model.vocabulary_size, (2, rows, time))
    batch = TextBatch(tokens, targets, np.array(lengths), carry)
    return step_inputs(spec, step, batch)


def header(spec: Spec, framework: str, replicas: int = 2, **values) -> dict:
    """Return the header of a trace."""
    strategies = {"paddle": "parallel-executor", "tensorflow": "towers"}
    side = TrainedSide(framework, strategies.get(framework, "one-copy"), replicas, "fast")
    return {
        **side.to_json(),
        "spec": spec.to_json(),
        "corpus": "a" * 64,
        "batches_per_epoch": 4,
        "versions": {"numpy": np.__version__},
        "preset": "small",
    } | values


def compare_sides(spec: Spec, sides, after=0, cause_seconds=0.0, **values):
    """Return the verdict on sides, by labels such as paddle-2, given each one's steps.

    Args:
      after: how many steps are followed after the first wrong one.
      values: of all headers.
    """
    # for the reason in `train_with`
    from parity.twins.compare.run_comparison import RunComparison

    headers = {}
    for label in sides:
        framework, replicas = label.split("-")
        headers[label] = header(spec, framework, int(replicas), **values)
    comparison = RunComparison(headers, after, cause_seconds)
    comparison.compare(
        dict(zip(sides, each, strict=True)) for each in zip(*sides.values(), strict=True)
    )
    return comparison.verdict


def recorded_steps(
    spec: Spec, steps: int, replicas: int = 2, *, carry: bool = True, nudge: float = 0.0
) -> list[dict[str, np.ndarray]]:
    """Return what a side that rounds correctly records: every tensor of the first steps.

    Args:
      carry: if false, the side forgets its state after each batch, whatever the batch says.
      nudge: share by which the weights are off after the first step.
    """
    strategy, found, state = OracleStrategy(spec, Build(replicas)), [], None
    sizes = split_rows(spec.training.batch_size, replicas)
    for step in range(steps):
        inputs = step_inputs(spec, step, text_batch(spec, step))
        if state is None or not (inputs.carry and carry):
            state = zero_state(spec, spec.training.batch_size)
        rate = learning_rate(spec.training, step // 4)
        result = strategy.step(inputs, state, rate, record=True)
        state = result.state
        tensors = dict(result.tensors)
        if step == 0 and nudge:
            weights = {
                n: a * (1 + nudge) for n, a in tensors.items() if n.startswith("weight/")
            }
            tensors |= weights
            strategy.load(dict(strategy.snapshot()) | weights)
        found.append(
            tensors
            | {
                **{f"batch/{name}": array for name, array in inputs.batch.items()},
                "batch/carry": np.array(inputs.carry),
                "batch/sizes": np.array(sizes),
                "batch/learning_rate": np.array(rate),
                "loss/replicas": result.losses,
                "loss/global": result.losses.sum(),
                "gradient_norm": np.array(result.gradient_norm, spec.training.dtype),
            }
        )
    return found


def write_trace(folder: Path, header: dict, steps: list[dict[str, np.ndarray]]) -> Path:
    """Record steps in a folder, and return it."""
    recorder = Writer(folder, header)
    for step, tensors in enumerate(steps):
        recorder.step(step, tensors)
    recorder.close()
    return folder


def share_of_rows(values: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Split along the first axis by sizes."""
    bounds = np.cumsum([0, *sizes])
    return [values[a:b] for a, b in pairwise(bounds)]
