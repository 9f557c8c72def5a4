"""`python -m parity doctor`: finds problems of the environment and names their fixes."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from parity.twins.launch.checkout import has_checkout

# Package -> the version required, and why no other will do; ("", "") accepts any version.
_REQUIRED = {
    "tensorflow": ("2.21.0", "the version that every figure of this project was measured with"),
    "numpy": ("", ""),
    "safetensors": ("", ""),
    "click": ("", ""),
    "jieba": ("", ""),
}
_CORE = ("numpy", "safetensors", "click")  # enough to compare recorded traces
_PADDLE = ("paddlepaddle", "paddlepaddle-gpu")
_PADDLE_REQUIRED = "2.6.2"
_NO_CHECKOUT = (
    "no checkout: parity can record, compare and report; to train both networks, clone the "
    "project and run make setup there"
)


def problems(*, checkout: bool | None = None) -> list[str]:
    """Return one line for each problem, with its fix.

    Args:
      checkout: whether this is a checkout, in which both networks can be trained; by default
        that is found out. Without a checkout, only the needs of a comparison are checked.
    """
    checkout = has_checkout() if checkout is None else checkout
    found = []
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        fix = "make clean, then make setup PYTHON=/path/to/python3.11"
        found.append(
            f"Python is {platform.python_version()}; allowed: 3.10 to 3.12. "
            f"Fix: {fix if checkout else 'make a new environment with one of these'}"
        )
    if checkout:
        found += _paddle_problems()
    for name, (required, reason) in _REQUIRED.items():
        if not checkout and name not in _CORE:
            continue
        fix = "make setup" if checkout else f"pip install {name}"
        seen = _version(name)
        if seen is None:
            found.append(f"{name} is missing. Fix: {fix}")
        elif required and seen != required:
            found.append(f"{name} is {seen}; allowed: {required}, {reason}. Fix: {fix}")
    return found


def report() -> int:
    """Print the versions and the problems; return 0 if there is no problem, else 2."""
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name in (*_PADDLE, *_REQUIRED):
        print(f"{name} {_version(name) or 'not installed'}")
    if not has_checkout():
        print(_NO_CHECKOUT)
    found = problems()
    for problem in found:
        print(f"problem: {problem}")
    if not found:
        print("no problem found")
    return 2 if found else 0


def _paddle_problems() -> list[str]:
    """Return the problems with Paddle, which one of two packages provides."""
    paddles = {name: _version(name) for name in _PADDLE if _version(name)}
    found = []
    if not paddles:
        found.append(
            f"paddlepaddle is missing. Fix: pip install paddlepaddle=={_PADDLE_REQUIRED}"
        )
    if len(paddles) > 1:
        found.append(
            "paddlepaddle and paddlepaddle-gpu are both installed and overwrite each other's "
            "files. Fix: uninstall both, then install the one you need"
        )
    for name, seen in paddles.items():
        if seen != _PADDLE_REQUIRED:
            found.append(
                f"{name} is {seen}; allowed: {_PADDLE_REQUIRED}, the last release with the C++ "
                f"ParallelExecutor. Fix: pip install {name}=={_PADDLE_REQUIRED}"
            )
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
