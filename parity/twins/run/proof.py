"""`python -m parity run`: trains all sides step by step beside the oracle, for a verdict."""

import shutil
from contextlib import ExitStack
from dataclasses import replace

from parity.base.errors import UsageError
from parity.base.files import check_output, make_folder
from parity.base.progress import Phases, begin_phase
from parity.twins.cli.config import write_config
from parity.twins.cli.options import RunOptions
from parity.twins.compare.verdict import Outcome, RunVerdict
from parity.twins.launch.checkout import check_installed
from parity.twins.launch.fork_server import fork_servers
from parity.twins.run.choose_sides import resolved
from parity.twins.run.compare_while_training import (
    ComparedRun,
    compare_recorded,
    start_recorded,
)
from parity.twins.run.finished_training import find_unreadable
from parity.twins.run.measure_throughput import (
    Training,
    train_untraced,
    untraced_folder,
    untraced_order,
)
from parity.twins.run.planned_run import PlannedRun
from parity.twins.run.whole_run_checks import (
    check_answers,
    check_facts,
    check_resume,
    check_training,
    comparing_sides,
    unchecked,
)
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec


def run(spec: Spec, options: RunOptions) -> Outcome:
    """Train all sides step by step beside the oracle, then again without recording.

    Args:
      spec: the network, its text and its training, whose dtype the options replace.
      options: the options of the run.

    Raises:
      UsageError: for input that a side cannot use.
      NumericFailure: for a NaN or infinity on any side.
    """
    options = resolved(options)
    planned = PlannedRun(spec, options)
    _check_witness(planned)
    frameworks = sorted({side.framework for side in planned.sides.values()})
    make_folder(options.out)
    write_config(options.out, options, spec)
    if options.json is not None:
        check_output(options.json)
    with ExitStack() as stack:
        stack.enter_context(Phases(_phases_of(planned)))
        begin_phase("starting the frameworks")
        if options.device == "cpu":  # a GPU driver's state does not survive a fork
            logs = options.out / "logs"
            make_folder(logs)
            servers = stack.enter_context(fork_servers(frameworks, options.threads, logs))
            planned = replace(planned, servers=servers)
        return prove(planned)


def _check_witness(planned: PlannedRun) -> None:
    """Check that the witness of --witness is installed, and that a side takes its steps.

    Raises:
      UsageError: otherwise.
    """
    witness = planned.options.witness
    if witness is None:
        return
    if not planned.leading:
        raise UsageError(f"--witness is {witness}; allowed: with a synchronous side")
    check_installed([witness], f"--witness is {witness}")


def _phases_of(planned: PlannedRun) -> int:
    """Return how many phases a run has that finds no mismatch."""
    options = planned.options
    answers = options.throughput and options.wants("answers") and planned.decodes
    return 1 + len(options.dtype) + options.wants("resume") + options.throughput + answers


def prove(planned: PlannedRun) -> Outcome:
    """Do what `run` does, with sides that are started in a given way.

    Raises:
      UsageError, NumericFailure: as `run`.
    """
    outcome = Outcome(planned.spec)
    network, last = NETWORKS[planned.spec.network], planned.options.dtype[-1]
    runs = [planned.in_precision(dtype) for dtype in planned.options.dtype]
    with ExitStack() as stack:
        running = None
        for run, following in zip(runs, [*runs[1:], None], strict=True):
            begin_phase(f"comparing, {run.dtype}")
            running = running or stack.enter_context(start_recorded(run))
            compared = compare_recorded(run, running)
            if compared.verdict.matches and following is not None:
                # its graphs are built while the resumed runs leave a core idle
                running = stack.enter_context(start_recorded(following))
            verdict = _judge(
                run, compared, outcome, trains=run.dtype == last and run.options.throughput
            )
            covered = (*verdict.coverage, *check_facts(verdict, network))
            outcome.verdicts.append(replace(verdict, coverage=covered))
            if not verdict.matches:
                break
    if following is not None and compared.verdict.matches:  # their steps were not compared
        shutil.rmtree(planned.options.out / "traces" / following.dtype, ignore_errors=True)
    return outcome


def _judge(
    planned: PlannedRun, compared: ComparedRun, outcome: Outcome, *, trains: bool
) -> RunVerdict:
    """Return the verdict on one precision: its recorded steps, and the checks of whole runs.

    Args:
      compared: the recorded steps.
      outcome: what to add to, beside the verdict.
      trains: whether the sides are to train without recording in this precision.
    """
    options = planned.options
    verdict = compared.verdict
    outcome.spec, outcome.sides = compared.spec, verdict.sides
    outcome.versions |= compared.versions
    if verdict.matches and compared.saved:
        begin_phase(f"{planned.dtype} steps match, resuming")
        verdict = verdict.with_checks(check_resume(planned, compared))
    if verdict.matches:
        for name in ("resume", "saved"):
            shutil.rmtree(options.out / name, ignore_errors=True)
    verdict = replace(verdict, unchecked=unchecked(planned, verdict))
    if verdict.matches and trains:
        begin_phase(f"{planned.dtype} steps match, untraced")
        trained = dict[str, Training]()
        try:
            for label, training in train_untraced(planned, compared.batches_per_epoch):
                trained[label] = training
        except UsageError:
            # a training ends by reading its best checkpoint: one that is not whole is a finding
            failed = next(label for label in untraced_order(planned) if label not in trained)
            found = find_unreadable(failed, untraced_folder(planned, failed))
            if found is None:
                raise
            return verdict.with_checks([found])
        trained = {label: trained[label] for label in planned.sides}
        outcome.trainings = {label: each.reported for label, each in trained.items()}
        with comparing_sides(planned, trained) as of_sides:
            verdict = verdict.with_checks(check_training(planned, compared, trained))
            if options.wants("answers") and planned.decodes and verdict.matches:
                begin_phase("comparing answers")
                verdict = verdict.with_checks(check_answers(planned, trained))
            if verdict.matches:
                verdict = verdict.with_checks(of_sides())
    return verdict
