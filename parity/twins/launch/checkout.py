"""Checks what a command that trains needs in addition to the wheel: checkout and frameworks."""

import importlib.util
import sys

from parity.base.errors import UsageError
from parity.twins.launch.processes import FOLDERS, ROOT, interpreter
from parity.twins.spec.frameworks import FRAMEWORKS


def require_checkout(command: str, *, trains: bool = True) -> None:
    """Check, before any work, that a command has what an installed wheel does not contain.

    Args:
      command: the command's name, such as "run".
      trains: whether the command trains, and so needs the frameworks too, or only reads the
        source of the trainers.

    Raises:
      UsageError: if `parity` runs without a checkout, or a framework is not installed.
    """
    if not has_checkout():
        raise UsageError(
            f"parity {command} needs {' and '.join(FOLDERS.values())}, which are not installed "
            "with parity: clone the project, run `make setup` in the checkout, and there "
            f"`.venv/bin/python -m parity {command}`"
        )
    for framework in FRAMEWORKS if trains else ():
        # the packages of another interpreter, PARITY_{FRAMEWORK}_PYTHON, cannot be checked here
        runs_here = interpreter(framework) == sys.executable
        if runs_here and importlib.util.find_spec(framework) is None:
            raise UsageError(
                f"parity {command} needs {framework}, which is not installed: run `make setup` "
                "in the checkout, or install the extra `train` (pip install '.[train]')"
            )


def has_checkout() -> bool:
    """Return whether the folders of both trainers are beside `parity`."""
    return all((ROOT / folder / "train.py").is_file() for folder in FOLDERS.values())
