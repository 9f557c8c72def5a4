"""What a framework rounds to TF32 before it multiplies: 11 bits of float32's 24, on GPUs."""

import os
from typing import Any

NONE, SOME, ALL = "nothing", "convolutions and recurrent layers", "all products"
# framework -> the variable of the environment that lets it multiply all 24 bits
IN_FULL = {
    "torch": "NVIDIA_TF32_OVERRIDE=0",
    "tensorflow": "NVIDIA_TF32_OVERRIDE=0",
    "jax": "JAX_DEFAULT_MATMUL_PRECISION=highest",
}


def in_tf32(framework: str, module: Any, *, on_gpu: bool) -> str:
    """Return what a training rounds to TF32: NONE, SOME or ALL.

    Args:
      framework: "torch", "tensorflow" or "jax".
      module: the framework.
      on_gpu: whether the training runs on a GPU.
    """
    if not on_gpu or (framework != "jax" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"):
        return NONE
    if framework == "torch":
        some = SOME if module.backends.cudnn.allow_tf32 else NONE
        return some if module.get_float32_matmul_precision() == "highest" else ALL
    if framework == "tensorflow":
        enabled = module.config.experimental.tensor_float_32_execution_enabled()
    else:  # XLA has kernels of its own, which the other variable does not reach
        precision = module.config.jax_default_matmul_precision
        enabled = precision not in ("highest", "float32")
    return ALL if enabled else NONE
