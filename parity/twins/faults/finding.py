"""What the harness found of each planted fault, and the tables and files that say so."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from parity.report.table import Table

# How a fault was found: by the comparison of steps, by a check of whole runs, by a number that
# is not finite, by an error message, or because the same run, repeated, gave other bits.
MISMATCH, CHECK = "mismatch", "check"
NUMERIC, REFUSED, REPEAT = "not finite", "refused", "another run differs"

_LONGEST_MESSAGE = 72  # characters, in the table


@dataclass
class Finding:
    """What the harness found of one planted fault.

    Attributes:
      fault, topic, cause, setting: the planted fault, and the run that it was planted in.
      side: the framework in whose code it was planted.
      strategy: the strategy that it was planted in; empty if that is the framework's default.
      dtype, kernels: the precision and the kernels of the run.
      found_by: how it was found, such as `MISMATCH`; empty if it was not.
      rung, tensor, step: what the harness named first.
      nearest: for wrong gradients, the one that the harness named as nearest to the loss.
      blamed: the frameworks that the harness said depart from the oracle.
      strategies: the strategies, other than default ones, that the harness named for the sides
        that depart from the oracle.
      right_place: whether the named tensor (or message) and framework are the planted ones, and
        the strategy as well, if it is not the framework's default.
      story: what the harness said.
      confirmed: the causes that the harness confirmed, in words; where it names several, they
        cannot be told apart.
      confirmed_faults: the faults of the catalogue that these stand for.
      required: whether the fault has to be found in this precision.
      seconds: how long planting, running and comparing took.
    """

    fault: str
    side: str
    dtype: str
    topic: str
    cause: str
    setting: str
    kernels: str = "fast"
    strategy: str = ""
    found_by: str = ""
    rung: str = ""
    tensor: str = ""
    step: int | None = None
    nearest: str = ""
    blamed: list[str] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)
    right_place: bool = False
    story: str = ""
    confirmed: list[str] = field(default_factory=list)
    confirmed_faults: list[str] = field(default_factory=list)
    required: bool = True
    seconds: float = 0.0

    @property
    def found(self) -> bool:
        """Return whether the harness found the fault."""
        return bool(self.found_by)

    @property
    def is_strategy_named(self) -> bool:
        """Return whether the harness named the strategy of the fault, and no other."""
        return self.strategies == ([self.strategy] if self.strategy else [])

    @property
    def is_confirmed(self) -> bool:
        """Return whether the planted fault was confirmed as the cause."""
        return self.fault in self.confirmed_faults

    @property
    def is_tried(self) -> bool:
        """Return whether the oracle looks for the cause where the fault was found."""
        return self.found_by == MISMATCH or self.rung == "evaluation"

    @property
    def is_misled(self) -> bool:
        """Return whether other causes than the planted fault were confirmed."""
        return bool(self.confirmed) and not self.is_confirmed


def all_found(findings: Iterable[Finding]) -> bool:
    """Return whether every fault that has to be found was, and no wrong cause was confirmed."""
    findings = list(findings)
    return all(finding.found for finding in findings if finding.required) and not any(
        finding.is_misled for finding in findings
    )


def findings_values(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as plain values."""
    return {
        "all_found": all_found(findings),
        "findings": [asdict(finding) | {"found": finding.found} for finding in findings],
    }


def findings_text(findings: Sequence[Finding]) -> str:
    """Return a table with a row per finding, and the totals."""
    headers = [
        "fault",
        "planted in",
        "kernels",
        "precision",
        "found by",
        "rung",
        "step",
        "named first",
        "right place",
        "cause confirmed",
    ]
    rows = [_row(finding) for finding in findings]
    lines = [Table(headers, rows, keys=2).text(), ""]
    lines += _totals(findings)
    faults = {finding.fault for finding in findings}
    found = all(finding.found for finding in findings if finding.required)
    misled = sorted({finding.fault for finding in findings if finding.is_misled})
    lines.append(
        f"{len(faults)} faults; {'all found' if found else 'NOT ALL FOUND'}"
        + ("; WRONG CAUSES CONFIRMED: " + ", ".join(misled) if misled else "")
    )
    return "\n".join(lines)


def _row(finding: Finding) -> list[Any]:
    missed = "NOT FOUND" if finding.required else "below rounding"
    return [
        finding.fault,
        f"{finding.side} {finding.strategy}".rstrip(),
        finding.kernels,
        finding.dtype,
        finding.found_by or missed,
        finding.rung or "-",
        "-" if finding.step is None else finding.step,
        _shortened(finding.nearest or finding.tensor) or "-",
        ("yes" if finding.right_place else "NO") if finding.found else "-",
        _cause(finding),
    ]


def _cause(finding: Finding) -> str:
    """Return whether the cause was confirmed; a dash where no step shows the fault."""
    if finding.is_misled:
        return "WRONG"
    if not finding.is_tried:
        return "-"
    return "yes" if finding.is_confirmed else "no"


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return message[: _LONGEST_MESSAGE - 3] + "..."


def _totals(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each precision and kind of kernel."""

    def group_of(finding: Finding) -> tuple[str, str]:
        return finding.dtype, finding.kernels

    lines = []
    for (dtype, kernels), group in itertools.groupby(
        sorted(findings, key=group_of, reverse=True), key=group_of
    ):
        planted = list(group)
        found = [finding for finding in planted if finding.found]
        right = sum(finding.right_place for finding in found)
        tried = [finding for finding in found if finding.is_tried]
        confirmed = sum(finding.is_confirmed for finding in tried)
        of_strategies = [finding for finding in found if finding.strategy]
        strategies = sum(finding.is_strategy_named for finding in of_strategies)
        at_place = f"{right} of {len(found)} at the right place"
        if of_strategies:
            at_place += f"; strategy named: {strategies} of {len(of_strategies)}"
        lines.append(
            f"{dtype}, {kernels} kernels: {len(found)} of {len(planted)} found, {at_place}; "
            f"cause confirmed: {confirmed} of {len(tried)}, "
            f"{sum(finding.is_misled for finding in found)} wrongly"
        )
    return lines
