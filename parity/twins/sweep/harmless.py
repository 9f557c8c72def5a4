"""`python -m parity sweep --harmless`: rewrites of the code that change nothing but rounding.

None may raise an alarm: a harness that takes rounding for a mistake is of no use. The rewrites
are planted like faults, one at a time, in the same small runs; harmless.patch has them.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.base.progress import ProgressBar
from parity.report.table import Table
from parity.twins.cli.options import SweepOptions
from parity.twins.compare.values import run_values
from parity.twins.faults.fault import DTYPES
from parity.twins.faults.patches import read_mistakes
from parity.twins.faults.side_runs import Planting, SideRuns
from parity.twins.launch.fork_server import fork_servers

HARMLESS = read_mistakes(Path(__file__).with_name("harmless.patch"))


def alarm(runs: SideRuns, planted: Planting) -> str:
    """Return what the harness takes for a mistake in a rewritten side; empty for a match."""
    try:
        verdict = runs.prove(planted, "evaluation")
    except (NumericFailure, UsageError, SideFailed) as error:
        return str(error)
    shutil.rmtree(runs.folder(planted.name))
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
        runs = SideRuns(options.out / "harmless", servers)
        for planted in planned:
            story = alarm(runs, planted)
            alarms += [f"{planted.name}: {story}"] if story else []
            of = planted.fault.name, planted.side, planted.kernels, planted.dtype
            rows.append([*of, "ALARM" if story else "match"])
            progress.update()
    headers = ["rewrite", "planted in", "kernels", "precision", "verdict"]
    table = Table(headers, rows).text()
    total = f"{len(planned)} harmless rewrites planted, {len(alarms)} false alarms"
    return "\n".join([table, "", *alarms, total]), not alarms
