"""Looks faults up by name, and prints the catalogue and what a fault changes."""

from collections.abc import Sequence

from tabulate import tabulate

from parity.base.errors import UsageError
from parity.faults.catalogue import CATALOGUE
from parity.faults.fault import KERNELS, Fault
from parity.faults.small_runs import SETTINGS
from parity.launch.edited_source import diff_of
from parity.launch.processes import ROOT


def faults_named(names: Sequence[str]) -> list[Fault]:
    """Return the faults with these names; all of them if no name is given.

    Raises:
      UsageError: for a name that is not in the catalogue.
    """
    if not names:
        return list(CATALOGUE)
    return [fault_named(name) for name in names]


def fault_named(name: str) -> Fault:
    """Return a fault of the catalogue.

    Raises:
      UsageError: if there is none with this name.
    """
    for fault in CATALOGUE:
        if fault.name == name:
            return fault
    raise UsageError(
        f"--only is {name!r}; allowed: {', '.join(fault.name for fault in CATALOGUE)}"
    )


def catalogue_text() -> str:
    """Return a table of all faults."""
    rows = [
        [
            fault.name,
            fault.topic,
            fault.cause,
            ", ".join(_places(fault)),
            ", ".join(fault.where),
            fault.check or "-",
        ]
        for fault in CATALOGUE
    ]
    headers = [
        "fault",
        "topic",
        "what is wrong",
        "planted in",
        "must be found in",
        "by the check",
    ]
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)


def _places(fault: Fault) -> list[str]:
    """Return the frameworks that a fault is planted in, each with its strategy."""
    # not by the registries of strategies, which a wheel has not
    strategies = SETTINGS[fault.setting].strategies
    return [f"{side} {strategies.get(side, '')}".rstrip() for side in fault.edits]


def fault_text(name: str) -> str:
    """Return what a fault is, and the lines that it changes in each side.

    Raises:
      UsageError: for a fault that is not in the catalogue.
    """
    fault = fault_named(name)
    check = f", by the check {fault.check}" if fault.check else ""
    found = f"must be found in {', '.join(fault.where)}{check}"
    lines = [f"{fault.name}: {fault.cause}", found]
    for kernels in KERNELS if fault.plain is not None else KERNELS[:1]:
        with_kernels = f", {kernels} kernels" if fault.plain is not None else ""
        places = dict(zip(fault.edits, _places(fault), strict=True))
        for side, edits in fault.edits_for(kernels).items():
            lines += ["", f"planted in {places[side]}{with_kernels}:", diff_of(edits, ROOT)]
    return "\n".join(lines)
