"""Short recorded runs of one side, by a fork server."""

from pathlib import Path
from typing import Any

from parity.launch.fork_server import ForkServer
from parity.launch.processes import ROOT, option_flags, raise_for, spec_flags
from parity.spec.spec import Spec
from parity.trace.trace import Trace


def record(
    server: ForkServer, spec: Spec, trace: Path, *, root: Path = ROOT, **options: Any
) -> Trace:
    """Train a side and return its trace.

    Args:
      server: of the framework.
      spec: what to train.
      trace: folder to record in.
      root: of the project, or of a copy of it.
      **options: of TrainOptions, by name; a path from where the harness runs.

    Raises:
      UsageError, NumericFailure, SideFailed: with its message, if it does not end well.
    """
    given = {"trace": trace, **options}
    given = {
        name: value.resolve() if isinstance(value, Path) else value
        for name, value in given.items()
    }
    job = server.train(*spec_flags(spec), *option_flags(given), root=root)
    status, _, _ = job.wait()
    raise_for(server.framework, status, job.folder / "stderr")
    return Trace(trace)
