"""Checks that what a command trains with is installed: the frameworks, and their peers."""

import importlib.util
import sys
from collections.abc import Iterable, Mapping

from parity.base.errors import UsageError
from parity.twins.cli.doctor import can_import
from parity.twins.launch.processes import PEERS, interpreter
from parity.twins.spec.frameworks import FRAMEWORKS


def require_frameworks(command: str, names: Iterable[str] | None = None) -> None:
    """Check, before any work, that a command has the frameworks that it trains with.

    Args:
      command: the command's name, such as "run".
      names: the frameworks that it trains with; by default all.

    Raises:
      UsageError: if one is not installed.
    """
    for framework in FRAMEWORKS if names is None else names:
        # the packages of another interpreter, PARITY_{FRAMEWORK}_PYTHON, cannot be checked here
        runs_here = interpreter(framework) == sys.executable
        package = FRAMEWORKS[framework].imports or framework
        if runs_here and importlib.util.find_spec(package) is None:
            raise UsageError(
                f"parity {command} needs {package}, which is not installed: run `make setup` "
                "in the checkout, or install the extra `train` (pip install '.[train]')"
            )


def check_installed(names: Iterable[str], given: str = "--peers is given") -> None:
    """Check that those names which are peers have their frameworks installed.

    Args:
      given: the option that asks for them, and how.

    Raises:
      UsageError: if one is not installed; the message names the first of these.
    """
    for name, missing in not_installed(names).items():
        raise UsageError(
            f"{given}, but {missing}; "
            f"allowed: install the dependency group `peers` there, or name a Python that "
            f"has it in PARITY_{name.upper()}_PYTHON"
        )


def not_installed(names: Iterable[str]) -> Mapping[str, str]:
    """Return those names which are peers whose framework is not installed, each with a reason,
    such as "torch is not installed for /usr/bin/python3"."""
    found = {}
    for name in sorted(set(names) & set(PEERS)):
        module = PEERS[name][1]
        if not can_import(interpreter(name), module):
            found[name] = f"{module} is not installed for {interpreter(name)}"
    return found
