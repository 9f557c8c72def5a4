"""What `python -m parity doctor` checks for the two networks' trainings."""

import ctypes
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

from parity.cli.doctor import installed_version, package_problems
from parity.twins.spec.gpus import DRIVER, found_gpus, without_paddle

_PADDLE = ("paddlepaddle", "paddlepaddle-gpu")
_PADDLE_REQUIRED = "2.6.2"
# Package -> the version required, and why no other will do; ("", "") accepts any version.
_OTHERS = {
    "tensorflow": ("2.21.0", "the version that every figure of this project was measured with"),
    "jieba": ("", ""),
}
REQUIRED = (*_PADDLE, *_OTHERS)
# What Paddle's build for GPUs opens by these names, beside itself or where the system looks.
_CUDA_OF_PADDLE = (
    *("libcublas.so", "libcublasLt.so", "libcudnn.so", "libcufft.so", "libcurand.so"),
    *("libcusolver.so", "libcusparse.so", "libnccl.so", "libnvrtc.so"),
)


def notes() -> list[str]:
    """Return what else to say of the environment: what `--device gpu` would run on."""
    if not installed_version("paddlepaddle-gpu"):
        return []
    gpus = found_gpus()
    if gpus is None:
        return [f"GPU: no driver ({DRIVER} is not found), so --device gpu cannot run here"]
    (major, minor), capabilities = gpus
    why = filter(None, map(without_paddle, sorted({*capabilities})))
    return [
        f"GPU: a driver for CUDA {major}.{minor}, devices: {len(capabilities)}",
        *(f"GPU: {each}" for each in why),
    ]


def problems() -> list[str]:
    """Return one line for each problem, with its fix."""
    found = _paddle_problems() + package_problems(_OTHERS, "make setup")
    for name in ("paddle", "tensorflow"):
        python = os.environ.get(f"PARITY_{name.upper()}_PYTHON")
        if python is not None and not can_import(python, name):
            found.append(
                f"PARITY_{name.upper()}_PYTHON is {python!r}, which is no Python that finds "
                f"{name}. Fix: name one that does, or unset it"
            )
    if installed_version("paddlepaddle-gpu") and (missing := _missing_cuda()):
        found.append(
            f"Paddle does not find {', '.join(missing)}, of CUDA 11.8 and cuDNN 8. Fix: make "
            "gpu, then .venv-gpu/bin/python"
        )
    return found


def can_import(python: str, module: str) -> bool:
    """Return whether a program is a Python that finds a module."""
    find = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
    try:
        said = subprocess.check_output(
            [python, "-c", find], stderr=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return said.strip() == b"True"


def _missing_cuda() -> list[str]:
    """Return the libraries of CUDA that Paddle would not find."""
    paddle = find_spec("paddle")
    beside = Path(paddle.origin).parent / "libs" if paddle and paddle.origin else None
    missing = []
    for name in _CUDA_OF_PADDLE:
        try:
            ctypes.CDLL(str(beside / name) if beside and (beside / name).exists() else name)
        except OSError:
            missing.append(name)
    return missing


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
