"""`python -m parity doctor`: what the environment lacks, and how to mend it."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

# Package -> version wanted, and why no other will do.
_WANTED = {
    "tensorflow": ("2.21.0", "the version that every figure of this project was measured with"),
    "numpy": ("", ""),
    "safetensors": ("", ""),
    "click": ("", ""),
    "jieba": ("", ""),
}
_PADDLE = ("paddlepaddle", "paddlepaddle-gpu")
_PADDLE_WANTED = "2.6.2"


def problems() -> list[str]:
    """Return one line for each thing that is wrong, with its fix."""
    found = []
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        found.append(
            f"Python is {platform.python_version()}; allowed: 3.10 to 3.12. "
            "Fix: make clean, then make setup PYTHON=/path/to/python3.11"
        )
    paddles = {name: _version(name) for name in _PADDLE if _version(name)}
    if not paddles:
        found.append(
            f"paddlepaddle is missing. Fix: pip install paddlepaddle=={_PADDLE_WANTED}"
        )
    if len(paddles) > 1:
        found.append(
            "paddlepaddle and paddlepaddle-gpu are both installed and own the same files. "
            "Fix: uninstall both, then install the one wanted"
        )
    for name, seen in paddles.items():
        if seen != _PADDLE_WANTED:
            found.append(
                f"{name} is {seen}; allowed: {_PADDLE_WANTED}, the last release with the C++ "
                f"ParallelExecutor. Fix: pip install {name}=={_PADDLE_WANTED}"
            )
    for name, (wanted, reason) in _WANTED.items():
        seen = _version(name)
        if seen is None:
            found.append(f"{name} is missing. Fix: make setup")
        elif wanted and seen != wanted:
            found.append(f"{name} is {seen}; wanted: {wanted}, {reason}. Fix: make setup")
    return found


def report() -> int:
    """Print the versions and the problems; return 0 if there are none, else 2."""
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name in (*_PADDLE, *_WANTED):
        print(f"{name} {_version(name) or 'not installed'}")
    found = problems()
    for problem in found:
        print(f"problem: {problem}")
    if not found:
        print("no problem found")
    return 2 if found else 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
