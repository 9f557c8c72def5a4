"""`python -m parity run`: trains both sides step by step beside the oracle, for a verdict."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.base.files import make_folder
from parity.cli.options import RunOptions
from parity.compare.outcome import Outcome
from parity.launch.fork_server import ForkServer
from parity.run.choose_sides import sides_of
from parity.run.compare_while_training import compare_recorded
from parity.run.measure_throughput import train_untraced
from parity.run.start_side import Servers, Starter
from parity.spec.spec import Spec


def run(spec: Spec, options: RunOptions) -> Outcome:
    """Train all sides step by step beside the oracle, then again without recording.

    Args:
      spec: the network, its text and its training, whose dtype the options replace.
      options: the options of the run.

    Raises:
      UsageError: for input that a side cannot use.
      NumericFailure: for a NaN or infinity on any side.
    """
    sides = sides_of(options)
    make_folder(options.out)
    if options.json is not None:
        make_folder(options.json.parent)  # fail now, not after minutes of training
    outcome = Outcome(spec)
    with ExitStack() as stack:
        frameworks = {side.framework for side in sides.values()}
        servers = _start_servers(sorted(frameworks), options, stack)
        starter = Starter(options, servers)
        for dtype in options.dtype:
            compared = compare_recorded(spec.replace(dtype=dtype), sides, options, starter)
            outcome.spec, outcome.sides = compared.spec, compared.verdict.sides
            outcome.versions |= compared.versions
            outcome.verdicts.append(compared.verdict)
            if not compared.verdict.matches:
                return outcome
        if options.throughput and not options.isolate:
            outcome.trainings = train_untraced(
                spec, sides, options, starter, compared.batches_per_epoch
            )
    return outcome


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
