"""Finds out whether the frameworks of the peers are installed."""

import subprocess
from collections.abc import Iterable, Mapping

from parity.base.errors import UsageError
from parity.twins.launch.processes import PEERS, interpreter


def check_installed(names: Iterable[str]) -> None:
    """Check that those names which are peers have their frameworks installed.

    Raises:
      UsageError: if one is not installed; the message names the first of these.
    """
    for name, missing in not_installed(names).items():
        raise UsageError(
            f"--peers is given, but {missing}; "
            f"allowed: install the dependency group `peers` there, or name a Python that "
            f"has it in PARITY_{name.upper()}_PYTHON"
        )


def not_installed(names: Iterable[str]) -> Mapping[str, str]:
    """Return those names which are peers whose framework is not installed, each with a reason,
    such as "torch is not installed for /usr/bin/python3"."""
    found = {}
    for name in sorted(set(names) & set(PEERS)):
        module = PEERS[name][1]
        find = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        if subprocess.run([interpreter(name), "-c", find], check=False).returncode:
            found[name] = f"{module} is not installed for {interpreter(name)}"
    return found
