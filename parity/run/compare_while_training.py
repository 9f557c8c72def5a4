"""Recorded training: the traces of all sides are compared step by step as they are written."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from parity.base.progress import Counter
from parity.cli.options import RunOptions
from parity.compare.ladder import Ladder
from parity.compare.verdict import Verdict
from parity.launch.processes import SideProcess
from parity.run.start_side import Starter, file_name
from parity.spec.spec import Spec
from parity.trace.folder import clear_trace
from parity.trace.reader import Trace, wait_for_trace
from parity.trace.side import Side

_MOST_PENDING = 3  # number of steps by which a side may be ahead of the comparison


@dataclass(frozen=True)
class ComparedRun:
    """The result of comparing the traces of one precision.

    Attributes:
      spec: the spec that was trained, with the vocabulary sizes of the text.
      verdict: the verdict of the comparison.
      versions: package -> version, for the frameworks of all sides and for NumPy.
      batches_per_epoch: the number of steps in an epoch.
    """

    spec: Spec
    verdict: Verdict
    versions: dict[str, str]
    batches_per_epoch: int


def compare_recorded(
    spec: Spec, sides: Mapping[str, Side], options: RunOptions, starter: Starter
) -> ComparedRun:
    """Train all sides at the same time, and compare each step once all of them recorded it.

    Args:
      spec: the network, its text and its training, in one precision.
      sides: label -> side.
      options: the options of the run.
      starter: starts the sides.

    Raises:
      UsageError: for input that a side cannot use.
      NumericFailure: for a NaN or infinity on any side.
    """
    dtype = spec.training.dtype
    folders = {label: options.out / "traces" / dtype / file_name(label) for label in sides}
    with ExitStack() as stack:
        running: dict[str, SideProcess] = {}
        for label, side in sides.items():
            clear_trace(folders[label])
            process = starter.start(
                side,
                spec,
                f"{file_name(label)}-{dtype}.log",
                steps=options.steps,
                trace=folders[label],
                trace_pending=None if options.keep_traces else _MOST_PENDING,
                decode=options.decode,
                isolate=options.isolate,
            )
            running[label] = stack.enter_context(process)

        def still_writing(writer: SideProcess) -> bool:
            for process in running.values():
                process.check()
            return not writer.ended()

        checks = {label: partial(still_writing, process) for label, process in running.items()}
        traces = {label: wait_for_trace(folders[label], checks[label]) for label in sides}
        ladder = Ladder(
            {label: trace.header for label, trace in traces.items()}, options.after_mismatch
        )

        def delete(step: int) -> bool:
            """Return whether a step that was compared is of no more use."""
            wrong = None if ladder.verdict.matches else ladder.verdict.steps - 1
            return not options.keep_traces and step != wrong

        readers = [
            trace.follow(options.steps, checks[label], delete=delete)
            for label, trace in traces.items()
        ]
        progress = stack.enter_context(Counter(f"comparing, {dtype}", options.steps, "step"))
        ladder.climb(
            (
                dict(zip(traces, recorded, strict=True))
                for recorded in zip(*readers, strict=True)
            ),
            progress.update,
        )
        # after a mismatch, leaving the context kills the sides; the wrong step's files are kept
        if ladder.verdict.matches:
            _finish(running, traces, keep=options.keep_traces)
    versions = {
        name: version
        for trace in traces.values()
        for name, version in trace.header["versions"].items()
    }
    return ComparedRun(ladder.spec, ladder.verdict, versions, ladder.per_epoch)


def _finish(
    running: Mapping[str, SideProcess], traces: Mapping[str, Trace], *, keep: bool
) -> None:
    """Wait until all sides have ended, and remove their traces unless they are to be kept."""
    for process in running.values():
        process.wait()
    if not keep:
        for trace in traces.values():
            clear_trace(trace.folder)
