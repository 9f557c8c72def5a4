"""What a command that trains needs beyond an installed wheel: the checkout, the frameworks."""

import importlib.util
import sys

from parity.base.errors import UsageError
from parity.launch.processes import FOLDERS, ROOT, interpreter
from parity.spec.frameworks import FRAMEWORKS


def require_checkout(command: str, *, trains: bool = True) -> None:
    """Check, before any work, that a command can run what an installed wheel does not hold.

    Args:
      command: the command's name, such as "run".
      trains: whether it needs the frameworks too, not only the source of the trainings.

    Raises:
      UsageError: if `parity` was installed without its checkout, or a framework is missing.
    """
    if not has_checkout():
        raise UsageError(
            f"parity {command} needs {' and '.join(FOLDERS.values())}, which are not installed "
            "with parity: clone the project, run `make setup` in the checkout, and there "
            f"`.venv/bin/python -m parity {command}`"
        )
    for framework in FRAMEWORKS if trains else ():
        # another interpreter, named by PARITY_{FRAMEWORK}_PYTHON, has packages of its own
        here = interpreter(framework) == sys.executable
        if here and importlib.util.find_spec(framework) is None:
            raise UsageError(
                f"parity {command} needs {framework}, which is not installed: run `make setup` "
                "in the checkout, or install the extra `train` (pip install '.[train]')"
            )


def has_checkout() -> bool:
    """Return whether the folders of both trainings lie beside `parity`."""
    return all((ROOT / folder / "train.py").is_file() for folder in FOLDERS.values())
