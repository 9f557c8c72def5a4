"""`python -m parity run`: trains both sides step by step beside the oracle, for a verdict."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.base.files import make_folder
from parity.base.progress import Phases, begin_phase
from parity.twins.cli.config import write_config
from parity.twins.cli.options import RunOptions
from parity.twins.compare.outcome import Outcome
from parity.twins.launch.fork_server import ForkServer
from parity.twins.run.check_answers import check_answers
from parity.twins.run.check_coverage import check_facts
from parity.twins.run.check_resume import check_resume
from parity.twins.run.check_training import check_training
from parity.twins.run.choose_sides import leading_sides, resolved, sides_of
from parity.twins.run.compare_while_training import AlsoRecorded, ComparedRun, compare_recorded
from parity.twins.run.measure_throughput import Training, train_untraced
from parity.twins.run.start_side import Servers, Starter, file_name
from parity.twins.run.unchecked import unchecked
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide


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
    sides = sides_of(options)
    make_folder(options.out)
    write_config(options.out, options, spec)
    if options.json is not None:
        make_folder(options.json.parent)  # fail now, not after minutes of training
    with ExitStack() as stack:
        stack.enter_context(Phases(_phases_of(spec, options)))
        begin_phase("starting the frameworks")
        frameworks = {side.framework for side in sides.values()}
        servers = _start_servers(sorted(frameworks), options, stack)
        return run_sides(spec, sides, options, Starter(options, servers))


def _phases_of(spec: Spec, options: RunOptions) -> int:
    """Return how many phases a run has that finds no mismatch."""
    trains = options.throughput and not options.isolate
    answers = trains and options.wants("answers") and NETWORKS[spec.network].decodes
    return 1 + len(options.dtype) + options.wants("resume") + trains + answers


def run_sides(
    spec: Spec, sides: Mapping[str, TrainedSide], options: RunOptions, starter: Starter
) -> Outcome:
    """Do what `run` does, with sides that are started in a given way.

    Args:
      spec: the network, its text and its training, whose dtype the options replace.
      sides: label -> side.
      options: the options of the run.
      starter: starts the sides; it may plant mistakes in some of them.

    Raises:
      UsageError, NumericFailure: as `run`.
    """
    outcome = Outcome(spec)
    _prove(outcome, spec, sides, options, starter)
    for verdict in outcome.verdicts:
        verdict.coverage.add(*check_facts(verdict, NETWORKS[spec.network]))
    return outcome


def _prove(
    outcome: Outcome,
    spec: Spec,
    sides: Mapping[str, TrainedSide],
    options: RunOptions,
    starter: Starter,
) -> None:
    """Fill an outcome: the recorded steps of every precision, and the checks of whole runs."""
    for dtype in options.dtype:
        compared = _compare(spec.replace(dtype=dtype), sides, options, starter)
        outcome.spec, outcome.sides = compared.spec, compared.verdict.sides
        outcome.versions |= compared.versions
        outcome.verdicts.append(compared.verdict)
        compared.verdict.unchecked = unchecked(compared, sides, options)
        if not compared.verdict.matches:
            return
    if options.throughput and not options.isolate:
        begin_phase("training without recording")
        trained = train_untraced(spec, sides, options, starter, compared.batches_per_epoch)
        outcome.trainings = {label: each.summary for label, each in trained.items()}
        spec = spec.replace(dtype=options.dtype[-1])
        _check_trained(spec, compared, sides, trained, options, starter)


def _compare(
    spec: Spec, sides: Mapping[str, TrainedSide], options: RunOptions, starter: Starter
) -> ComparedRun:
    """Compare the recorded steps of one precision, and in the first one resume and repeat."""
    leading = leading_sides(sides)
    first = spec.training.dtype == options.dtype[0]
    begin_phase(f"comparing, {spec.training.dtype}")
    also = AlsoRecorded(
        repeat=tuple(leading) if first and options.wants("repeat") else (),
        save=tuple(leading) if first and options.wants("resume") else (),
    )
    compared = compare_recorded(spec, sides, options, starter, also)
    if compared.verdict.matches and compared.saved:
        begin_phase("comparing resumed runs")
        check_resume(
            spec,
            compared.spec,
            compared.batches_per_epoch,
            compared.saved,
            {label: _loaders(label, sides) for label in compared.saved},
            options.out / "resume" / spec.training.dtype,
            starter,
            compared.verdict,
        )
    if compared.verdict.matches:
        for name in ("resume", "saved"):
            shutil.rmtree(options.out / name, ignore_errors=True)
    return compared


def _loaders(saver: str, sides: Mapping[str, TrainedSide]) -> dict[str, TrainedSide]:
    """Return the sides that resume a side's checkpoint: itself, and the other frameworks.

    Those resume it with another number of replicas where they can: it must change nothing.
    """
    others = leading_sides(sides, most_replicas=False)
    return {saver: sides[saver]} | {
        label: side
        for label, side in others.items()
        if side.framework != sides[saver].framework
    }


def _check_trained(
    spec: Spec,
    compared: ComparedRun,
    sides: Mapping[str, TrainedSide],
    trained: Mapping[str, Training],
    options: RunOptions,
    starter: Starter,
) -> None:
    """Check the untraced trainings, and let all frameworks answer from one of them."""
    check_training(compared, trained, options)
    network = NETWORKS[compared.spec.network]
    if options.wants("answers") and network.decodes and compared.verdict.matches:
        leading = leading_sides(sides)
        begin_phase("comparing answers")
        label = next(iter(leading))
        folder = options.out / "training" / file_name(label)
        check_answers(spec, leading, folder, options, starter, compared.verdict)


def _start_servers(frameworks: list[str], options: RunOptions, stack: ExitStack) -> Servers:
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
