"""Runs one side for a short time, started by a fork server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.trace.reader import Trace
from parity.twins.launch.edited_source import Edit
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.processes import option_flags, raise_for_status, spec_flags
from parity.twins.spec.spec import Spec


def record(
    server: ForkServer, spec: Spec, trace: Path, *, edits: Sequence[Edit] = (), **options: Any
) -> Trace:
    """Train one side and return its trace.

    Args:
      server: the fork server of the side's framework.
      spec: the network, its text and its training.
      trace: the folder to record the trace in.
      edits: replacements of lines in the project's source that apply to this run only.
      **options: values of fields of TrainOptions, by name; paths are relative to the working
        folder of this process.

    Raises:
      ValueError: if an edit does not fit the source.
      UsageError, NumericFailure, SideFailed: if the training fails, with the side's message.
    """
    run_side(server, spec, edits=edits, trace=trace, **options)
    return Trace(trace)


def run_side(
    server: ForkServer, spec: Spec, *, edits: Sequence[Edit] = (), **options: Any
) -> None:
    """Run the `train.py` of one side until it ends; see `record` for arguments and errors."""
    values = {
        name: value.resolve() if isinstance(value, Path) else value
        for name, value in options.items()
    }
    job = server.train(*spec_flags(spec), *option_flags(values), edits=edits)
    status, _, _ = job.wait()
    raise_for_status(server.framework, status, job.folder / "stderr")
