"""`python -m parity doctor`: finds problems of the environment and names their fixes."""

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from parity.base.laboratory import of_laboratory

# What it takes to compare recorded traces.
_CORE = ("numpy", "safetensors", "click")
_NO_CHECKOUT = (
    "no checkout: parity can record, compare and report; to train the two networks, clone the "
    "project and run make setup there"
)


def report() -> int:
    """Print the versions and the problems; return 0 if there is no problem, else 2."""
    laboratory = of_laboratory("cli.doctor:REQUIRED")
    packages = dict.fromkeys((*(laboratory or ()), *_CORE))
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name in packages:
        print(f"{name} {installed_version(name) or 'not installed'}")
    if laboratory is None:
        print(_NO_CHECKOUT)
    for line in (of_laboratory("cli.doctor:notes") or list)():
        print(line)
    found = problems()
    for problem in found:
        print(f"problem: {problem}")
    if not found:
        print("no problem found")
    return 2 if found else 0


def problems() -> list[str]:
    """Return one line for each problem, with its fix.

    Without the laboratory, only the needs of a comparison are checked.
    """
    more = of_laboratory("cli.doctor:problems")
    found = []
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        fix = "make clean, then make setup PYTHON=/path/to/python3.11"
        found.append(
            f"Python is {platform.python_version()}; allowed: 3.10 to 3.12. "
            f"Fix: {fix if more else 'make a new environment with one of these'}"
        )
    if more is not None:
        return [
            *found,
            *more(),
            *package_problems(dict.fromkeys(_CORE, ("", "")), "make setup"),
        ]
    return found + package_problems(dict.fromkeys(_CORE, ("", "")))


def package_problems(required: Mapping[str, tuple[str, str]], fix: str = "") -> list[str]:
    """Return one line for each package that is missing or of another version.

    Args:
      required: package -> the version required, and why no other will do; ("", "") accepts any.
      fix: what mends it; by default, to install the package.
    """
    found = []
    for name, (only, reason) in required.items():
        seen, mend = installed_version(name), fix or f"pip install {name}"
        if seen is None:
            found.append(f"{name} is missing. Fix: {mend}")
        elif only and seen != only:
            found.append(f"{name} is {seen}; allowed: {only}, {reason}. Fix: {mend}")
    return found


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
