"""GPUs: how many a training needs, and how exactly they compute, alike for both frameworks."""

import os

from parity.base.errors import UsageError

# TF32 rounds what is multiplied to 10 bits, more than any bound here allows for.
_ON_GPUS = {
    "NVIDIA_TF32_OVERRIDE": "0",  # of cuBLAS and cuDNN, in either engine
    "FLAGS_cudnn_deterministic": "1",  # Paddle
    "TF_DETERMINISTIC_OPS": "1",  # TensorFlow
}


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
            f"--replicas is {replicas}{at_stages}, but there are {found} GPUs ({names}); "
            f"allowed: {f'1 to {most}' if most else 'fewer stages'}, or --device cpu"
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
