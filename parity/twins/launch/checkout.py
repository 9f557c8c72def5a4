"""Checks what a command that trains needs in addition to the wheel: checkout and frameworks."""

import importlib.util
import sys
from collections.abc import Iterable

from parity.base.errors import UsageError
from parity.twins.launch.processes import interpreter
from parity.twins.spec.frameworks import FRAMEWORKS


def require_checkout(command: str) -> None:
    """Check, before any work, that a command has the trainers, which a wheel does not contain.

    Args:
      command: the command's name, such as "run".

    Raises:
      UsageError: if `parity` runs without a checkout.
    """
    if not has_checkout():
        folders = " and ".join(each.folder for each in FRAMEWORKS.values())
        raise UsageError(
            f"parity {command} needs {folders}, which are not installed "
            "with parity: clone the project, run `make setup` in the checkout, and there "
            f"`.venv/bin/python -m parity {command}`"
        )


def require_frameworks(command: str, names: Iterable[str] | None = None) -> None:
    """Check, before any work, that a command has the trainers and their frameworks.

    Args:
      command: the command's name, such as "run".
      names: the frameworks that it trains with; by default all.

    Raises:
      UsageError: if `parity` runs without a checkout, or a framework is not installed.
    """
    require_checkout(command)
    for framework in FRAMEWORKS if names is None else names:
        # the packages of another interpreter, PARITY_{FRAMEWORK}_PYTHON, cannot be checked here
        runs_here = interpreter(framework) == sys.executable
        package = FRAMEWORKS[framework].imports or framework
        if runs_here and importlib.util.find_spec(package) is None:
            raise UsageError(
                f"parity {command} needs {package}, which is not installed: run `make setup` "
                "in the checkout, or install the extra `train` (pip install '.[train]')"
            )


def has_checkout() -> bool:
    """Return whether every framework has a trainer, beside `parity` or where it says."""
    return all((each.path / "train.py").is_file() for each in FRAMEWORKS.values())
