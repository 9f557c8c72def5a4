"""Plants harmless rewrites, one at a time, and sees that none raises an alarm."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.base.files import make_folder
from parity.base.progress import ProgressBar
from parity.trace.reader import Trace
from parity.twins.cli.options import FaultOptions
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.faults.fault import Fault
from parity.twins.faults.harmless import HARMLESS
from parity.twins.faults.small_runs import SETTINGS, write_texts
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.record_side import record
from parity.twins.spec.frameworks import FRAMEWORKS


@dataclass(frozen=True)
class Rewritten:
    """A side's code with a harmless rewrite, and the run that it is planted in.

    Attributes:
      rewrite: the rewrite.
      side: the framework in whose code it is planted.
      dtype, kernels: the precision and the kernels of the run.
    """

    rewrite: Fault
    side: str
    dtype: str
    kernels: str

    @property
    def name(self) -> str:
        """Return a name for its files."""
        return f"{self.rewrite.name}-{self.side}-{self.kernels}-{self.dtype}"


class HarmlessRuns:
    """Trains rewritten sides, and compares each with the other side as it is.

    Args:
      folder: where the texts and the traces are written.
      servers: framework -> its fork server.
    """

    def __init__(self, folder: Path, servers: Mapping[str, ForkServer]):
        self._folder, self._servers = folder.resolve(), servers
        make_folder(self._folder)
        self._texts = write_texts(self._folder / "texts")
        self._unchanged: dict[tuple[str, str, str, str], Trace] = {}

    def alarm(self, planted: Rewritten) -> str:
        """Return what the harness takes for a mistake; empty if the sides match."""
        setting, dtype, kernels = planted.rewrite.setting, planted.dtype, planted.kernels
        traces = {
            side: self._unchanged_side(side, setting, dtype, kernels)
            for side in FRAMEWORKS
            if side != planted.side
        }
        try:
            traces[planted.side] = self._record(planted, planted.side, planted.name)
            verdict = compare_traces([traces[side] for side in FRAMEWORKS])
        except (NumericFailure, UsageError, SideFailed) as error:
            return str(error)
        shutil.rmtree(traces[planted.side].folder)
        if verdict.matches:
            return ""
        outcome = Outcome(SETTINGS[setting].spec, verdict.sides, verdicts=[verdict])
        story: str = report_values(outcome, setting, "")["first_mismatch"]["story"]
        return story

    def _unchanged_side(self, side: str, setting: str, dtype: str, kernels: str) -> Trace:
        run = side, setting, dtype, kernels
        if run not in self._unchanged:
            nothing = Fault("unchanged", "", "", setting, (), {})
            as_it_is = Rewritten(nothing, side, dtype, kernels)
            name = f"{as_it_is.name}-{setting.replace(', ', '-')}"
            self._unchanged[run] = self._record(as_it_is, side, name)
        return self._unchanged[run]

    def _record(self, planted: Rewritten, side: str, name: str) -> Trace:
        run = SETTINGS[planted.rewrite.setting]
        return record(
            self._servers[side],
            run.spec.replace(dtype=planted.dtype),
            self._folder / "traces" / name,
            edits=planted.rewrite.edits_for(planted.kernels).get(side, ()),
            data=self._texts[run.spec.network],
            cache=self._folder / "cache",
            steps=run.steps,
            kernels=planted.kernels,
            **run.options(side),
        )


def rewritten(options: FaultOptions) -> Iterator[Rewritten]:
    """Yield the rewrites that the options ask for, in each side, precision and kernels.

    Raises:
      UsageError: for a rewrite that there is not, or for strategies, which no rewrite has.
    """
    if options.strategy:
        raise UsageError(
            "--strategy is given with --harmless; allowed: without it, as rewrites are planted "
            "in the default strategies"
        )
    by_name = {rewrite.name: rewrite for rewrite in HARMLESS}
    for name in options.only or by_name:
        if name not in by_name:
            raise UsageError(f"--only is {name!r}; allowed: {', '.join(by_name)}")
        for kernels in options.kernels:
            for side in options.sides:
                if side in by_name[name].edits_for(kernels):
                    for dtype in options.dtype:
                        yield Rewritten(by_name[name], side, dtype, kernels)


def run_harmless(options: FaultOptions) -> tuple[str, bool]:
    """Plant the harmless rewrites; return a table, and whether none raised an alarm.

    Raises:
      UsageError: for a rewrite that there is not.
    """
    planned, rows, alarms = list(rewritten(options)), [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-")))
        servers = {
            side: stack.enter_context(ForkServer(side, folder / side)) for side in FRAMEWORKS
        }
        runs = HarmlessRuns(options.out / "harmless", servers)
        progress = stack.enter_context(ProgressBar("rewriting", len(planned), "rewrite"))
        for planted in planned:
            story = runs.alarm(planted)
            alarms += [f"{planted.name}: {story}"] if story else []
            rows.append(
                [
                    planted.rewrite.name,
                    planted.side,
                    planted.kernels,
                    planted.dtype,
                    "ALARM" if story else "match",
                ]
            )
            progress.update()
    headers = ["rewrite", "planted in", "kernels", "precision", "verdict"]
    table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    total = f"{len(planned)} harmless rewrites planted, {len(alarms)} false alarms"
    return "\n".join([table, "", *alarms, total]), not alarms
