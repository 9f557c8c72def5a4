"""Runs the project with some lines of its source replaced in memory; no file on disk changes.

A process that calls `EditedSource(...).install()` imports the edited text of those modules from
then on. Planted faults use it: the real checkout is run, but for the lines of the fault.
"""

import linecache
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


@dataclass(frozen=True)
class Edit:
    """A piece of source text to replace.

    Attributes:
      file: path of the file, relative to the root of the project.
      old: the text to replace, which the file must contain exactly once.
      new: the text that replaces it.
    """

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the file's text with the replacement made.

        Raises:
          ValueError: if the text does not contain `old` exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} contains {count} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


def edited_texts(edits: Iterable[Edit], root: Path) -> dict[str, str]:
    """Return the text of every edited file after all its edits, keyed by the edits' `file`.

    Args:
      edits: applied in order, so a later edit of a file sees the earlier ones.
      root: folder of the project.

    Raises:
      ValueError: if an edit does not fit the code any more.
    """
    texts: dict[str, str] = {}
    for edit in edits:
        if edit.file not in texts:
            texts[edit.file] = (root / edit.file).read_text(encoding="utf-8")
        texts[edit.file] = edit.apply(texts[edit.file])
    return texts


def diff_of(edits: Iterable[Edit], root: Path) -> str:
    """Return what the edits change, as a unified diff.

    Raises:
      ValueError: if an edit does not fit the code any more.
    """
    diff = ""
    for file, after in edited_texts(edits, root).items():
        before = (root / file).read_text(encoding="utf-8")
        lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
        diff += "".join(unified_diff(*lines, f"a/{file}", f"b/{file}", n=2))
    return diff


class EditedSource(MetaPathFinder):
    """Imports modules, or runs a script, with edited text in place of their files' text.

    Args:
      texts: path of each edited file -> the text to use instead.
    """

    def __init__(self, texts: Mapping[str, str]):
        self._texts = dict(texts)

    def install(self, packages: Iterable[str]) -> None:
        """Import edited text from now on, in this process.

        Args:
          packages: top-level packages whose loaded modules are forgotten, because they may be
            edited, or hold objects of a module that is.
        """
        forgotten = set(packages)
        for name in list(sys.modules):
            if name.split(".")[0] in forgotten:
                del sys.modules[name]
        for path, text in self._texts.items():
            # tracebacks, and `inspect`, show the lines that run; None: never checked on disk
            lines = text.splitlines(keepends=True)
            linecache.cache[path] = (len(text), None, lines, path)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import a module if its file is edited, or None."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin not in self._texts:
            return None
        spec.loader = _EditedLoader(name, spec.origin, self._texts[spec.origin])
        return spec

    def run_script(self, path: str) -> None:
        """Run a script as the program's main module, as `runpy.run_path` runs one on disk."""
        main = ModuleType("__main__")
        main.__file__ = path
        sys.modules["__main__"] = main
        exec(compile(self._texts[path], path, "exec", dont_inherit=True), main.__dict__)


class _EditedLoader(SourceFileLoader):
    """Compiles the given text instead of the file, or of its cached bytecode."""

    def __init__(self, name: str, path: str, text: str):
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        return self._text
