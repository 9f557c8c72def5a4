"""The resume check: each framework resumes its own checkpoint, and the other's."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from parity.base.progress import Counter
from parity.trace.folder import clear_trace, step_file
from parity.trace.reader import Trace, read_step
from parity.twins.compare.resumed import Resumed, ResumeRung, Steps
from parity.twins.compare.verdict import RunVerdict
from parity.twins.run.start_side import Starter, file_name
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide

# The first shows what was wrong in the checkpoint, the second what is wrong after a step: an
# optimizer's slot that was lost may first act there.
STEPS = 2


@dataclass(frozen=True)
class Saved:
    """A checkpoint of a recorded run, and what the run recorded around it.

    Attributes:
      checkpoint: the path of the checkpoint.
      step: the first step after it.
      steps: the folder with the recorded steps `step` - 1 to `step` + STEPS - 1.
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


def check_resume(
    spec: Spec,
    trained: Spec,
    per_epoch: int,
    saved: Mapping[str, Saved],
    loaders: Mapping[str, Mapping[str, TrainedSide]],
    out: Path,
    starter: Starter,
    verdict: RunVerdict,
) -> None:
    """Resume every checkpoint on its own side and on the others, and compare.

    Args:
      spec: the spec that the recorded sides were started with.
      trained: the same with the vocabulary sizes of the text.
      per_epoch: the number of steps of an epoch.
      saved: label of the side that wrote a checkpoint -> the checkpoint.
      loaders: label of that side -> label -> the sides that resume it, itself first.
      out: the folder for the resumed runs.
      starter: starts the sides.
      verdict: gets the distances and mismatches.
    """
    rung = ResumeRung(trained, per_epoch, verdict)
    written = [
        rung.check_saved(saver, each.step, exists=each.checkpoint.exists())
        for saver, each in saved.items()
    ]
    if not all(written):
        return
    jobs = [(saver, loader) for saver in saved for loader in loaders[saver]]
    # a side's own checkpoint first: only then is it clear who is wrong
    jobs.sort(key=lambda job: job[0] != job[1])
    with Counter("comparing resumed runs", len(jobs), "run") as progress:
        for start in range(0, len(jobs), 2):
            pair = jobs[start : start + 2]
            traces = _resume(spec, saved, loaders, pair, out, starter)
            for (saver, loader), trace in zip(pair, traces, strict=True):
                resumed = dict(trace.steps())
                went_on = _recorded(saved[saver])
                rung.compare(Resumed(saver, loader, saved[saver].step, went_on, resumed))
                clear_trace(trace.folder)
                progress.update()
            if not verdict.matches:
                return


def _resume(
    spec: Spec,
    saved: Mapping[str, Saved],
    loaders: Mapping[str, Mapping[str, TrainedSide]],
    jobs: Sequence[tuple[str, str]],
    out: Path,
    starter: Starter,
) -> list[Trace]:
    """Resume some checkpoints at the same time; return the traces."""
    folders = []
    with ExitStack() as stack:
        running = []
        for saver, loader in jobs:
            name = f"{file_name(loader)}-from-{file_name(saver)}"
            folders.append(out / name)
            clear_trace(folders[-1])
            last = max(_numbers(saved[saver])) + 1
            process = starter.start(
                loaders[saver][loader],
                spec,
                f"resume-{name}.log",
                steps=last,
                resume=saved[saver].checkpoint,
                trace=folders[-1],
                out=out / f"{name}-run",  # or the losses of a run in the usual folder were read
                decode=0,
                evaluate=0,
            )
            running.append(stack.enter_context(process))
        for process in running:
            process.wait()
    return [Trace(folder) for folder in folders]


def _numbers(saved: Saved) -> list[int]:
    numbers = range(saved.step - 1, saved.step + STEPS)
    return [number for number in numbers if (saved.steps / step_file(number)).exists()]


def _recorded(saved: Saved) -> Steps:
    return {number: read_step(saved.steps / step_file(number)) for number in _numbers(saved)}
