"""The devices that replicas run on."""

import paddle
from paddle.base import core

from parity.base.errors import UsageError


def replica_devices(device: str, replicas: int) -> list:
    """Return one place per replica: CPUs, or the first GPUs in the framework's numbering.

    CUDA_VISIBLE_DEVICES decides which GPUs these are.

    Args:
      device: "cpu" or "gpu".
      replicas: the number of replicas.

    Raises:
      UsageError: if there are fewer GPUs than needed.
    """
    if device == "cpu":
        return [paddle.CPUPlace()] * replicas
    if not core.is_compiled_with_cuda():
        raise UsageError(
            "--device is 'gpu', but this paddlepaddle is a CPU build; "
            "allowed: cpu, or install paddlepaddle-gpu"
        )
    found = core.get_cuda_device_count()
    if not found:
        raise UsageError("--device is 'gpu', but no GPU is found; allowed: cpu")
    if replicas > found:
        names = ", ".join(f"gpu:{i}" for i in range(found))
        raise UsageError(
            f"--replicas is {replicas}, but there are {found} GPUs ({names}); "
            f"allowed: 1 to {found}, or --device cpu"
        )
    return [paddle.CUDAPlace(i) for i in range(replicas)]
