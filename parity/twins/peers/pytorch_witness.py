"""A training by PyTorch that witnesses what the sides and the oracle have in common.

PyTorch's own layers, cross entropy, differentiation, clipping and optimisers train the network.
Plain text is read, encoded and cut into rows and batches here, by its definition; pairs are
laid out here. The learning rate, when the state starts at zero, the scale of dropout and what
the loss is divided by follow the papers and the flags, too. Taken from this project are the
initial weights, the order of an epoch and which units are dropped, which are random numbers;
and the words of pairs, and of text without spaces.

Sources: Zaremba et al. 2014, arXiv:1409.2329, sections 3 and 4.1; Paszke et al. 2019,
arXiv:1912.01703.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from data.built_in_text import sentences
from data.segmented_text import AUTO, choose_segmenter, find_words
from data.text_corpus import find_splits
from data.text_splits import split_text
from parity.trace.writer import Writer
from parity.twins.cli.options import TrainOptions
from parity.twins.peers.pytorch_replica import Replica, arrays, tensors
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.language_model import LanguageModelSpec
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import dropout_masks
from parity.twins.trace.side import TrainedSide
from parity.twins.training.text_source import TextSource, read_text

Arrays = dict[str, np.ndarray]

_CONSTANTS = ("beta1", "beta2", "epsilon")


class Witness(Replica):
    """PyTorch's own training of a network, on NumPy arrays, in one thread.

    Like the oracle it computes in float64, from the weights and constants of the run's
    precision: PyTorch's Adam takes 1 - beta2 from the exact beta2, the sides from the rounded
    one, and in float32 the two are 1.3e-5 of it apart.

    Args:
      spec: the network, its text and its training.
    """

    def __init__(self, spec: Spec):
        self._dtype = np.dtype(spec.training.dtype)
        near = {name: self._near(getattr(spec.training, name)) for name in _CONSTANTS}
        super().__init__(spec.replace(dtype="float64", **near), threads=1)
        self.load(initial_snapshot(spec))

    def _near(self, number: float) -> float:
        """Return a number as the run's precision has it."""
        return float(self._dtype.type(number))

    def step(
        self, batch: Mapping[str, np.ndarray], masks: Arrays, state: Arrays, rate: float
    ) -> tuple[Arrays, Arrays]:
        """Train one step.

        Args:
          batch, masks: as in `StepInputs`.
          state: name -> recurrent state before the batch; empty if the network carries none.
          rate: the learning rate.

        Returns:
          Name in a trace -> array, from the loss to the new weights; the state after the batch.
        """
        training, lengths = self.spec.training, batch["lengths"]
        divisor = len(lengths) if training.loss_per == "row" else int(lengths.sum())
        given = {f"mask/{name}": mask.astype(np.float64) for name, mask in masks.items()}
        feed = {**batch, **state, **given, "scale": np.array([1 / divisor])}
        loss, after = self.network(tensors(feed))
        self.optimizer.zero_grad()
        loss.backward()
        found = {"loss/global": loss.detach().numpy().reshape(())}
        found |= self._gradients("gradient")
        norm = nn.utils.get_total_norm([each.grad for each in self.trained])
        found["gradient_norm"] = norm.numpy()
        # PyTorch divides by norm + 1e-6; a limit greater in the same ratio undoes that
        limit = training.clip_norm * (1 + 1e-6 / max(float(norm), 1e-300))
        nn.utils.clip_grad_norm_(self.trained, limit)
        found |= self._gradients("clipped_gradient")
        self.update(self._near(rate))
        found |= self.snapshot()
        return found, {name: array for name, array in arrays(after).items() if name in state}

    def _gradients(self, kind: str) -> Arrays:
        return {f"{kind}/{n}": a for n, a in self.arrays(lambda each: each.grad).items()}


def record_witness(spec: Spec, options: TrainOptions, versions: dict[str, str]) -> None:
    """Train for `--steps`, and write what PyTorch finds in each step to the trace.

    Raises:
      UsageError: if the text cannot be used.
    """
    assert options.trace is not None
    spec, text = read_text(spec, options)
    header = {
        **TrainedSide("pytorch", synchronous=True).to_json(),
        "versions": versions,
        "spec": spec.to_json(),
        "corpus": text.content_hash,
        "batches_per_epoch": text.train.batches_per_epoch,
    }
    with closing(Writer(options.trace, header, options.trace_pending)) as writer:
        steps = witnessed_steps(spec, Witness(spec), text, options)
        for step, found in enumerate(islice(steps, options.steps)):
            writer.step(step, found)


def witnessed_steps(
    spec: Spec, witness: Witness, text: TextSource, options: TrainOptions
) -> Iterator[Arrays]:
    """Train step by step without end, and yield what a trace holds of each, name -> array."""
    dtype = np.dtype(spec.training.dtype)
    network = NETWORKS[spec.network]
    streams, names = network.contiguous(spec.text), network.state(spec.model)
    epochs = _epochs_of_stream(spec, options)
    if not streams:
        epochs = _epochs_of_rows(spec, options, text)
    state: Arrays = {}
    step = 0
    for epoch, batches in enumerate(epochs):
        rate = rate_of(spec, epoch)
        for place, batch in enumerate(batches):
            rows = len(batch["lengths"])
            carry = bool(streams and place)
            if not carry:
                shape = rows, spec.model.num_layers, spec.model.hidden_size
                state = {name: np.zeros(shape) for name in names}
            drawn = dropout_masks(spec, step, batch)
            kept = {name: (mask != 0).astype(dtype) for name, mask in drawn.items()}
            masks = {name: each / dtype.type(spec.model.keep) for name, each in kept.items()}
            found, state = witness.step(batch, masks, state, rate)
            yield {
                **{f"batch/{name}": array for name, array in batch.items()},
                "batch/carry": np.array(carry),
                "batch/sizes": np.array([rows]),
                "batch/learning_rate": np.array(rate),
                **{f"forward/{name}": array for name, array in state.items()},
                **found,
            }
            step += 1


