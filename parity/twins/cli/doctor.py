"""What `python -m parity doctor` checks for the two networks' trainings."""

from parity.cli.doctor import installed_version, package_problems

_PADDLE = ("paddlepaddle", "paddlepaddle-gpu")
_PADDLE_REQUIRED = "2.6.2"
# Package -> the version required, and why no other will do; ("", "") accepts any version.
_OTHERS = {
    "tensorflow": ("2.21.0", "the version that every figure of this project was measured with"),
    "jieba": ("", ""),
}
REQUIRED = (*_PADDLE, *_OTHERS)


def problems() -> list[str]:
    """Return one line for each problem, with its fix."""
    return _paddle_problems() + package_problems(_OTHERS, "make setup")


def _paddle_problems() -> list[str]:
    """Return the problems with Paddle, which one of two packages provides."""
    paddles = {name: installed_version(name) for name in _PADDLE if installed_version(name)}
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
