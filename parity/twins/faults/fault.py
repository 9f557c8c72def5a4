"""A fault: a mistake to plant in one side's real training code, and where it must be found."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from parity.twins.launch.edited_source import Edit

__all__ = ["DTYPES", "KERNELS", "Edit", "Fault"]

DTYPES = ("float64", "float32")
KERNELS = ("fast", "plain")


@dataclass(frozen=True)
class Fault:
    """One mistake that a port can make.

    Attributes:
      name: a short name; a mistake that is planted in several runs has one name in all of them.
      cause: what is wrong, in words.
      topic: the difference between the frameworks, or between two ports, that invites it.
      setting: name of the run to plant it in, one of `small_runs.SETTINGS`; it decides by which
        strategy each framework trains.
      where: shell patterns for tensor names. The first tensor that the harness names must match
        one of them; for gradients, the first that the backward pass reaches. Where the run is
        refused or stops, they are patterns for its message.
      edits: framework -> the edits that make the mistake in its fast kernels.
      dtypes: the precisions in which it must be found.
      undetectable_reason: why it need not be found in the other precision.
      plain: framework -> the edits that make the mistake in its plain kernels; a framework that
        is missing here cannot make it with those. None if the edits are the same.
      check: the check of whole runs that must find it, one of parity.trace.rungs.CHECKS; empty
        if the recorded steps must show it, or a second run of the same command.
    """

    name: str
    cause: str
    topic: str
    setting: str
    where: tuple[str, ...]
    edits: Mapping[str, tuple[Edit, ...]]
    dtypes: tuple[str, ...] = DTYPES
    undetectable_reason: str = ""
    plain: Mapping[str, tuple[Edit, ...]] | None = None
    check: str = ""

    def edits_for(self, kernels: str) -> Mapping[str, tuple[Edit, ...]]:
        """Return framework -> edits, for "fast" or "plain" kernels."""
        if kernels == "plain" and self.plain is not None:
            return self.plain
        return self.edits

    def is_at(self, tensor: str) -> bool:
        """Return whether a tensor, or a message, is a place where the fault must be found."""
        return any(fnmatchcase(tensor, pattern) for pattern in self.where)
