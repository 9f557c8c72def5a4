"""`python -m parity run`: both sides trained step by step beside the oracle, and a verdict."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.base.files import make_folder
from parity.cli.options import RunOptions
from parity.compare.outcome import Outcome
from parity.launch.fork_server import ForkServer
from parity.run.recorded import compare_recorded
from parity.run.sides import sides_of
from parity.run.starting import Servers, Starter
from parity.run.untraced import train_untraced
from parity.spec.spec import Spec


def run(spec: Spec, options: RunOptions) -> Outcome:
    """Train all sides in step with the oracle, then untraced.

    Args:
      spec: what to train; its dtype is replaced by each of the options' in turn.

    Raises:
      UsageError: for input that cannot be used, as the sides found it.
      NumericFailure: for a NaN or infinity on any side.
    """
    sides = sides_of(options)
    make_folder(options.out)
    if options.json is not None:
        make_folder(options.json.parent)  # now, not after minutes of training
    outcome = Outcome(spec)
    with ExitStack() as stack:
        frameworks = {side.framework for side in sides.values()}
        servers = _servers(sorted(frameworks), options, stack)
        starter = Starter(options, servers)
        for dtype in options.dtype:
            found = compare_recorded(spec.replace(dtype=dtype), sides, options, starter)
            outcome.spec, outcome.sides = found.spec, found.verdict.sides
            outcome.versions |= found.versions
            outcome.verdicts.append(found.verdict)
            if not found.verdict.matches:
                return outcome
        if options.throughput and not options.isolate:
            outcome.trainings = train_untraced(
                spec, sides, options, starter, found.batches_per_epoch
            )
    return outcome


def _servers(frameworks: list[str], options: RunOptions, stack: ExitStack) -> Servers:
    """Load each framework once: that takes as long as many a training that is compared."""
    if options.device != "cpu":  # what a GPU's driver sets up does not outlive a fork
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
