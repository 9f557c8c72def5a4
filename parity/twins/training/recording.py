"""Records a trace of a run: every tensor of every step; at its end, answers and evaluation."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parity.base.files import CONFIG
from parity.trace.writer import Writer
from parity.twins.cli.options import TrainOptions
from parity.twins.processes.gathering import gather_state, whole_batch
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import StepInputs, StepResult
from parity.twins.spec.training import learning_rate
from parity.twins.trace.decoded import decode, decode_tensors
from parity.twins.trace.evaluated import SPLITS, evaluation_tensors
from parity.twins.trace.side import TrainedSide
from parity.twins.training.asynchronous_run import AppliedUpdate
from parity.twins.training.checkpoint import keep_best, load_checkpoint, save_checkpoint
from parity.twins.training.evaluate import answer_questions, evaluate
from parity.twins.training.loss_table import Losses
from parity.twins.training.meter import Meter
from parity.twins.training.strategy import Strategy, definition
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import State


class TraceRecording:
    """Runs the steps of a training and writes their tensors to a trace.

    Args:
      strategy: the strategy that runs the steps.
      text: the text to train on.
      options: where to record, and how much to decode and to evaluate at the end.
      first: the number of the first step of the trace; of an asynchronous training, in which
        every update is a step of the trace, the number of the first update.
      stop: the number of the step of the trace after the last.
      versions: package -> version, for the framework and for NumPy.
      waiting: a function called repeatedly while the writer waits for a reader; it raises an
        exception to give up.
    """

    def __init__(
        self,
        strategy: Strategy,
        text: TextSource,
        options: TrainOptions,
        first: int,
        stop: int,
        versions: dict[str, str],
        waiting: Callable[[], None],
    ):
        self._strategy, self._text, self._options = strategy, text, options
        self._network = NETWORKS[strategy.spec.network]
        self._step, self._stop, self._waiting = first, stop, waiting
        self._group = strategy.build.group
        self._writer: Writer | None = None
        if self._group.rank == 0:
            header = self._header(versions)
            assert options.trace is not None
            pending = options.trace_pending
            self._writer = Writer(options.trace, header, pending, waiting, kept=[CONFIG])
        self._resumed = options.resume is not None and strategy.entry.traits.synchronous

    def step(self, inputs: StepInputs, state: State, learning_rate: float) -> StepResult:
        """Train one step and record it; before the first of a resumed run, what it loaded."""
        sizes = split_rows(inputs.rows, self._strategy.replicas)
        loaded = self._loaded(state) if self._resumed else {}
        self._resumed = False
        result = self._strategy.step(inputs, state, learning_rate, record=True)
        self._write(inputs, result, learning_rate, sizes, {**result.tensors, **loaded})
        return result

    def _loaded(self, state: State) -> dict[str, np.ndarray]:
        """Return weights, the optimizer's state and the recurrent state before a step."""
        replicas = self._strategy.replicas
        whole = gather_state(self._group, state, replicas) if state else {}
        recurrent = {f"forward/{name}": array for name, array in (whole or {}).items()}
        return {f"initial/{n}": a for n, a in (self._strategy.snapshot() | recurrent).items()}

    def update(self, applied: AppliedUpdate) -> None:
        """Record an update of an asynchronous training as one step of the trace."""
        part, result = applied.part, applied.result
        schedule = {
            "schedule/worker": part.worker,
            "schedule/batch": part.step,
            "schedule/read": applied.read,
            "schedule/first_row": part.first,
            "schedule/of_rows": part.of_rows,
        }
        tensors = {name: np.array(value) for name, value in schedule.items()}
        tensors |= dict(result.tensors) | self._strategy.snapshot()
        rows = [part.inputs.rows]
        self._write(part.inputs, result, applied.learning_rate, rows, tensors)

    def _write(
        self,
        inputs: StepInputs,
        result: StepResult,
        learning_rate: float,
        sizes: list[int],
        tensors: Mapping[str, np.ndarray],
    ) -> None:
        """Write a step of the trace, and after the last one what it decodes and evaluates."""
        spec = self._strategy.spec
        carried = self._network.state(spec.model)
        batch = whole_batch(self._group, inputs) or inputs.batch
        recorded = {
            **{f"batch/{name}": array for name, array in batch.items()},
            "batch/carry": np.array(inputs.carry),
            "batch/sizes": np.array(sizes),
            "batch/learning_rate": np.array(learning_rate),
            **{f"forward/{name}": result.state[name] for name in carried},
            "loss/replicas": result.losses,
            "loss/global": result.losses.sum(),
            "gradient_norm": np.array(result.gradient_norm, spec.training.dtype),
        } | dict(tensors)
        if self._step + 1 == self._stop:
            if self._decodes() and self._group.rank == 0:
                recorded |= self._decoded()
            self._group.barrier()
            if self._strategy.build.evaluates:
                recorded |= self._evaluated()
        if self._writer is not None:
            self._writer.step(self._step, recorded)
        self._group.barrier()  # an engine would not wait for whoever reads the trace
        self._step += 1

    def close(self) -> None:
        """Close the trace."""
        if self._writer is not None:
            self._writer.close()

    def _decodes(self) -> bool:
        return bool(self._network.decodes and self._options.decode)

    def _decoded(self) -> dict[str, np.ndarray]:
        """Decode some test sentences with the current weights."""
        options = self._options
        source, lengths = self._text.sources("test", range(options.decode))
        most = int(self._strategy.spec.text.target_limit) + 1  # with <eos>
        settings = options.beam, options.length_penalty, most
        found = decode(self._strategy.decoder(), source, lengths, *settings)
        return decode_tensors(source, lengths, found, *settings)

    def _evaluated(self) -> dict[str, np.ndarray]:
        """Evaluate the current weights as a training does after an epoch."""
        tensors: dict[str, np.ndarray] = {}
        for split in SPLITS:
            most = self._options.batches_evaluated
            found = evaluate(self._strategy, self._text, split, self._waiting, most, keep=True)
            if self._group.rank == 0:
                tensors |= evaluation_tensors(self._strategy.spec, split, found)
        return tensors

    def _header(self, versions: dict[str, str]) -> dict[str, Any]:
        strategy, entry = self._strategy, self._strategy.entry
        settings, group = strategy.build.settings, strategy.build.group
        # a launcher, or a file of hosts, may have said how many processes there are
        alone = group.size == 1
        processes = entry.processes(settings, strategy.replicas) if alone else group.size
        side = TrainedSide(
            strategy.framework,
            strategy.entry.name,
            strategy.replicas,
            strategy.build.kernels,
            processes,
            entry.traits.synchronous,
            settings,
        )
        return {
            **side.to_json(),
            "sources": strategy.sources() | self._definitions(),
            "versions": versions,
            "first_step": self._step,
            "steps": self._stop - self._step,
            "spec": strategy.spec.to_json(),
            "preset": self._options.preset,
            "corpus": self._text.content_hash,
            "batches_per_epoch": self._text.train.batches_per_epoch,
        }

    def _definitions(self) -> dict[str, str]:
        """Return parts of names, of what no operation makes -> where it comes from."""
        side, kind = self._strategy, type(self._strategy)
        made = {
            "batch": type(self._text.train),
            "batch/learning_rate": learning_rate,
            "batch/sizes": split_rows,
            "evaluate": evaluate,
            **{f"evaluate/{each}/losses": getattr(side, "evaluate", kind) for each in SPLITS},
            "answers": answer_questions,
            "untraced": getattr(side, "step", kind),
            "losses.csv": Losses,
            "summary.json": Meter,
            "checkpoints": keep_best,
            **dict.fromkeys(("initial", "read", "replicas"), kind),
        }
        found = {name: definition(each) for name, each in made.items()}
        resumes = side.load, load_checkpoint, save_checkpoint
        return found | {"resume": ", or ".join(map(definition, resumes))}
