"""Which checks of whole runs are not made, and why not: a report names them."""

from collections.abc import Mapping

from parity.trace.rungs import CHECKS
from parity.twins.cli.options import RunOptions
from parity.twins.run.check_resume import checkpoint_every
from parity.twins.run.choose_sides import leading_sides
from parity.twins.run.compare_while_training import ComparedRun
from parity.twins.spec.networks import NETWORKS
from parity.twins.trace.side import TrainedSide

_TRAINED = ("answers", "untraced", "counting")  # made on the trainings that record nothing


def unchecked(
    compared: ComparedRun, sides: Mapping[str, TrainedSide], options: RunOptions
) -> dict[str, str]:
    """Return the checks that are not made in any precision of a run -> why not.

    Args:
      compared: the recorded run.
      sides: label -> side.
      options: the options of the run.
    """
    found = {}
    for check in CHECKS:
        reason = _reason(check, compared, sides, options)
        if reason:
            found[check] = reason
    return found


def _reason(
    check: str, compared: ComparedRun, sides: Mapping[str, TrainedSide], options: RunOptions
) -> str:
    if options.isolate:
        return "the run is isolated"
    if not options.wants(check):
        return f"--checks is {','.join(options.checks)}"
    if not compared.verdict.matches:
        return "the recorded steps do not match"
    if check == "evaluation" and options.evaluate == 0:
        return "--evaluate is 0"
    if check in _TRAINED and not options.throughput:
        return "the trainings that it is about were left out; --throughput runs them"
    if check == "untraced" and all(side.runs_freely for side in sides.values()):
        return "the order of the updates is another in every run"
    if check == "answers" and not NETWORKS[compared.spec.network].decodes:
        return "this network writes no answers"
    if check in ("resume", "repeat") and not leading_sides(sides):
        return "no side is synchronous"
    if check == "resume" and checkpoint_every(options.steps) is None:
        return "a single step cannot be resumed"
    return ""
