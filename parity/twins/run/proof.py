"""`python -m parity run`: trains all sides step by step beside the oracle, for a verdict."""

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.base.files import make_folder
from parity.base.progress import Phases, begin_phase
from parity.twins.cli.config import write_config
from parity.twins.cli.options import RunOptions
from parity.twins.compare.verdict import Outcome
from parity.twins.launch.fork_server import ForkServer
from parity.twins.run.choose_sides import resolved
from parity.twins.run.compare_while_training import ComparedRun, compare_recorded
from parity.twins.run.measure_throughput import train_untraced
from parity.twins.run.planned_run import PlannedRun
from parity.twins.run.whole_run_checks import (
    check_answers,
    check_facts,
    check_resume,
    check_training,
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
    frameworks = sorted({side.framework for side in planned.sides.values()})
    make_folder(options.out)
    write_config(options.out, options, spec)
    if options.json is not None:
        make_folder(options.json.parent)  # fail now, not after minutes of training
    with ExitStack() as stack:
        stack.enter_context(Phases(_phases_of(planned)))
        begin_phase("starting the frameworks")
        servers = _start_servers(frameworks, options, stack)
        return prove(replace(planned, servers=servers))


def _phases_of(planned: PlannedRun) -> int:
    """Return how many phases a run has that finds no mismatch."""
    options = planned.options
    answers = planned.trains and options.wants("answers") and planned.decodes
    return 1 + len(options.dtype) + options.wants("resume") + planned.trains + answers


def prove(planned: PlannedRun) -> Outcome:
    """Do what `run` does, with sides that are started in a given way.

    Raises:
      UsageError, NumericFailure: as `run`.
    """
    outcome = Outcome(planned.spec)
    _fill(outcome, planned)
    for verdict in outcome.verdicts:
        verdict.coverage.add(*check_facts(verdict, NETWORKS[planned.spec.network]))
    return outcome


def _fill(outcome: Outcome, planned: PlannedRun) -> None:
    """Add the recorded steps of every precision, and the checks of whole runs."""
    options = planned.options
    for dtype in options.dtype:
        planned = planned.in_precision(dtype)
        compared = _compare(planned)
        outcome.spec, outcome.sides = compared.spec, compared.verdict.sides
        outcome.versions |= compared.versions
        outcome.verdicts.append(compared.verdict)
        compared.verdict.unchecked = unchecked(planned, compared.verdict)
        if not compared.verdict.matches:
            return
    if planned.trains:
        begin_phase("training without recording")
        trained = train_untraced(planned, compared.batches_per_epoch)
        outcome.trainings = {label: each.summary for label, each in trained.items()}
        check_training(planned, compared, trained)
        if options.wants("answers") and planned.decodes and compared.verdict.matches:
            begin_phase("comparing answers")
            check_answers(planned, compared.verdict)


def _compare(planned: PlannedRun) -> ComparedRun:
    """Compare the recorded steps of one precision, and the runs that resume them."""
    begin_phase(f"comparing, {planned.dtype}")
    compared = compare_recorded(planned)
    if compared.verdict.matches and compared.saved:
        begin_phase("comparing resumed runs")
        check_resume(planned, compared)
    if compared.verdict.matches:
        for name in ("resume", "saved"):
            shutil.rmtree(planned.options.out / name, ignore_errors=True)
    return compared


def _start_servers(
    frameworks: list[str], options: RunOptions, stack: ExitStack
) -> dict[str, ForkServer]:
    """Start servers that load each framework once, which takes as long as a short training."""
    if options.device != "cpu":  # a GPU driver's state does not survive a fork
        return {}
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="parity-")))
    logs = options.out / "logs"
    make_folder(logs)
    return {
        name: stack.enter_context(
            ForkServer(name, folder / name, options.threads, logs / f"{name}.log")
        )
        for name in frameworks
    }
