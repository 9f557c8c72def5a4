"""The checks of the untraced trainings: their losses, and what their speeds rest on."""

from collections.abc import Mapping

from parity.twins.cli.options import RunOptions
from parity.twins.compare.counting import compare_counts
from parity.twins.compare.untraced import compare_untraced
from parity.twins.run.compare_while_training import ComparedRun
from parity.twins.run.measure_throughput import Training
from parity.twins.training.meter import WARM_UP


def check_training(
    compared: ComparedRun, trained: Mapping[str, Training], options: RunOptions
) -> None:
    """Compare every untraced training with the recorded one, and its speed with its batches.

    Args:
      compared: the recorded run in the precision of the trainings; its verdict gets what is
        found.
      trained: label -> the untraced training.
      options: the options of the run.
    """
    verdict = compared.verdict
    for label, training in trained.items():
        recorded = compared.recorded[label]
        # the updates of a side that runs freely come in another order each time
        if options.wants("untraced") and not verdict.sides[label].runs_freely:
            found = compare_untraced(label, recorded, training.rows)
            verdict.add_exact_check("untraced", (label, f"{label} untraced"), found)
        if options.wants("counting"):
            found = compare_counts(
                label, recorded, training.rows, training.summary, training.seconds, WARM_UP
            )
            verdict.add_exact_check("counting", (label, f"{label} counted anew"), found)
