"""The training loop of both sides: epochs, validation, checkpoints, traces, progress, signals.

The loop depends on no framework: a `Strategy` trains, and each batch is a pure function of the
step's number.
"""

from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from parity.base.errors import Interrupted, NumericFailure
from parity.base.progress import say
from parity.base.text import counted
from parity.twins.cli.options import TrainOptions
from parity.twins.processes.gathering import gather_state
from parity.twins.spec.networks import NETWORKS
from parity.twins.training.asynchronous_run import AsynchronousRun, ScheduleLog
from parity.twins.training.checkpoint import (
    Checkpoint,
    save_checkpoint,
    write_vocabularies,
)
from parity.twins.training.evaluate import Validation
from parity.twins.training.events import EventWriter
from parity.twins.training.loss_table import Losses
from parity.twins.training.meter import Meter, peak_memory
from parity.twins.training.rank_agreement import StopRequest, agreed_signal, catch_signals
from parity.twins.training.recording import TraceRecording
from parity.twins.training.strategy import Strategy
from parity.twins.training.summary import Summary
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import State, TrainedStep, train_steps


class Run:
    """One training run: the strategy's steps, and everything that is done between them."""

    def __init__(
        self,
        strategy: Strategy,
        text: TextSource,
        options: TrainOptions,
        versions: dict[str, str],
        checkpoint: Checkpoint | None,
    ):
        """Prepare the run; see `run_training` for the arguments.

        Raises:
          UsageError: if the schedule, if there is one, does not fit the steps to train.
        """
        self.strategy, self.text, self.options = strategy, text, options
        self.spec = spec = strategy.spec
        self.group = strategy.build.group
        self.step = 0 if checkpoint is None else checkpoint.step
        self.state: State | None = None
        self._checkpoint = checkpoint
        self._traces = options.trace is not None
        self.summary = Summary(
            strategy.framework,
            strategy.replicas,
            spec.training.dtype,
            versions=versions,
            strategy=strategy.entry.name,
            kernels=strategy.build.kernels,
        )
        self.meter = Meter()
        self.losses = Losses(options.out / "losses.csv")
        only = self._traces or options.profile is not None
        folder = None if only or self.group.rank > 0 else options.out / "events"
        self._events = EventWriter(folder, self.step)
        self._validation = Validation(
            strategy, text, options, self.summary, self._events, self._check_stop
        )
        self._stop_request, self._stopped_early = StopRequest(), False
        self._asynchronous: AsynchronousRun | None = None
        if not strategy.entry.traits.synchronous:
            log = ScheduleLog(options.out / "schedule.jsonl", strategy.replicas)
            every = options.checkpoint_every
            self._asynchronous = AsynchronousRun(strategy, text, log, every, self._traces)
        self._all_steps = spec.training.epochs * text.train.batches_per_epoch
        self.last_step = self._all_steps if options.steps is None else options.steps
        if self._asynchronous is not None:
            if self._traces:
                self.last_step = options.steps or self._all_steps * strategy.replicas
            self._asynchronous.check_schedule(self.step, self.last_step)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint that either framework wrote."""
        self.strategy.load(checkpoint.snapshot)
        self.step, self.state = checkpoint.step, checkpoint.state
        self.meter.first_step = checkpoint.step
        self.losses.restore(checkpoint.step)
        self._validation.resume(checkpoint.step, self.options.allow_change)
        if self._asynchronous is not None:
            self._asynchronous.log.restore(checkpoint.step)
        say(f"resumed at step {self.step}, from a checkpoint that {checkpoint.framework} wrote")

    def train(self) -> Summary:
        """Train the remaining steps; without --trace also validate and test."""
        if self._checkpoint is not None:
            self._restore(self._checkpoint)
        with catch_signals() as self._stop_request, self._events:
            goes_on = self._checkpoint is not None and not self.options.allow_change
            if goes_on and not self._traces and self._validation.lacks(self.step):
                self._validation.validate(self.step, settled=True)
            self._stopped_early = self._validation.ends_early(self.step, self.last_step)
            with closing(self.steps()) as steps:
                while not self._stopped_early and (step := next(steps, None)) is not None:
                    self._after(step)
            for name, value in self.meter.report().items():
                setattr(self.summary, name, value)
            peaks = self.group.gather({"bytes": np.array(peak_memory())}) or []
            self.summary.peak_memory = [int(each["bytes"]) for each in peaks]
            if not self._traces:
                over = self._stopped_early or self.step >= self._all_steps
                self._validation.conclude(self.step, over)
                if self.group.rank == 0:
                    self._finish()
            elif self.group.rank == 0:
                say(f"trace: {self.options.trace}")
        return self.summary

    def _finish(self) -> None:
        """Write the summary, and say where the run is and how it ended."""
        path = self.options.out / "summary.json"
        if self.summary.steps or not path.exists():  # else it is of what was trained before
            self.summary.write(path, self.text)
        if not self.summary.steps:
            flag, last = "--epochs", self.spec.training.epochs
            if self._stopped_early:
                flag, last = "--patience", self.spec.training.patience
            elif self.options.steps is not None:
                flag, last = "--steps", self.last_step
            say(
                f"{self.options.out}: {counted(self.step, 'step')}; nothing is left to train: "
                f"{flag} is {last}, and a greater one goes on"
            )
            return
        best = self._validation.best
        figures = self.summary.figures(self.losses.last, self.meter.recent, best)
        say(f"{self.options.out}: {counted(self.step, 'step')}; {figures}")

    @property
    def _stop_signal(self) -> int:
        """Return the signal that asks the run to stop, once all processes know; else 0."""
        return agreed_signal(self.group, self._stop_request.signal)

    def steps(self) -> Generator[TrainedStep, None, None]:
        """Train the remaining steps, and with --trace record them; yield each."""
        workers, first, recording = self._asynchronous, self.step, None
        with ExitStack() as stack:
            if self._traces:
                recording = TraceRecording(
                    self.strategy,
                    self.text,
                    self.options,
                    first if workers is None else first * self.strategy.replicas,
                    self.last_step,
                    self.summary.versions,
                    self._check_stop,
                )
                stack.enter_context(closing(recording))
            if workers is None:
                yield from train_steps(
                    self.strategy,
                    self.text,
                    self.last_step,
                    self.meter,
                    start=first,
                    state=self.state,
                    run_step=None if recording is None else recording.step,
                    group=self.group,
                )
            else:
                yield from workers.steps(
                    self.last_step,
                    self.meter,
                    first,
                    self.state,
                    self._stop_request,
                    None if recording is None else recording.update,
                )

    def _after(self, step: TrainedStep) -> None:
        """Finish a step: note the loss, write events, save, validate.

        Raises:
          Interrupted: if a signal has asked the run to stop.
        """
        inputs, result = step.inputs, step.result
        self.step, self.state = step.number + 1, result.state
        self.summary.steps += 1
        self.losses.add(step.number, inputs.per_token(result.loss), inputs.num_tokens)
        ended = self.step % self.text.train.batches_per_epoch == 0
        self._events.step(step, self.strategy.replicas, self.meter)
        if step.settled and self._save_is_due(ended):
            self.save()
        workers = self._asynchronous
        if step.settled or (workers is not None and not workers.settles_on_request):
            self._check_stop(saved=step.settled)
        if not self._traces and (ended or self.step == self.last_step):
            self._validation.validate(self.step, step.settled, self.meter.recent)
            self._stopped_early = self._validation.ends_early(self.step, self.last_step)

    def _save_is_due(self, epoch_ended: bool) -> bool:
        """Return whether to write a checkpoint after this step."""
        every = self.options.checkpoint_every
        if every is not None and self.step % every == 0:
            return True
        if self._traces:
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
            if self._traces:
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
        self._events.flush()
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
