"""The training loop of both sides: epochs, validation, checkpoints, traces, progress, signals.

Nothing here knows a framework. A trainer is given, with `step`, `evaluate`, `load`, `snapshot`
and `replica_distances`; the batches are given, each a pure function of the step.
"""

import dataclasses
import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parity.base.errors import Interrupted, NumericFailure, UsageError
from parity.base.files import make_folder, write_whole
from parity.base.progress import Progress, say
from parity.cli.options import TrainOptions
from parity.compare.decoded import decode, decode_tensors
from parity.decoding.evaluation import bleu, exact_share, write_answers
from parity.oracle.isolation import Isolation
from parity.spec.batch_io import StepInputs, StepResult, check_finite, step_inputs
from parity.spec.initial import zero_state
from parity.spec.networks import NETWORKS
from parity.spec.replicas import split_rows
from parity.spec.spec import Spec, learning_rate
from parity.trace.side import Side
from parity.trace.trace import Writer
from parity.training.checkpoint import (
    Checkpoint,
    check_fits,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from parity.training.events import EventWriter
from parity.training.flops import product_flops
from parity.training.layout import Layout, choose_layout, layout_text
from parity.training.losses import Losses
from parity.training.meter import Meter, peak_memory
from parity.training.timeline import profile_training

_SPLITS = ("train", "valid", "test")

# What --overwrite removes from a run's folder; nothing else in it is this project's.
_OWN_FILES = (
    "checkpoints/latest",
    "checkpoints/step-????????.safetensors",
    "events/events.out.tfevents.*",
    "losses.csv",
    "summary.json",
    # vocabularies and dictionary, by the names that data/load.py gives them
    "checkpoints/vocabulary.txt",
    "checkpoints/source.vocabulary.txt",
    "checkpoints/target.vocabulary.txt",
    "checkpoints/user_dictionary.txt",
)


class TrainingText(Protocol):
    """What a run reads; data/load.py makes it.

    Attributes:
      train, valid, test: each with batches_per_epoch, smallest_batch and batch(step).
      content_hash: of text and vocabulary.
      vocabularies: file name -> content of the vocabularies, one token a line.
      padding: of pairs, kind -> share of positions that hold no token.
    """

    train: Any
    valid: Any
    test: Any
    content_hash: str
    vocabularies: Mapping[str, bytes]
    padding: Mapping[str, float] | None

    def prefetch(self, function: Callable[[int], StepInputs], start: int, stop: int) -> Any:
        """Iterate over function(step) for steps start .. stop - 1.

        The iterator has `waited` seconds, and is a context manager.
        """

    def best_perplexity(self, split: str) -> float | None:
        """Return the lowest possible perplexity of a split, or None where it is not known."""

    def num_sources(self, split: str) -> int:
        """Return how many sources a split has; of networks that decode."""

    def sources(self, split: str, rows: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return sources, int64 [rows, source_time], and their lengths; rows beyond the last
        are left out."""

    def references(self, split: str) -> list[str]:
        """Return the answers of a split as they were written."""

    def write(self, tokens: Sequence[int]) -> str:
        """Return what the ids of an answer say, to be read."""


@dataclass
class Summary:
    """What a run came to, also written as summary.json.

    Attributes:
      framework, replicas, steps, dtype: what ran, and the steps done in it.
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


def run_training(
    make_trainer: Callable[[Spec, Layout], Any],
    text: TrainingText,
    spec: Spec,
    options: TrainOptions,
    versions: Callable[[], dict[str, str]],
) -> Summary | None:
    """Train, validate after each epoch, test at the end; resume where asked.

    A run that is profiled does none of these, and has no Summary.

    Args:
      make_trainer: builds the trainer of a spec on a layout; called once the input is known to
        be good.
      spec: with the size of the real vocabulary.
      options: where to write, how many replicas and steps, what to resume.
      versions: returns those of the framework and of NumPy, for a trace.

    Raises:
      UsageError: for input that cannot be used.
      NumericFailure: if a loss or gradient is not finite; checkpoints written before stay.
      Interrupted: after SIGINT or SIGTERM, once a checkpoint is written.
    """
    layout, notes = choose_layout(options, smallest_batch(text)), list[str]()
    check_rows(text, layout.replicas)
    if layout != (options.replicas, options.threads):
        notes.append(layout_text(layout))
    checkpoint = find_checkpoint(options, notes)
    if checkpoint is not None:
        check_fits(checkpoint, spec, text.content_hash, allow_change=options.allow_change)
        if options.steps is not None and options.steps < checkpoint.step:
            raise UsageError(
                f"--steps is {options.steps}, but the checkpoint is at step {checkpoint.step}; "
                f"allowed: >= {checkpoint.step}"
            )
    if options.profile is None:
        check_folder(options)
    for note in notes:
        say(note)
    trainer = make_trainer(spec, layout)
    if options.profile is not None:
        profile_training(trainer, text, spec, layout, options)
        return None
    prepare_folder(options, spec)  # only now: what fails above leaves the old run alone
    run = Run(trainer, text, spec, options, versions)
    if checkpoint is not None:
        run.restore(checkpoint)
    return run.train()


class Run:
    """One training run: the trainer and all that goes on around its steps."""

    def __init__(
        self,
        trainer: Any,
        text: TrainingText,
        spec: Spec,
        options: TrainOptions,
        versions: Callable[[], dict[str, str]],
    ):
        """Take the parts; see `run_training`."""
        self.trainer, self.text, self.spec, self.options = trainer, text, spec, options
        self.versions = versions
        self.step = 0
        self.state: Mapping[str, np.ndarray] | None = None
        self._carries = bool(NETWORKS[spec.network].state(spec.model))
        self._decodes = NETWORKS[spec.network].decodes
        self._isolation = Isolation(spec) if options.isolate else None
        self.summary = Summary(trainer.framework, trainer.replicas, spec.training.dtype)
        self.summary.versions = versions()
        self.meter = Meter()
        self.losses = Losses(options.out / "losses.csv")
        self._stopped = _Stopped()
        self.last_step = spec.training.epochs * text.train.batches_per_epoch
        if options.steps is not None:
            self.last_step = options.steps

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of either framework."""
        self.trainer.load(checkpoint.snapshot)
        self.step, self.state = checkpoint.step, checkpoint.state
        self.losses.restore(checkpoint.step)
        say(f"resumed at step {self.step}, from a checkpoint that {checkpoint.framework} wrote")

    def train(self) -> Summary:
        """Do the remaining steps, then test."""
        options, text = self.options, self.text
        per_epoch = text.train.batches_per_epoch
        tracing = options.trace is not None
        with ExitStack() as stack:
            self._stopped = stack.enter_context(_signals())
            recorder = None
            if options.trace is not None:
                recorder = Writer(
                    options.trace, self._trace_header(), options.trace_pending, self._check_stop
                )
                stack.callback(recorder.close)
            events = stack.enter_context(
                EventWriter(None if tracing else options.out / "events", self.step)
            )
            progress = stack.enter_context(
                Progress(self.trainer.framework, self.step, self.last_step)
            )
            steps = stack.enter_context(
                text.prefetch(
                    lambda step: step_inputs(self.spec, step, text.train.batch(step)),
                    self.step,
                    self.last_step,
                )
            )
            for inputs in steps:
                epoch = self.step // per_epoch
                rate = learning_rate(self.spec.training, epoch)
                self.meter.start(steps.waited)
                result = self._train_step(inputs, rate, recorder)
                flops = product_flops(self.spec, inputs.batch)
                self.meter.stop(inputs.num_tokens, steps.waited, flops)
                progress.trained(result.loss, self.meter.recent)
                self.losses.add(self.step, result.loss, inputs.num_tokens)
                if not tracing:
                    events.step(
                        self.step, result, self._row_tokens(inputs), self.meter.recent, rate
                    )
                self.step += 1
                self.summary.steps += 1
                ended = self.step % per_epoch == 0
                due = options.checkpoint_every and self.step % options.checkpoint_every == 0
                last = self.step == self.last_step
                if not tracing and (ended or due or last or self._stopped.signal):
                    self.save()
                self._check_stop()
                if ended and not tracing:
                    self._validate(epoch, events)
            for name, value in self.meter.report().items():
                setattr(self.summary, name, value)
            self.summary.peak_memory = [peak_memory()]
            if not tracing:
                self._test(events)
                self._write_summary()
        return self.summary

    def _check_stop(self) -> None:
        """Stop if a signal asked for it; wherever this is called, the checkpoint is written.

        Raises:
          Interrupted: then.
        """
        if self._stopped.signal:
            saved = "; a checkpoint is written, --resume goes on"
            if self.options.trace is not None:
                saved = ""
            raise Interrupted(f"stopped at step {self.step}{saved}", self._stopped.signal)

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
          NumericFailure: if the replicas no longer hold the same values, or not finite ones.
        """
        for name, distances in self.trainer.replica_distances().items():
            if not np.all(distances == 0):
                replica = int(np.argmax(distances != 0))
                raise NumericFailure(
                    f"step {self.step}: replica {replica} has drifted from replica 0 in {name} "
                    f"by {distances[replica]:.3g}; no checkpoint is written"
                )
        snapshot = self.trainer.snapshot()
        for name, array in snapshot.items():
            # an update can overflow although loss and gradient did not
            if not np.all(np.isfinite(array)):
                raise NumericFailure(
                    f"step {self.step}, all replicas: {name} is not finite; "
                    "no checkpoint is written"
                )
        # before the checkpoint: rows too many are cut on --resume, a gap would stay
        self.losses.save()
        folder = self.options.out / "checkpoints"
        for name, content in self.text.vocabularies.items():
            if not (folder / name).exists() or (folder / name).read_bytes() != content:
                write_whole(folder / name, content)
        save_checkpoint(
            folder,
            Checkpoint(
                self.spec,
                self.step,
                snapshot,
                self.state if self._carries else None,
                self.text.content_hash,
                self.trainer.framework,
                {
                    name: hashlib.sha256(content).hexdigest()
                    for name, content in self.text.vocabularies.items()
                },
            ),
        )

    def evaluate(self, split: str) -> float:
        """Return the perplexity on a split: exp of the mean loss per real token."""
        batches = getattr(self.text, split)
        total, tokens = 0.0, 0
        state: Mapping[str, np.ndarray] | None = None
        for step in range(batches.batches_per_epoch):
            inputs = step_inputs(self.spec, step, batches.batch(step), train=False)
            if inputs.num_tokens == 0:
                continue
            if state is None or not inputs.carry:
                state = zero_state(self.spec, inputs.rows)
            result = self.trainer.evaluate(inputs, state)
            state = result.state
            total += result.loss * inputs.num_tokens
            tokens += inputs.num_tokens
            self._check_stop()
        return perplexity(total / tokens)

    def _train_step(
        self, inputs: StepInputs, rate: float, recorder: Writer | None
    ) -> StepResult:
        sizes = split_rows(inputs.rows, self.trainer.replicas)
        if self.state is None or not inputs.carry:
            self.state = zero_state(self.spec, inputs.rows)
        if self._isolation is not None:
            oracle = self._isolation.step(inputs, rate, sizes)
            self.trainer.load(oracle.snapshot)
            self.state, inputs = oracle.state, dataclasses.replace(inputs, fed=oracle.fed)
        result: StepResult = self.trainer.step(
            inputs, self.state, rate, record=recorder is not None
        )
        if recorder is not None:
            tensors = _trace_tensors(inputs, result, rate, sizes, self.spec)
            decodes = self._decodes and self.options.decode and not self.options.isolate
            if self.step + 1 == self.last_step and decodes:
                tensors |= self._decode_for_trace()
            recorder.step(self.step, tensors)
        check_finite(result, self.step, sizes)
        self.state = result.state
        return result

    def _decode_for_trace(self) -> dict[str, np.ndarray]:
        """Decode some test sentences with the weights as they are now."""
        source, lengths = self.text.sources("test", range(self.options.decode))
        settings = self.options.beam, self.options.length_penalty, self._most_tokens()
        found = decode(self.trainer.decoder(), source, lengths, *settings)
        return decode_tensors(source, lengths, found, *settings)

    def _most_tokens(self) -> int:
        """Return the most tokens of an answer, `<eos>` included."""
        return int(self.spec.text.target_limit) + 1

    def _row_tokens(self, inputs: StepInputs) -> np.ndarray:
        """Return the real tokens of each replica, [replicas]."""
        sizes = split_rows(inputs.rows, self.trainer.replicas)
        return np.add.reduceat(inputs.batch["lengths"], np.cumsum([0, *sizes[:-1]]))

    def _validate(self, epoch: int, events: EventWriter) -> None:
        started = time.perf_counter()
        value = self.evaluate("valid")
        self.summary.valid_perplexity.append(value)
        events.perplexity("valid", self.step, value)
        best = self.text.best_perplexity("valid")
        least = f"; lowest possible {best:.3f}" if best else ""
        speed = f"{self.meter.recent:,.0f} tokens/s"
        seconds = time.perf_counter() - started
        say(
            f"epoch {epoch + 1}: validation perplexity {value:.3f}{least}; trained at {speed}, "
            f"validated in {seconds:.1f} s"
        )

    def _test(self, events: EventWriter) -> None:
        if self.step < self.spec.training.epochs * self.text.train.batches_per_epoch:
            return
        value = self.evaluate("test")
        self.summary.test_perplexity = value
        events.perplexity("test", self.step, value)
        best = self.text.best_perplexity("test")
        say(f"test perplexity {value:.3f}" + (f"; lowest possible {best:.3f}" if best else ""))
        if self._decodes:
            self._answer(events)

    def _answer(self, events: EventWriter) -> None:
        """Answer the test questions and hold the answers against the references."""
        started, text, options = time.perf_counter(), self.text, self.options
        answers = write_answers(
            self.trainer.decoder(),
            text,
            "test",
            options.beam,
            options.length_penalty,
            self._most_tokens(),
            self._check_stop,
        )
        references = text.references("test")
        segmenter = self.spec.text.target_segmenter
        self.summary.bleu = bleu(answers, references, segmenter)
        self.summary.exact_answers = exact_share(answers, references, segmenter)
        events.scalar("bleu/test", self.step, self.summary.bleu["score"])
        seconds = time.perf_counter() - started
        say(
            f"test BLEU {self.summary.bleu['score']:.2f} over {len(answers):,} answers, "
            f"{self.summary.exact_answers:.1%} of them exact; beam {options.beam}, "
            f"{seconds:.1f} s; {self.summary.bleu['signature']}"
        )

    def _write_summary(self) -> None:
        self.summary.best_perplexity = {
            split: self.text.best_perplexity(split) for split in ("valid", "test")
        }
        self.summary.padding = self.text.padding
        content = json.dumps(_finite(vars(self.summary)), indent=2)
        write_whole(self.options.out / "summary.json", content.encode())

    def _trace_header(self) -> dict[str, Any]:
        side = getattr(self.trainer, "side", None) or Side(
            self.trainer.framework, replicas=self.trainer.replicas
        )
        return {
            **side.to_json(),
            "versions": self.versions(),
            "first_step": self.step,
            "steps": self.last_step - self.step,
            "spec": self.spec.to_json(),
            "preset": self.options.preset,
            **({"isolated": True} if self.options.isolate else {}),
            "corpus": self.text.content_hash,
            "batches_per_epoch": self.text.train.batches_per_epoch,
        }


def smallest_batch(text: Any) -> int:
    """Return the rows of the smallest batch of any split of a TrainingText."""
    return min(int(getattr(text, split).smallest_batch) for split in _SPLITS)


def check_rows(text: TrainingText, replicas: int) -> None:
    """See before anything is built that every batch gives each replica a row.

    Raises:
      UsageError: if one does not.
    """
    for split in _SPLITS:
        try:
            split_rows(getattr(text, split).smallest_batch, replicas)
        except UsageError as error:
            raise UsageError(f"{split}: {error}") from None


def find_checkpoint(options: TrainOptions, notes: list[str]) -> Checkpoint | None:
    """Return the checkpoint to resume from, if any.

    Raises:
      UsageError: if there is none where one was named, or none is whole.
    """
    if options.resume is None:
        return None
    if options.resume == "":
        newest = newest_checkpoint(options.out / "checkpoints", notes)
        if newest is None:
            notes.append(f"{options.out}: holds no checkpoint to resume; starting at step 0")
        return newest
    path = Path(options.resume)
    if not path.is_dir():
        return load_checkpoint(path)
    inner = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = newest_checkpoint(inner, notes)
    if found is None:
        raise UsageError(f"--resume is {options.resume!r}, where there is no checkpoint")
    return found


def check_folder(options: TrainOptions) -> None:
    """See that the run's folder is free, or this run's, and can be written.

    Raises:
      UsageError: if another run is in it without --overwrite, or it cannot be written.
    """
    if options.trace is not None:
        return
    if (options.out / "run.json").exists() and not options.overwrite:
        inside = options.resume is not None and (
            options.resume == ""
            or Path(options.resume).resolve().is_relative_to(options.out.resolve())
        )
        if not inside:
            raise UsageError(
                f"{options.out}: holds a run already; allowed: --resume of it, --overwrite, or "
                "another --out"
            )
    make_folder(options.out / "checkpoints")


def prepare_folder(options: TrainOptions, spec: Spec) -> None:
    """Mark the run's folder as such; with --overwrite, remove the run that is in it."""
    if options.trace is not None:
        return
    marker = options.out / "run.json"
    if marker.exists() and options.overwrite:
        for own in _OWN_FILES:
            for path in options.out.glob(own):
                path.unlink()
    write_whole(marker, json.dumps({"spec": spec.to_json()}, indent=2).encode())


def _finite(value: Any) -> Any:
    """Return plain values with None for infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def perplexity(loss: float) -> float:
    """Return exp(loss) for a loss in nats per token; infinity where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _trace_tensors(
    inputs: StepInputs, result: StepResult, rate: float, sizes: list[int], spec: Spec
) -> dict[str, np.ndarray]:
    carried = NETWORKS[spec.network].state(spec.model)
    return {
        **{f"batch/{name}": array for name, array in inputs.batch.items()},
        "batch/carry": np.array(inputs.carry),
        "batch/sizes": np.array(sizes),
        "batch/learning_rate": np.array(rate),
        **{f"forward/{name}": result.state[name] for name in carried},
        "loss/replicas": result.losses,
        "loss/global": result.losses.sum(),
        "gradient_norm": np.array(result.gradient_norm, spec.training.dtype),
    } | dict(result.tensors)


class _Stopped:
    """Which signal asked the run to stop, if any."""

    signal: int = 0


@contextmanager
def _signals() -> Iterator[_Stopped]:
    """Let SIGINT and SIGTERM stop the run after the step; a second one stops it at once."""
    stopped = _Stopped()

    def handle(number: int, frame: Any) -> None:
        if stopped.signal:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stopped.signal = number

    before = {
        number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