def rate_of(spec: Spec, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 0: it decays after the first few."""
    training = spec.training
    late = sum(number > training.decay_after for number in range(1, epoch + 2))
    return float(training.learning_rate * training.decay**late)


def _read(spec: Spec, options: TrainOptions) -> tuple[list[str], list[str]]:
    """Return the lines to train on, and the vocabulary, which is that of the whole text."""
    if options.data is None:
        lines = [" ".join(words) for words, _ in sentences("train")]
    else:
        single = options.data.is_file()
        paths = split_text(options.data, options.cache) if single else find_splits(options.data)
        segmenter = spec.text.target_segmenter
        if segmenter == AUTO:
            segmenter, _ = choose_segmenter(paths["train"])
        lines = _lines(find_words(paths, options.cache, segmenter)[0]["train"])
    vocabulary = vocabulary_of(lines, spec.model.vocabulary_size)
    return lines[: spec.text.train_lines or None], vocabulary


def _epochs_of_stream(spec: Spec, options: TrainOptions) -> Iterator[Iterator[Arrays]]:
    ids = stream_of(*_read(spec, options))
    while True:
        yield batches_of(ids, spec.training.batch_size, spec.text.time)


def _lines(path: Path) -> list[str]:
    return path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")


def vocabulary_of(lines: list[str], size: int) -> list[str]:
    """Return the words of a text by their ids: frequent ones first, then by the alphabet."""
    counts = Counter(chain.from_iterable(line.split() for line in lines))
    words = sorted(counts.keys() - {"<unk>", "<eos>"}, key=lambda word: (-counts[word], word))
    return ["<unk>", "<eos>", *words][:size]


def stream_of(lines: list[str], vocabulary: list[str]) -> np.ndarray:
    """Return a text as ids, a word without an entry as that of `<unk>`, which is 0."""
    ids = {word: number for number, word in enumerate(vocabulary)}
    return np.array([ids.get(word, 0) for line in lines for word in [*line.split(), "<eos>"]])


def batches_of(ids: np.ndarray, rows: int, time: int) -> Iterator[Arrays]:
    """Yield the batches of an epoch, in which rows differ in length by at most one token."""
    sizes = [(len(ids) - 1 + rows - 1 - row) // rows for row in range(rows)]
    starts = np.cumsum([0, *sizes[:-1]])
    for column in range(0, max(sizes), time):
        tokens, targets = np.zeros((2, rows, time), np.int64)
        lengths = np.clip(np.array(sizes) - column, 0, time)
        for row, (start, length) in enumerate(zip(starts + column, lengths, strict=True)):
            tokens[row, :length] = ids[start : start + length]
            targets[row, :length] = ids[start + 1 : start + length + 1]
        yield {"tokens": tokens, "targets": targets, "lengths": lengths}


def _epochs_of_rows(spec: Spec, options: TrainOptions, text: Any) -> Iterator[Iterator[Arrays]]:
    """Yield batches of the rows that the text has in each, in its order."""
    if isinstance(spec.model, LanguageModelSpec):
        rows = list(rows_of(*_read(spec, options), spec.text.time))
    else:
        pairs = text.pairs.train
        rows = [pair_of(pairs.source(row), pairs.target(row)) for row in range(pairs.num_pairs)]
    for epoch in count():
        first = epoch * text.train.batches_per_epoch
        steps = range(first, first + text.train.batches_per_epoch)
        yield (_padded(spec, [rows[row] for row in text.train.rows(step)]) for step in steps)


def rows_of(lines: list[str], vocabulary: list[str], longest: int) -> Iterator[Arrays]:
    """Yield the rows of each line that has words, each after the token before it."""
    for line in lines:
        ids = stream_of([line], vocabulary)
        for start in range(0, len(ids), longest) if len(ids) > 1 else ():
            targets = ids[start : start + longest]
            before = ids[start - 1]  # of a line that begins, `<eos>`, with which it also ends
            yield {"tokens": np.array([before, *targets[:-1]]), "targets": targets}


def pair_of(question: np.ndarray, answer: np.ndarray) -> Arrays:
    """Return the row of a pair, in which 1 is `<go>` and 2 is `<eos>`."""
    tokens, targets = np.array([1, *answer]), np.array([*answer, 2])
    return {"source": question, "tokens": tokens, "targets": targets}


def _padded(spec: Spec, rows: list[Arrays]) -> Arrays:
    """Return the batch of some rows, with zeros beyond the end of each, and their lengths."""
    network, batch = NETWORKS[spec.network], dict[str, np.ndarray]()
    for name in rows[0]:
        lengths = np.array([len(row[name]) for row in rows])
        batch[name] = np.zeros((len(rows), lengths.max()), np.int64)
        for filled, row in zip(batch[name], rows, strict=True):
            filled[: len(row[name])] = row[name]
        batch[network.lengths[str(network.batch[name][1])]] = lengths
    return batch
