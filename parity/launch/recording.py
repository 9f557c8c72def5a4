"""Short recorded runs of one side, by a fork server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.launch.edited_source import Edit
from parity.launch.fork_server import ForkServer
from parity.launch.processes import option_flags, raise_for, spec_flags
from parity.spec.spec import Spec
from parity.trace.reader import Trace


def record(
    server: ForkServer, spec: Spec, trace: Path, *, edits: Sequence[Edit] = (), **options: Any
) -> Trace:
    """Train a side and return its trace.

    Args:
      server: the fork server of the side's framework.
      spec: what to train.
      trace: folder to record in.
      edits: lines of the project's source to replace in this run.
      **options: fields of TrainOptions, by name; paths are relative to the working folder.

    Raises:
      ValueError: if an edit does not fit the code.
      UsageError, NumericFailure, SideFailed: with the side's message, if its training fails.
    """
    given = {"trace": trace, **options}
    given = {
        name: value.resolve() if isinstance(value, Path) else value
        for name, value in given.items()
    }
    job = server.train(*spec_flags(spec), *option_flags(given), edits=edits)
    status, _, _ = job.wait()
    raise_for(server.framework, status, job.folder / "stderr")
    return Trace(trace)
