"""Looks faults up by name, and prints the catalogue and what a fault changes."""

import difflib
from collections.abc import Sequence

from parity.base.errors import UsageError
from parity.report.table import Table
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.faults.fault import KERNELS, Fault
from parity.twins.faults.small_runs import SETTINGS
from parity.twins.launch.edited_source import diff_of
from parity.twins.launch.processes import ROOT

_SUGGESTED = 3  # names that are similar to one that does not exist


def faults_named(names: Sequence[str]) -> list[Fault]:
    """Return the faults with these names; all of them if no name is given.

    Raises:
      UsageError: for a name that is not in the catalogue.
    """
    if not names:
        return list(CATALOGUE)
    return [part for name in names for part in parts_of_fault(name)]


def parts_of_fault(name: str, flag: str = "--only") -> list[Fault]:
    """Return a fault of the catalogue, once for each run that it is planted in.

    Args:
      name: its name.
      flag: the option that gave the name, for the message.

    Raises:
      UsageError: if there is none with this name; the message suggests similar ones.
    """
    named: dict[str, list[Fault]] = {}
    for fault in CATALOGUE:
        named.setdefault(fault.name, []).append(fault)
    if name in named:
        return named[name]
    near = difflib.get_close_matches(name, named, _SUGGESTED)
    listed = f"one of the {len(named)} faults that --list-only prints"
    allowed = f"{', '.join(near)}, or another {listed[4:]}" if near else listed
    raise UsageError(f"{flag} is {name!r}; allowed: {allowed}")


def catalogue_text() -> str:
    """Return a table of all faults."""
    rows = [
        [
            fault.name,
            fault.topic,
            fault.cause,
            ", ".join(_places(fault).values()),
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
    return Table(headers, rows).text()


def _places(fault: Fault) -> dict[str, str]:
    """Return the frameworks that a fault is planted in -> each with its strategy."""
    # with their names alone: the registries of strategies need the trainers
    strategies = SETTINGS[fault.setting].strategies
    sides = dict.fromkeys(side for kernels in KERNELS for side in fault.edits_for(kernels))
    return {side: f"{side} {strategies.get(side, '')}".rstrip() for side in sides}


def fault_text(name: str) -> str:
    """Return what a fault is, and the lines that it changes in each side, run by run.

    Raises:
      UsageError: for a fault that is not in the catalogue.
    """
    return "\n\n".join(map(_part_text, parts_of_fault(name, "--show")))


def _part_text(fault: Fault) -> str:
    check = f", by the check {fault.check}" if fault.check else ""
    found = f"must be found in {', '.join(fault.where)}{check}"
    lines = [f"{fault.name}: {fault.cause}", found]
    for kernels in KERNELS if fault.plain is not None else KERNELS[:1]:
        with_kernels = f", {kernels} kernels" if fault.plain is not None else ""
        places = _places(fault)
        for side, edits in fault.edits_for(kernels).items():
            lines += ["", f"planted in {places[side]}{with_kernels}:", diff_of(edits, ROOT)]
    return "\n".join(lines)
