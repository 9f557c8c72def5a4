"""Compares two recorded trainings of this project with each other and with the oracle."""

import time
from typing import Any

from parity.trace.reader import Trace
from parity.twins.compare.ladder import climb
from parity.twins.compare.outcome import Outcome
from parity.twins.compare.values import report_values
from parity.twins.spec.spec import Spec


def compare_recorded(
    traces: list[Trace], command: str, after_mismatch: int, cause_seconds: float
) -> dict[str, Any]:
    """Return the report of two recorded trainings as plain values.

    Args, errors: as for `parity.pair.assertion.compared`.
    """
    started = time.monotonic()
    verdict = climb(traces, after_mismatch, cause_seconds)
    spec = Spec.from_json(traces[0].header["spec"])
    outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
    for trace in traces:
        outcome.versions |= trace.header["versions"]
    preset = traces[0].header.get("preset", "-")
    return report_values(outcome, preset, command, time.monotonic() - started)
