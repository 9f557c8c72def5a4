"""GPUs: how many a training needs, and how exactly they compute, alike for both frameworks."""

import ctypes
import os
from typing import NamedTuple

from parity.base.errors import UsageError
from parity.base.text import counted

DRIVER = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_* of cuda.h
# The compute capabilities that paddlepaddle-gpu 2.6.2 holds device code for. It holds none that
# a driver could compile for other GPUs, such as an H100 (9.0).
OF_PADDLE = ((6, 1), (7, 0), (7, 5), (8, 0), (8, 6))

# TF32 rounds what is multiplied to 10 bits, more than any bound here allows for.
_ON_GPUS = {
    "NVIDIA_TF32_OVERRIDE": "0",  # of cuBLAS and cuDNN, in either engine
    "FLAGS_cudnn_deterministic": "1",  # Paddle
    "TF_DETERMINISTIC_OPS": "1",  # TensorFlow
}


class Gpus(NamedTuple):
    """What the driver says of a machine's GPUs.

    Attributes:
      release: the release of CUDA that the driver is for, such as (12, 4).
      capabilities: each GPU's compute capability, such as (8, 6).
    """

    release: tuple[int, int]
    capabilities: list[tuple[int, int]]


def found_gpus() -> Gpus | None:
    """Return what the driver says of the GPUs that CUDA_VISIBLE_DEVICES leaves.

    Returns:
      None if there is no driver.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return None

    def number(function: str, *arguments: int) -> int:
        value = ctypes.c_int()
        getattr(driver, function)(ctypes.byref(value), *arguments)
        return value.value

    release = number("cuDriverGetVersion")
    driver.cuInit(0)
    devices = [number("cuDeviceGet", i) for i in range(number("cuDeviceGetCount"))]
    capabilities = [
        (
            number("cuDeviceGetAttribute", _MAJOR, each),
            number("cuDeviceGetAttribute", _MINOR, each),
        )
        for each in devices
    ]
    return Gpus((release // 1000, release % 1000 // 10), capabilities)


def gpu_count() -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES leaves."""
    gpus = found_gpus()
    return len(gpus.capabilities) if gpus else 0


def without_paddle(capability: tuple[int, int]) -> str:
    """Return why Paddle cannot run on a GPU of a compute capability; "" if it can.

    Code for 8.0 runs on 8.9, not on 9.0 (CUDA's programming guide, "Binary Compatibility").
    """
    major, minor = capability
    if any(major == each and minor >= least for each, least in OF_PADDLE):
        return ""
    held = ", ".join(f"{each}.{least}" for each, least in OF_PADDLE)
    return (
        f"a GPU of compute capability {major}.{minor}, which paddlepaddle-gpu 2.6.2 has no "
        f"code for; allowed: {held}, and later ones of the same first number"
    )


def check_gpus(replicas: int, stages: int, found: int) -> None:
    """Check that there is a GPU for each stage of each replica.

    Args:
      replicas: the number of replicas.
      stages: the number of devices of each replica.
      found: the number of GPUs.

    Raises:
      UsageError: if there are fewer GPUs than needed.
    """
    if not found:
        raise UsageError("--device is 'gpu', but no GPU is found; allowed: cpu")
    if replicas * stages > found:
        names = ", ".join(f"gpu:{i}" for i in range(found))
        most = found // stages
        at_stages = f" at --stages {stages}" if stages > 1 else ""
        raise UsageError(
            f"--replicas is {replicas}{at_stages}, but the machine has {counted(found, 'GPU')} "
            f"({names}); allowed: {f'1 to {most}' if most > 1 else most or 'fewer stages'}, or "
            "--device cpu"
        )


def compute_exactly_on_gpus() -> None:
    """Let both engines multiply float32 without TF32, and be deterministic.

    Engines read these variables as they are loaded; a user's own values stay.
    """
    for name, value in _ON_GPUS.items():
        os.environ.setdefault(name, value)


def settings_on_gpus() -> dict[str, str]:
    """Return which of these variables are set, for the record."""
    return {name: os.environ[name] for name in _ON_GPUS if name in os.environ}
