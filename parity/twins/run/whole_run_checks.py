"""The checks that compare more than single recorded steps, each a rung of its own.

They are made once the recorded steps match. The comparison of the recorded steps makes two by
itself, `evaluation` and `repeat`. The others are here: a checkpoint is resumed, the sides train
without recording, and they answer questions from the same checkpoints.
"""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import make_folder
from parity.base.progress import ProgressBar
from parity.compare.coverage import Fact
from parity.compare.findings import Finding, find_in_exact_check
from parity.compare.tensors import Mismatch, Place
from parity.trace.folder import clear_trace, step_file
from parity.trace.reader import Trace, read_step
from parity.trace.rungs import CHECKS
from parity.twins.compare.answers import AnswersRung, read_answers
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.resumed import (
    Resumed,
    ResumeRung,
    Steps,
    beyond_limits,
    find_unsaved,
)
from parity.twins.compare.verdict import RunVerdict
from parity.twins.compare.whole_runs import (
    compare_best,
    compare_counts,
    compare_losses,
    compare_untraced,
)
from parity.twins.launch.processes import SideProcess
from parity.twins.run.answer_probes import Probe, answer_probes
from parity.twins.run.choose_sides import leading_sides, without_leader
from parity.twins.run.compare_while_training import (
    RESUMED_STEPS,
    ComparedRun,
    Saved,
    checkpoint_every,
)
from parity.twins.run.finished_training import FinishedTraining
from parity.twins.run.measure_throughput import Training, train_moved
from parity.twins.run.planned_run import PlannedRun, file_name
from parity.twins.spec.networks.network import Network
from parity.twins.trace.side import TrainedSide
from parity.twins.training.checkpoint import (
    Checkpoint,
    best_checkpoint,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from parity.twins.training.meter import WARM_UP
from parity.twins.training.text_source import load_text

_TRAINED = ("answers", "untraced", "counting")  # made on the trainings that record nothing
_MEANINGS = {
    "evaluation": "A side's loss, number of tokens and perplexity of validation and test text "
    "were compared with the oracle's.",
    "answers": "The answers of sides that loaded the same checkpoint, and their scores, were "
    "compared.",
    "resume": "A checkpoint was resumed, and the steps after it were those of the run that "
    "went on.",
    "repeat": "A run was made twice, and its bits compared.",
    "untraced": "The losses of a training that recorded nothing were those of the recorded "
    "one; after its checkpoints, and in its evaluation, they were the oracle's.",
    "counting": "The tokens that a speed rests on were counted again in the batches, and the "
    "best checkpoint was that of the best validation.",
}


def unchecked(run: PlannedRun, verdict: RunVerdict) -> dict[str, str]:
    """Return the checks that are not made in any precision of a run -> why not.

    Args:
      run: the run.
      verdict: that of its recorded steps.
    """
    reasons = {check: _reason(check, run, verdict) for check in CHECKS}
    for check in ("resume", "repeat"):
        if not reasons[check]:
            reasons |= {
                f"{check} of {label}": "its updates are asynchronous"
                for label in without_leader(run.sides)
            }
    return {check: reason for check, reason in reasons.items() if reason}


def _reason(check: str, run: PlannedRun, verdict: RunVerdict) -> str:
    options = run.options
    if not options.wants(check):
        return f"--checks is {','.join(options.checks)}"
    if not verdict.matches:
        return "the recorded steps do not match"
    if check == "evaluation" and options.evaluate == 0:
        return "--evaluate is 0"
    if check in _TRAINED and not options.throughput:
        return "the trainings that it is about were left out; --throughput runs them"
    if check == "untraced" and all(side.runs_freely for side in run.sides.values()):
        return "the order of the updates is another in every run"
    if check == "answers" and not run.decodes:
        return "this network writes no answers"
    if check in ("resume", "repeat") and not run.leading:
        return "no side is synchronous"
    if check == "resume" and checkpoint_every(options.steps) is None:
        return "a single step cannot be resumed"
    return ""


def check_facts(verdict: RunVerdict, network: Network) -> list[Fact]:
    """Return how many comparisons each check made in one precision, as cases of its coverage.

    Args:
      verdict: the verdict, after the last check.
      network: the network that was trained.
    """
    facts = []
    for check in CHECKS:
        count = sum(check in rungs for rungs in verdict.pairs.values())
        applies = check != "answers" or network.decodes
        facts.append(
            Fact(f"{check} checked", _MEANINGS[check], count, 0, "comparisons", applies)
        )
    return facts


@contextmanager
def comparing_sides(
    run: PlannedRun, trained: Mapping[str, Training]
) -> Iterator[Callable[[], list[Finding]]]:
    """Compare the longest untraced training with those of other sides that take the same steps.

    Meanwhile a training tells what rounding alone does to it: see `train_moved`.

    Args:
      run: the run.
      trained: label -> the untraced training.

    Yields:
      A function that waits for that training and returns what was found.
    """
    able = [label for label, side in run.sides.items() if side.synchronous]
    first = max(able, key=lambda label: len(trained[label].rows), default="")
    known = IntendedDifferences(run.sides)
    others = [
        label for label in able if label != first and known.kind(first) == known.kind(label)
    ]
    own = None
    if others and run.options.wants("untraced"):
        # where none is whole, the comparison with the oracle says so
        with suppress(UsageError):
            own = newest_checkpoint(trained[first].folder / "checkpoints", [])
    if own is None:
        yield list
        return
    with train_moved(run, first, trained[first], own) as wait:

        def findings() -> list[Finding]:
            rows, moved = trained[first].rows, wait()
            return [
                compare_losses((first, other), rows, trained[other].rows, moved, run.dtype)
                for other in others
            ]

        yield findings


def check_training(
    run: PlannedRun, compared: ComparedRun, trained: Mapping[str, Training]
) -> list[Finding]:
    """Compare every untraced training with the recorded one, with its batches and the oracle.

    Args:
      run: the run.
      compared: the recorded steps in the precision of the trainings.
      trained: label -> the untraced training.
    """
    findings = list[Finding]()
    # encoded here once more: what a side has encoded may be wrong
    text = load_text(run.spec, replace(run.options, cache=run.options.cache / "oracle"))
    for label, training in trained.items():
        recorded, side = compared.recorded[label], run.sides[label]
        # the updates of a side that runs freely come in another order each time
        if run.options.wants("untraced") and not side.runs_freely:
            found = compare_untraced(label, recorded, training.rows)
            sides = label, f"{label} untraced"
            findings.append(find_in_exact_check("untraced", sides, found))
        if run.options.wants("untraced"):
            findings.append(FinishedTraining(label, side, training, text).compare())
        if run.options.wants("counting"):
            found = compare_counts(
                label, recorded, training.rows, training.summary, training.seconds, WARM_UP
            )
            if found is None and side.synchronous:
                best = best_checkpoint(training.folder / "checkpoints")
                found = compare_best(label, training.perplexities, training.bleus, best)
            sides = label, f"{label} counted anew"
            findings.append(find_in_exact_check("counting", sides, found))
    return findings


def check_resume(run: PlannedRun, compared: ComparedRun) -> list[Finding]:
    """Resume every checkpoint on its own side and on the other frameworks, and compare.

    Args:
      run: the run, in the precision of the recorded steps.
      compared: the recorded steps.
    """
    saved = compared.saved
    rung = ResumeRung(compared.spec, compared.batches_per_epoch, compared.verdict.sides)
    findings = [
        find_unsaved(saver, each.step)
        for saver, each in saved.items()
        if not each.checkpoint.exists()
    ]
    if findings:
        return findings
    jobs = [
        (saver, label, side) for saver in saved for label, side in _loaders(run, saver).items()
    ]
    # a side's own checkpoint first: only then is it clear who is wrong
    jobs.sort(key=lambda job: job[0] != job[1])
    traces = _resume(run, saved, jobs)
    with closing(traces), ProgressBar("comparing resumed runs", len(jobs), "run") as progress:
        for (saver, loader, _), trace in zip(jobs, traces, strict=True):
            if saver != loader and any(finding.mismatches for finding in findings):
                break
            went_on = _recorded(saved[saver])
            resumed = dict(trace.steps())
            weights = load_checkpoint(saved[saver].checkpoint).snapshot
            run_again = Resumed(saver, loader, saved[saver].step, went_on, resumed, weights)
            findings.append(rung.compare(run_again))
            clear_trace(trace.folder)
            progress.update()
    return findings


def _loaders(run: PlannedRun, saver: str) -> dict[str, TrainedSide]:
    """Return the sides that resume a side's checkpoint: itself, and the other frameworks.

    Those resume it with another number of replicas where they can: it must change nothing. They
    read one file of each framework: its other strategies write the same layout.
    """
    if saver not in run.leading:
        return {saver: run.sides[saver]}
    framework = run.sides[saver].framework
    others = leading_sides(run.sides, most_replicas=False)
    return {saver: run.sides[saver]} | {
        label: side for label, side in others.items() if side.framework != framework
    }


def _resume(
    run: PlannedRun, saved: Mapping[str, Saved], jobs: Sequence[tuple[str, str, TrainedSide]]
) -> Generator[Trace, None, None]:
    """Resume all checkpoints at the same time; yield each trace once its run has ended."""
    out = run.options.out / "resume" / run.dtype
    running = []
    with ExitStack() as stack:
        for saver, loader, side in jobs:
            name = f"{file_name(loader)}-from-{file_name(saver)}"
            clear_trace(out / name)
            checkpoint = saved[saver].checkpoint
            if saver != loader:
                checkpoint = move_checkpoint(checkpoint, out / f"{file_name(saver)}-moved")
            process = run.start(
                side,
                f"resume-{name}.log",
                steps=max(_numbers(saved[saver])) + 1,
                resume=checkpoint,
                trace=out / name,
                out=out / f"{name}-run",  # or the losses of a run in the usual folder were read
                decode=0,
                evaluate=0,
            )
            running.append((stack.enter_context(process), out / name))
        for process, trace in running:
            process.wait()
            yield Trace(trace)


def move_checkpoint(path: Path, folder: Path) -> Path:
    """Write a checkpoint moved `beyond_limits`, as another framework resumes it."""
    checkpoint = load_checkpoint(path)
    make_folder(folder)
    moved = beyond_limits(checkpoint.snapshot)
    return save_checkpoint(folder, replace(checkpoint, snapshot=moved))


def _numbers(saved: Saved) -> list[int]:
    numbers = range(saved.step - 1, saved.step + RESUMED_STEPS)
    return [number for number in numbers if (saved.steps / step_file(number)).exists()]


def _recorded(saved: Saved) -> Steps:
    return {number: read_step(saved.steps / step_file(number)) for number in _numbers(saved)}


def check_answers(run: PlannedRun, trained: Mapping[str, Training]) -> list[Finding]:
    """Let each framework answer the test questions from the same checkpoints.

    They are made from the newest one that the first framework has trained. Each also answers
    from its own, as it did when it had trained. A search runs on one replica however many a
    side has; so of the made ones, sides with the fewest answer, which start soonest.

    Args:
      run: the run, in the precision of the trainings.
      trained: label -> the training of that side.

    Raises:
      UsageError: if there is no checkpoint.
    """
    folder = trained[next(iter(run.leading))].folder
    checkpoint = newest_checkpoint(folder / "checkpoints", [])
    if checkpoint is None:
        raise UsageError(f"{folder}: has no checkpoint to answer from")
    longest = int(run.spec.text.target_limit) + 1  # with <eos>
    beam, penalty = run.options.beam, run.options.length_penalty
    probes = answer_probes(checkpoint.snapshot, beam, penalty, longest)
    sides = leading_sides(run.sides, most_replicas=False)
    folders = [run.options.out / "answers" / str(number) for number in range(len(probes))]
    with ExitStack() as stack, ProgressBar("comparing answers", len(probes), "search") as bar:

        def ask(number: int) -> list[SideProcess]:
            asked = run, sides, checkpoint, probes[number], folders[number]
            return [stack.enter_context(process) for process in _ask(*asked)]

        running = ask(0)
        findings = _ask_again(run, trained)
        for number, (probe, folder) in enumerate(zip(probes, folders, strict=True)):
            if any(finding.mismatches for finding in findings):
                break
            for process in running:
                process.wait()
            # the sides answer the next one while the oracle answers this one
            running = ask(number + 1) if number + 1 < len(probes) else []
            rung = AnswersRung(checkpoint.spec, probe.snapshot, checkpoint.step)
            given = {label: read_answers(folder / file_name(label)) for label in sides}
            findings += rung.compare(given, probe.search)
            bar.update()
    return findings


def _ask_again(run: PlannedRun, trained: Mapping[str, Training]) -> list[Finding]:
    out, asked = run.options.out / "answers" / "own", {}
    with ExitStack() as stack:
        for label, side in run.leading.items():
            if trained[label].summary["bleu"] is not None:
                log, folder = f"{file_name(label)}-answers-own.log", out / file_name(label)
                resume = trained[label].folder / "checkpoints"
                more = {"evaluate_only": True, "evaluate": 0, "resume": resume, "out": folder}
                asked[label] = stack.enter_context(run.start(side, log, **more))
        for process in asked.values():
            process.wait()
    findings = []
    for label in asked:
        sides, summary = (label, f"{label} asked again"), trained[label].summary
        folders = trained[label].folder, out / file_name(label)
        a, b = [(folder / "answers.jsonl").read_bytes() for folder in folders]
        again = json.loads((folders[1] / "evaluation.json").read_text())
        equal = a == b and all(
            summary[name] == again[name] for name in ("bleu", "exact_answers")
        )
        problem = f"{label} answered otherwise when it had trained than from its checkpoint"
        place = Place(summary["steps"] - 1, "answers.jsonl", ())
        found = Mismatch(sides, place, problem=problem, within=label, check="answers")
        findings.append(find_in_exact_check("answers", sides, None if equal else found))
    return findings


def _ask(
    run: PlannedRun,
    sides: Mapping[str, TrainedSide],
    checkpoint: Checkpoint,
    probe: Probe,
    folder: Path,
) -> Iterator[SideProcess]:
    """Let some sides answer at the same time, each into a folder named for it."""
    make_folder(folder)
    saved = save_checkpoint(folder, replace(checkpoint, snapshot=probe.snapshot))
    search = probe.search
    for label, side in sides.items():
        yield run.start(
            side,
            f"{file_name(label)}-answers-{folder.name}.log",
            resume=saved,
            evaluate_only=True,
            evaluate=0,
            out=folder / file_name(label),
            beam=search.beam,
            length_penalty=search.length_penalty,
            longest=search.flag,
        )
