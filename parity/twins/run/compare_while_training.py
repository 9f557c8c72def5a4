"""Recorded training: the traces of all sides are compared step by step as they are written."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from parity.base.files import make_folder
from parity.base.progress import ProgressBar
from parity.compare.findings import find_in_exact_check
from parity.compare.tensors import Mismatch
from parity.trace.folder import clear_trace
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import RunComparison
from parity.twins.compare.verdict import RunVerdict
from parity.twins.compare.whole_runs import (
    REPEATED_STEPS,
    RecordedStep,
    RecordedSteps,
    compare_repeated,
    repeated,
)
from parity.twins.compare.witness import WitnessRung
from parity.twins.launch.processes import SideProcess
from parity.twins.run.planned_run import PlannedRun, file_name
from parity.twins.spec.spec import Spec
from parity.twins.trace.following import follow, wait_for_trace
from parity.twins.trace.side import TrainedSide
from parity.twins.training.checkpoint import KEPT

_MOST_PENDING = 3  # number of steps by which a side may be ahead of the comparison

# Of a resumed run, the first step shows what was wrong in the checkpoint, the second what is
# wrong after a step: an optimizer's slot that was lost may first act there.
RESUMED_STEPS = 2


@dataclass(frozen=True)
class Saved:
    """A checkpoint of a recorded run, and what the run recorded around it.

    Attributes:
      checkpoint: the path of the checkpoint.
      step: the first step after it.
      steps: the folder with the recorded steps `step` - 1 to `step` + RESUMED_STEPS - 1.
    """

    checkpoint: Path
    step: int
    steps: Path


def checkpoint_every(steps: int) -> int | None:
    """Return how often a recorded run of so many steps writes checkpoints; None: never."""
    return max(1, (steps + 1) // 3) if steps > 1 else None


def step_to_resume(steps: int, per_epoch: int, kept: int) -> int | None:
    """Return the first step after the checkpoint to resume from; None if there is none.

    Within an epoch a recurrent state is carried over the checkpoint, and the next batch is not
    the first: so a checkpoint at an epoch's end is the last choice.

    Args:
      steps: the number of recorded steps.
      per_epoch: the number of steps of an epoch.
      kept: how many of the newest checkpoints stay in the folder.
    """
    every = checkpoint_every(steps)
    if every is None:
        return None
    written = list(range(every, steps + 1, every))[-kept:]
    usable = [step for step in written if step < steps]
    within = [step for step in usable if step % per_epoch]
    return next(iter([*within, *usable]), None)


@dataclass(frozen=True)
class ComparedRun:
    """The result of comparing the traces of one precision.

    Attributes:
      spec: the spec that was trained, with the vocabulary sizes of the text.
      verdict: the verdict of the comparison.
      versions: package -> version, for the frameworks of all sides and for NumPy.
      batches_per_epoch: the number of steps in an epoch.
      recorded: label -> the loss and the number of tokens of each recorded step.
      saved: label -> the checkpoint to resume from, for the sides that wrote one.
    """

    spec: Spec
    verdict: RunVerdict
    versions: dict[str, str]
    batches_per_epoch: int
    recorded: dict[str, list[RecordedStep]] = field(default_factory=dict)
    saved: dict[str, Saved] = field(default_factory=dict)


@contextmanager
def start_recorded(run: PlannedRun) -> Iterator[dict[str, SideProcess]]:
    """Start the recorded training of every side; one that still runs is killed in the end.

    In the first precision, one side of each strategy is trained twice and writes checkpoints,
    if the options want runs to be repeated and resumed.

    Args:
      run: the run, in one precision.

    Yields:
      Label -> its process, those that repeat a training after all others.
    """
    witness, saves = run.options.witness, _again(run, "resume")
    with ExitStack() as stack:
        running = {
            label: stack.enter_context(_start_first(run, label, side, saves=label in saves))
            for label, side in run.sides.items()
        }
        for label in _again(run, "repeat"):
            running[repeated(label)] = stack.enter_context(_start_again(run, label))
        if witness:
            running[witness] = stack.enter_context(_start_witness(run, witness))
        yield running


def _again(run: PlannedRun, check: str) -> tuple[str, ...]:
    """Return the sides that a check of the first precision trains again."""
    first = run.dtype == run.options.dtype[0]
    return tuple(run.of_strategies) if first and run.options.wants(check) else ()


def _steps_again(run: PlannedRun) -> int:
    return min(run.options.steps, REPEATED_STEPS)


def compare_recorded(run: PlannedRun, running: Mapping[str, SideProcess]) -> ComparedRun:
    """Compare each step of the recorded trainings once all of them recorded it.

    Args:
      run: the run, in one precision.
      running: what `start_recorded` yielded.

    Raises:
      UsageError: for input that a side cannot use.
      NumericFailure: for a NaN or infinity on any side.
    """
    options, witness = run.options, run.options.witness
    repeat, saves = _again(run, "repeat"), _again(run, "resume")

    def still_writing(writer: SideProcess) -> bool:
        # a later failure of another side is reported once the comparison reaches that step
        writer.check()
        return not writer.ended()

    checks = {label: partial(still_writing, process) for label, process in running.items()}
    folders = {label: _trace(run, label) for label in running}
    traces = {label: wait_for_trace(folders[label], checks[label]) for label in folders}
    headers = {label: traces[label].header for label in run.sides}
    again = {repeated(label) for label in repeat}
    comparison = RunComparison(headers, options.after_mismatch, options.cause_seconds)
    saved = _saved(run, saves, comparison.per_epoch)

    def delete(step: int) -> bool:
        """Return whether a step that was compared is no longer needed."""
        wrong = comparison.steps - 1 if comparison.mismatches else None
        return not options.keep_traces and step != wrong

    readers = {
        label: follow(
            trace,
            _steps_again(run) if label in again else options.steps,
            checks[label],
            delete=delete,
            keep=_kept(saved.get(label)),
        )
        for label, trace in traces.items()
    }
    leader = next(iter(run.leading), "")
    rung = None
    if witness:
        rung = WitnessRung(witness, leader, comparison.spec, comparison.per_epoch)
    loss_per = comparison.spec.training.loss_per
    differing: dict[str, Mismatch | None] = dict.fromkeys(repeat)
    recorded = {
        label: RecordedSteps(side, loss_per) for label, side in comparison.sides.items()
    }
    watched = _watched(_steps(readers), comparison, recorded, differing, rung)
    with ProgressBar(f"comparing, {run.dtype}", options.steps, "step") as progress:
        comparison.compare(watched, progress.update)
    # after a mismatch the wrong step's files are kept
    verdict = comparison.verdict
    if verdict.matches:
        _finish(running, traces, keep=options.keep_traces)
        findings = [
            find_in_exact_check("repeat", (label, repeated(label)), found)
            for label, found in differing.items()
        ]
        verdict = verdict.with_checks([*findings, *(rung.findings if rung else ())])
    versions = {
        name: version
        for trace in traces.values()
        for name, version in trace.header["versions"].items()
    }
    return ComparedRun(
        comparison.spec,
        verdict,
        versions,
        comparison.per_epoch,
        {label: found.steps for label, found in recorded.items()},
        saved,
    )


def _steps(readers: Mapping[str, Iterator[Mapping]]) -> Iterator[dict[str, Mapping]]:
    """Yield label -> what was recorded of each step, without trainings that have ended."""
    while True:
        found = {label: next(reader, None) for label, reader in readers.items()}
        step = {label: tensors for label, tensors in found.items() if tensors is not None}
        if not step:
            return
        yield step


def _watched(
    steps: Iterable[Mapping[str, Mapping]],
    comparison: RunComparison,
    recorded: Mapping[str, RecordedSteps],
    differing: dict[str, Mismatch | None],
    witness: WitnessRung | None,
) -> Iterator[Mapping[str, Mapping]]:
    """Yield steps, and keep of each what later checks compare with, once it was compared.

    Args:
      recorded: label -> what gets the loss of each step.
      differing: the label of a side that was trained twice -> gets the first difference.
      witness: compares the steps of the witness, if there is one.
    """
    names = [name for name in comparison.names if not name.startswith("evaluate/")]
    for step, tensors in enumerate(steps):
        yield tensors
        for label, found in recorded.items():
            found.add(step, tensors[label])
        for label in [label for label, found in differing.items() if found is None]:
            if (other := tensors.get(repeated(label))) is not None:
                differing[label] = compare_repeated(label, step, tensors[label], other, names)
        if witness is not None:
            witness.add(step, tensors)


def _start_witness(run: PlannedRun, witness: str) -> SideProcess:
    """Start the recorded training of the witness."""
    folder = _trace(run, witness)
    clear_trace(folder)
    pending = None if run.options.keep_traces else _MOST_PENDING
    return run.start_witness(f"{witness}-{run.dtype}.log", folder, pending)


def _start_first(run: PlannedRun, label: str, side: TrainedSide, *, saves: bool) -> SideProcess:
    """Start the recorded training of one side."""
    options, more = run.options, dict[str, Any]()
    if saves and checkpoint_every(options.steps) is not None:
        every = checkpoint_every(options.steps)
        out = _checkpoints(run, label).parent
        more = {"checkpoint_every": every, "out": out, "overwrite": True}
    evaluate = options.evaluate if options.wants("evaluation") else 0
    return _start(run, label, side, options.steps, evaluate=evaluate, **more)


def _start_again(run: PlannedRun, label: str) -> SideProcess:
    """Start the recorded training that repeats that of a side, without what comes after it."""
    return _start(run, repeated(label), run.sides[label], _steps_again(run), evaluate=0)


def _start(
    run: PlannedRun, label: str, side: TrainedSide, steps: int, **more: Any
) -> SideProcess:
    options, folder = run.options, _trace(run, label)
    clear_trace(folder)
    return run.start(
        side,
        f"{file_name(label)}-{run.dtype}.log",
        steps=steps,
        trace=folder,
        trace_pending=None if options.keep_traces else _MOST_PENDING,
        decode=options.decode,
        **more,
    )


def _saved(run: PlannedRun, saves: tuple[str, ...], per_epoch: int) -> dict[str, Saved]:
    """Return label -> the checkpoint to resume from, which is there after the last step."""
    step = step_to_resume(run.options.steps, per_epoch, KEPT)
    if step is None:
        return {}
    found = {}
    for label in saves:
        around = run.options.out / "resume" / run.dtype / file_name(label)
        make_folder(around)
        for old in around.glob("step-*.safetensors"):
            old.unlink()
        checkpoint = _checkpoints(run, label) / f"step-{step:08d}.safetensors"
        found[label] = Saved(checkpoint, step, around)
    return found


def _kept(saved: Saved | None) -> dict[int, Path]:
    """Return step -> the folder to keep its tensors in, for the steps around a checkpoint."""
    if saved is None:
        return {}
    return dict.fromkeys(range(saved.step - 1, saved.step + RESUMED_STEPS), saved.steps)


def _trace(run: PlannedRun, label: str) -> Path:
    return run.options.out / "traces" / run.dtype / file_name(label)


def _checkpoints(run: PlannedRun, label: str) -> Path:
    return run.options.out / "saved" / run.dtype / file_name(label) / "checkpoints"


def _finish(
    running: Mapping[str, SideProcess], traces: Mapping[str, Trace], *, keep: bool
) -> None:
    """Wait until all sides have ended, and remove their traces unless they are to be kept."""
    for process in running.values():
        process.wait()
    if not keep:
        for trace in traces.values():
            clear_trace(trace.folder)
