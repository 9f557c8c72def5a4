"""The training loop of both sides: epochs, validation, checkpoints, traces, progress, signals.

The loop depends on no framework: a `Strategy` trains, and each batch is a pure function of the
step's number.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np

from parity.base.errors import Interrupted, NumericFailure
from parity.base.progress import say
from parity.base.text import counted
from parity.twins.cli.options import TrainOptions
from parity.twins.processes.group import ProcessGroup
from parity.twins.processes.joining import gather_state
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec
from parity.twins.training.asynchronous_run import asynchronous_run, check_asynchronous
from parity.twins.training.checkpoint import (
    Checkpoint,
    best_checkpoint,
    save_checkpoint,
    write_vocabularies,
)
from parity.twins.training.evaluate_only import evaluate_checkpoint
from parity.twins.training.events import EventWriter
from parity.twins.training.loss_table import Losses
from parity.twins.training.measured_layout import Calibration, layout_of_run
from parity.twins.training.meter import Meter, peak_memory
from parity.twins.training.needed_memory import check_memory
from parity.twins.training.rank_agreement import (
    StopRequest,
    agreed_signal,
    catch_signals,
    facts_of_run,
    serve,
    shared_checkpoint,
)
from parity.twins.training.recording import TraceRecording, evaluates
from parity.twins.training.replicas_and_threads import (
    check_rows,
    choose_layout,
    layout_text,
    smallest_batch,
)
from parity.twins.training.resolved import with_layout
from parity.twins.training.run_folder import (
    as_started_again,
    check_folder,
    checkpoint_to_resume,
    locked_folder,
    prepare_folder,
)
from parity.twins.training.strategy import Build, Strategy
from parity.twins.training.summary import Summary
from parity.twins.training.text_source import TextSource
from parity.twins.training.timeline import profile_training
from parity.twins.training.train_steps import State, TrainedStep, train_steps
from parity.twins.training.validation import Validation
from parity.twins.training.worker_processes import led_by_rank_0


def run_training(
    make_strategy: Callable[[Spec, Build], Strategy],
    text: TextSource,
    spec: Spec,
    options: TrainOptions,
    versions: Callable[[], dict[str, str]],
    group: ProcessGroup | None = None,
    asked: Spec | None = None,
    calibration: Calibration | None = None,
) -> Summary | None:
    """Train a network, validate it after each epoch and test it at the end.

    Args:
      make_strategy: builds the training; called only after the input has been checked.
      text: the text to train on.
      spec: the network and its training, with the vocabulary sizes of the text.
      options: the options of the command line, such as --resume and --profile.
      versions: returns the versions of the framework and of NumPy.
      group: the processes that share the training; by default this one alone. Rank 0 writes
        all files.
      asked: the spec before the text set its vocabulary sizes, for config.yaml; by default
        `spec`.
      calibration: measures layouts where the options leave them open; None for the default one.

    Returns:
      The summary of the run; None if it was profiled, or did not train.

    Raises:
      UsageError: for input that cannot be used.
      NumericFailure: if a loss or gradient is not finite; earlier checkpoints are kept.
      Interrupted: after SIGINT or SIGTERM, once a checkpoint has been written.
    """
    group = group or ProcessGroup()
    options = as_started_again(options, group.run)
    layout, notes = choose_layout(options, smallest_batch(text), group.workers), list[str]()
    check_rows(text, layout.replicas)
    check_memory(spec)
    group.join(facts_of_run(spec, text, options, layout.replicas))
    if group.serves:
        serve(spec, options, layout, group)
        return None
    with locked_folder(options, group):
        checkpoint = None
        if group.rank == 0:
            checkpoint = checkpoint_to_resume(text, spec, options, notes)
            check_folder(options)
        checkpoint = shared_checkpoint(group, checkpoint)
        why = ""
        if calibration is not None:
            found = None
            if checkpoint is not None:
                found = layout_of_run(options, calibration.entry, smallest_batch(text))
            found = found or calibration.layout(spec, text, options, asked or spec)
            layout, why = found or (layout, why)
        if layout != (options.replicas, options.threads):
            notes.insert(0, layout_text(layout, why))
        for note in notes:
            say(note)
        build = Build(
            layout.replicas,
            options.device,
            layout.threads,
            options.kernels,
            isolate=options.isolate,
            evaluates=evaluates(options),
            log_device_placement=options.log_device_placement,
            group=group,
        )
        strategy = make_strategy(spec, build)
        check_asynchronous(strategy, options)
        config = with_layout(options, strategy.entry, layout), asked or spec
        with led_by_rank_0(strategy, text) as leading:
            if leading is not None:
                return _run(leading, text, options, checkpoint, versions, config)
    return None


def _run(
    strategy: Strategy,
    text: TextSource,
    options: TrainOptions,
    checkpoint: Checkpoint | None,
    versions: Callable[[], dict[str, str]],
    config: tuple[TrainOptions, Spec],
) -> Summary | None:
    if options.profile is not None:
        profile_training(strategy, text, options)
        return None
    if options.evaluate_only:
        assert checkpoint is not None
        evaluate_checkpoint(strategy, text, checkpoint, options)
        return None
    run = Run(strategy, text, options, versions)
    run.check_schedule(0 if checkpoint is None else checkpoint.step)
    if run.group.rank == 0:  # only now: a failure above leaves the old run untouched
        prepare_folder(options, strategy.spec, run.group.run, config)
    if checkpoint is not None:
        run.restore(checkpoint)
    return run.train()


class Run:
    """One training run: the strategy's steps, and everything that is done between them."""

    def __init__(
        self,
        strategy: Strategy,
        text: TextSource,
        options: TrainOptions,
        versions: Callable[[], dict[str, str]],
    ):
        """Prepare the run; see `run_training` for the arguments."""
        self.strategy, self.text, self.options = strategy, text, options
        self.spec = spec = strategy.spec
        self.group = strategy.build.group
        self.step = 0
        self.state: State | None = None
        self.summary = Summary(strategy.framework, strategy.replicas, spec.training.dtype)
        self.summary.strategy = strategy.entry.name
        self.summary.kernels = strategy.build.kernels
        self.summary.versions = versions()
        self.meter = Meter()
        self.losses = Losses(options.out / "losses.csv")
        self._validation = Validation(strategy, text, options, self.summary, self._check_stop)
        self._stop_request = StopRequest()
        self._asynchronous = asynchronous_run(strategy, text, options)
        self._all_steps = spec.training.epochs * text.train.batches_per_epoch
        self.last_step = self._all_steps if options.steps is None else options.steps
        if self._asynchronous is not None and options.trace is not None:
            self.last_step = options.steps or self._all_steps * strategy.replicas

    def check_schedule(self, start: int) -> None:
        """Check that the schedule, if there is one, fits the steps from `start` on.

        Raises:
          UsageError: if it does not.
        """
        if self._asynchronous is not None:
            self._asynchronous.check_schedule(start, self.last_step)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint that either framework wrote."""
        self.strategy.load(checkpoint.snapshot)
        self.step, self.state = checkpoint.step, checkpoint.state
        self.meter.first_step = checkpoint.step
        self.losses.restore(checkpoint.step)
        self._validation.resume(checkpoint.step)
        if self._asynchronous is not None:
            self._asynchronous.log.restore(checkpoint.step)
        say(f"resumed at step {self.step}, from a checkpoint that {checkpoint.framework} wrote")

    def train(self) -> Summary:
        """Train the remaining steps; without --trace also validate and test."""
        tracing = self.options.trace is not None
        with ExitStack() as stack:
            self._stop_request = stack.enter_context(catch_signals())
            recording, events = None, None
            if tracing:
                recording = stack.enter_context(closing(self._record()))
            else:
                folder = self.options.out / "events" if self.group.rank == 0 else None
                events = EventWriter(folder, self.step)
                stack.enter_context(events)
            steps = self._steps(recording)
            for step in stack.enter_context(closing(steps)):
                self._after(step, events)
            for name, value in self.meter.report().items():
                setattr(self.summary, name, value)
            peaks = self.group.gather({"bytes": np.array(peak_memory())}) or []
            self.summary.peak_memory = [int(each["bytes"]) for each in peaks]
            if events is not None:
                if self.step >= self._all_steps:
                    self._validation.test(self.step, events)
                if self.group.rank == 0:
                    self.summary.write(self.options.out / "summary.json", self.text)
                    self._say_last()
        return self.summary

    def _say_last(self) -> None:
        """Say where the run is, and how it ended."""
        best = best_checkpoint(self.options.out / "checkpoints")
        figures = self.summary.figures(self.losses.last, self.meter.recent, best)
        say(f"{self.options.out}: {counted(self.step, 'step')}; {figures}")

    @property
    def _stop_signal(self) -> int:
        """Return the signal that asks the run to stop, once all processes know; else 0."""
        return agreed_signal(self.group, self._stop_request.signal)

    def _steps(self, recording: TraceRecording | None) -> Generator[TrainedStep, None, None]:
        if self._asynchronous is not None:
            return self._asynchronous.steps(
                self.last_step, self.meter, self.step, self.state, self._stop_request, recording
            )
        return train_steps(
            self.strategy,
            self.text,
            self.last_step,
            self.meter,
            start=self.step,
            state=self.state,
            run_step=None if recording is None else recording.step,
            group=None if self.options.isolate else self.group,  # the oracle takes all rows
        )

    def _record(self) -> TraceRecording:
        first = self.step
        if self._asynchronous is not None:
            first *= self.strategy.replicas
        return TraceRecording(
            self.strategy,
            self.text,
            self.options,
            first,
            self.last_step,
            self.summary.versions,
            self._check_stop,
        )

    def _after(self, step: TrainedStep, events: EventWriter | None) -> None:
        """Finish a step: note the loss, write events, save, validate.

        Args:
          step: the step that was trained.
          events: the writer of TensorBoard events; None while a trace is recorded.

        Raises:
          Interrupted: if a signal has asked the run to stop.
        """
        inputs, result, rate = step.inputs, step.result, step.learning_rate
        self.step, self.state = step.number + 1, result.state
        self.summary.steps += 1
        self.losses.add(step.number, inputs.per_token(result.loss), inputs.num_tokens)
        ended = self.step % self.text.train.batches_per_epoch == 0
        if events is not None:
            sizes = split_rows(inputs.rows, self.strategy.replicas)
            tokens = np.add.reduceat(inputs.lengths["lengths"], np.cumsum([0, *sizes[:-1]]))
            per_token = replace(result, losses=inputs.per_token(result.losses))
            events.step(step.number, per_token, tokens, self.meter.recent, rate)
        if step.settled and self._save_is_due(ended):
            if events is not None:  # first, as a resumed run cannot fill a gap
                events.flush()
            self.save()
        workers = self._asynchronous
        if step.settled or (workers is not None and not workers.settles_on_request):
            self._check_stop(saved=step.settled)
        if events is not None and (ended or self.step == self.last_step):
            self._validation.validate(step, events, self.meter.recent)

    def _save_is_due(self, epoch_ended: bool) -> bool:
        """Return whether to write a checkpoint after this step."""
        every = self.options.checkpoint_every
        if every is not None and self.step % every == 0:
            return True
        if self.options.trace is not None:
            return False
        last = self.step == self.last_step
        return epoch_ended or last or bool(self._stop_signal)

    def _check_stop(self, *, saved: bool = True) -> None:
        """Stop the run if a signal has asked for it.

        Args:
          saved: whether a checkpoint of this step could be written.

        Raises:
          Interrupted: if a signal has asked the run to stop.
        """
        if self._stop_signal:
            note = "; a checkpoint is written, --resume continues from it"
            if self.options.trace is not None:
                note = ""
            elif not saved:
                note = (
                    "; no checkpoint is written, because the schedule does not let the "
                    "replicas wait for each other here"
                )
            raise Interrupted(f"stopped at step {self.step}{note}", self._stop_signal)

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
          NumericFailure: if the replicas' values differ, or are not finite.
        """
        snapshot, state = self._checked_snapshot(), self.state
        if state is not None:
            state = gather_state(self.group, state, self.strategy.replicas)
        if self.group.rank == 0:
            self._write_checkpoint(snapshot, state)
        self.group.barrier()  # an engine would not wait for a slow disk

    def _write_checkpoint(self, snapshot: dict[str, Any], state: State | None) -> None:
        # before the checkpoint: --resume cuts off rows that are too many, but cannot fill a gap
        self.losses.save()
        if self._asynchronous is not None:
            self._asynchronous.log.save()
        folder = self.options.out / "checkpoints"
        hashes = write_vocabularies(folder, self.text.vocabularies)
        carries = bool(NETWORKS[self.spec.network].state(self.spec.model))
        save_checkpoint(
            folder,
            Checkpoint(
                self.spec,
                self.step,
                snapshot,
                state if carries else None,
                self.text.content_hash,
                self.strategy.framework,
                hashes,
            ),
        )

    def _checked_snapshot(self) -> dict[str, Any]:
        """Return weights and optimiser state, which are equal on all replicas and finite."""
        for name, distances in self.strategy.replica_distances().items():
            if not np.all(distances == 0):
                replica = int(np.argmax(distances != 0))
                raise NumericFailure(
                    f"step {self.step}: replica {replica} has drifted from replica 0 in {name} "
                    f"by {distances[replica]:.3g}; no checkpoint is written"
                )
        snapshot = self.strategy.snapshot()
        for name, array in snapshot.items():
            # an update can overflow even if loss and gradient are finite
            if not np.all(np.isfinite(array)):
                raise NumericFailure(
                    f"step {self.step}, all replicas: {name} is not finite; "
                    "no checkpoint is written"
                )
        return snapshot
