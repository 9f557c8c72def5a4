"""Choices that are measured once on a machine, and remembered in the user's cache.

A second measurement might choose otherwise, and two runs on one machine must compute the same
bits: the first choice stays, even for a process that was measuring at the same time.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from parity.base.errors import UsageError
from parity.base.files import new_folder, read_file, sync_file, write_whole
from parity.base.machine import measured_here, processor_facts, user_cache
from parity.base.text import parse_json

T = TypeVar("T")


class MeasuredOnce(Generic[T]):
    """A choice of this processor; it is measured again only if its file cannot be read.

    Args:
      name: what is chosen.
      facts: all else that the choice depends on, as JSON.
      choices: what can be chosen, as JSON gives it back.
      folder: where choices are kept; None for the user's cache.

    Attributes:
      path: the file of the choice, which may not exist yet.
    """

    def __init__(
        self, name: str, facts: Any, choices: Collection[T], folder: Path | None = None
    ):
        text = json.dumps([processor_facts(), facts], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = (folder or user_cache()) / f"{name}-{digest}" / "choice.json"
        self._choices = choices

    def read(self) -> T | None:
        """Return the choice; None without one that can be read."""
        try:
            choice: T = parse_json(read_file(self.path))["choice"]
        except (OSError, UsageError, ValueError, KeyError, TypeError):
            return None
        return choice if choice in self._choices else None

    def remember(self, choice: T, measured: Mapping[str, Any]) -> T:
        """Keep a choice with what was measured, by name; return the one that is kept."""
        values = {"choice": choice, "measured": measured} | measured_here()
        content = json.dumps(values, indent=2).encode()
        try:
            if self.path.exists():  # and cannot be read
                write_whole(self.path, content)
            with new_folder(self.path.parent) as temporary:
                write_whole(temporary / self.path.name, content)
                sync_file(temporary / self.path.name)
        except UsageError:  # without a folder that can be written to, every start measures
            return choice
        kept = self.read()  # another process may have been first
        return choice if kept is None else kept
