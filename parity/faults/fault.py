"""A fault: a change of one side's real training code, and where it must be found."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from fnmatch import fnmatchcase
from pathlib import Path

from parity.launch.processes import FOLDERS, ROOT

DTYPES = ("float64", "float32")
_COPIED = ("data", "parity", *FOLDERS.values())


@dataclass(frozen=True)
class Edit:
    """A piece of one file, replaced.

    Attributes:
      file: path inside the project.
      old: what stands there, exactly once.
      new: what stands there instead.
    """

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> tuple[str, str]:
        """Make the change in a copy of the project; return the file before and after.

        Raises:
          ValueError: if `old` is not there exactly once.
        """
        path = root / self.file
        before = path.read_text(encoding="utf-8")
        if before.count(self.old) != 1:
            times = before.count(self.old)
            raise ValueError(f"{self.file} holds {times} times, not once: {self.old!r}")
        after = before.replace(self.old, self.new)
        path.write_text(after, encoding="utf-8")
        return before, after


@dataclass(frozen=True)
class Fault:
    """One way in which a port goes wrong.

    Attributes:
      name: short, in the catalogue once.
      cause: what is wrong, as a report tells it among the likely causes.
      topic: what the two frameworks, or two ports, decide differently here.
      setting: name of the run that it is planted in.
      where: names of the tensors, as patterns of a shell, one of which must be named first; of
        gradients, which the backward pass reaches first. For a run that is refused or breaks
        off, patterns of its message.
      edits: side -> what to change in it where it runs the fast kernels.
      plain: side -> what to change in it where it runs the plain ones; None if that is the
        same. The fault is planted in no other side than those named.
      dtypes: precisions in which it must be caught.
      small: for a precision it need not be caught in, why.
    """

    name: str
    cause: str
    topic: str
    setting: str
    where: tuple[str, ...]
    edits: Mapping[str, tuple[Edit, ...]]
    dtypes: tuple[str, ...] = DTYPES
    small: str = ""
    plain: Mapping[str, tuple[Edit, ...]] | None = None

    def edits_for(self, kernels: str) -> Mapping[str, tuple[Edit, ...]]:
        """Return what to change in each side that runs these kernels, "plain" or "fast"."""
        return self.edits if kernels == "fast" or self.plain is None else self.plain

    def right(self, tensor: str) -> bool:
        """Return whether a tensor (or message) is the planted place."""
        return any(fnmatchcase(tensor, pattern) for pattern in self.where)


def plant(fault: Fault, side: str, folder: Path, kernels: str = "fast") -> str:
    """Copy the project and plant a fault in the copy.

    Args:
      side: "paddle" or "tensorflow".
      folder: of the copy; what is there already is removed.
      kernels: that the side is to run, "plain" or "fast".

    Returns:
      The change, as a unified diff.

    Raises:
      ValueError: if the code is no longer as the fault expects it.
    """
    if folder.exists():
        shutil.rmtree(folder)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in _COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    diff = ""
    for edit in fault.edits_for(kernels)[side]:
        before, after = edit.apply(folder)
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        diff += "".join(unified_diff(old, new, f"a/{edit.file}", f"b/{edit.file}", n=2))
    return diff
