"""Networks and strategies that live outside this project: modules loaded before anything else.

PARITY_PLUGINS names them, separated by commas: a module's full name, or the path of a file.
Each adds its entries to a registry as it is loaded. The environment hands the list on to the
processes that a command starts.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parity.base.errors import UsageError

VARIABLE = "PARITY_PLUGINS"


def load_plugins() -> None:
    """Import every module that PARITY_PLUGINS names and that is not loaded yet.

    Raises:
      UsageError: if one cannot be loaded, whatever it raises itself.
    """
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        try:
            _load_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except (Exception, SystemExit) as error:
            # a mistake in somebody else's module: its traceback is shown with --debug
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"{VARIABLE} names {name!r}, which cannot be loaded: {reason}; allowed: "
                "modules or files, separated by commas"
            ) from error


def load_object(path: str) -> Any:
    """Return the object that a path such as "package.module:name" names.

    Registries hold such paths where loading the object itself would load a framework.

    Raises:
      ImportError, AttributeError: if there is no such module or name.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@contextmanager
def without_module(name: str) -> Iterator[None]:
    """Let the import of a module fail in this context, unless its package is loaded already.

    Packages that go on without it load sooner so. It can be imported as usual afterwards.
    """
    package = name.partition(".")[0]
    if package in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for each in [each for each in sys.modules if each.partition(".")[0] == package]:
            del sys.modules[each]


def _load_file(path: Path) -> None:
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) != str(path.resolve()):
            raise ImportError(f"another module is called {path.stem}; rename the file")
        return
    described = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if described is None or described.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(described)
    sys.modules[path.stem] = module  # so that "stem:name" finds it
    try:
        described.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
