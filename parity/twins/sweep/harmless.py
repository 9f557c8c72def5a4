"""`python -m parity sweep --harmless`: rewrites of the code that change nothing but rounding.

None may raise an alarm: a harness that takes rounding for a mistake is of no use. The rewrites
are planted like faults, one at a time, in the same small runs; harmless.patch has them.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.base.progress import ProgressBar
from parity.report.table import Table
from parity.trace.reader import Trace
from parity.twins.cli.options import SweepOptions
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import run_values
from parity.twins.faults.fault import DTYPES
from parity.twins.faults.hunt import Planting
from parity.twins.faults.patches import read_mistakes
from parity.twins.faults.side_runs import SideRuns, SmallRun
from parity.twins.launch.fork_server import ForkServer, fork_servers
from parity.twins.spec.frameworks import FRAMEWORKS

HARMLESS = read_mistakes(Path(__file__).with_name("harmless.patch"))


class HarmlessRuns:
    """Trains rewritten sides, and compares each with the other side as it is.

    Args:
      out: where the texts and the traces are written.
      servers: framework -> its fork server.
    """

    def __init__(self, out: Path, servers: Mapping[str, ForkServer]):
        self._runs = SideRuns(out, servers)
        self._unchanged: dict[tuple[str, SmallRun], Trace] = {}

    def alarm(self, planted: Planting) -> str:
        """Return what the harness takes for a mistake; empty if the sides match."""
        run = replace(planted.run, evaluates=True)
        for side in FRAMEWORKS:
            if side != planted.side and (side, run) not in self._unchanged:
                as_it_is = self._runs.record(side, run, f"{side}-{run.name}")
                self._unchanged[side, run] = as_it_is
        try:
            changed = self._runs.record(planted.side, run, planted.name, planted.edits)
            verdict = compare_traces(
                [
                    changed if side == planted.side else self._unchanged[side, run]
                    for side in FRAMEWORKS
                ]
            )
        except (NumericFailure, UsageError, SideFailed) as error:
            return str(error)
        shutil.rmtree(self._runs.folder(planted.name))
        return "" if verdict.matches else str(run_values(verdict)["first_mismatch"]["story"])


def rewritten(kernels: Iterable[str]) -> Iterator[Planting]:
    """Yield the rewrites in each framework and precision, and in these kernels."""
    for rewrite in HARMLESS:
        for kind in kernels:
            for side in rewrite.edits_for(kind):
                for dtype in DTYPES:
                    yield Planting(rewrite, side, dtype, kind)


def run_harmless(options: SweepOptions) -> tuple[str, bool]:
    """Plant the harmless rewrites; return a table, and whether none raised an alarm."""
    planned, rows, alarms = list(rewritten(options.kernels)), [], []
    with (
        fork_servers() as servers,
        ProgressBar("rewriting", len(planned), "rewrite") as progress,
    ):
        runs = HarmlessRuns(options.out / "harmless", servers)
        for planted in planned:
            story = runs.alarm(planted)
            alarms += [f"{planted.name}: {story}"] if story else []
            of = planted.fault.name, planted.side, planted.kernels, planted.dtype
            rows.append([*of, "ALARM" if story else "match"])
            progress.update()
    headers = ["rewrite", "planted in", "kernels", "precision", "verdict"]
    table = Table(headers, rows).text()
    total = f"{len(planned)} harmless rewrites planted, {len(alarms)} false alarms"
    return "\n".join([table, "", *alarms, total]), not alarms
