"""The devices that replicas run on, and matrix products alone, to time them."""

import paddle
from paddle.base import core

from parity.base.errors import UsageError
from parity.twins.spec.gpus import check_gpus, without_paddle


def replica_devices(device: str, replicas: int, stages: int = 1) -> list:
    """Return one place per replica: CPUs, or the first GPUs in the framework's numbering.

    CUDA_VISIBLE_DEVICES decides which GPUs these are.

    Args:
      device: "cpu" or "gpu".
      replicas: the number of replicas.
      stages: the number of devices of each replica; those of replica 0 come first.

    Raises:
      UsageError: if there are fewer GPUs than needed, or it has no code for them.
    """
    needed = replicas * stages
    if device == "cpu":
        return [paddle.CPUPlace()] * needed
    if not core.is_compiled_with_cuda():
        raise UsageError(
            "--device is 'gpu', but this paddlepaddle is a CPU build; "
            "allowed: cpu, or install paddlepaddle-gpu"
        )
    check_gpus(replicas, stages, core.get_cuda_device_count())
    for i in range(needed):
        if why := without_paddle(paddle.device.cuda.get_device_capability(i)):
            raise UsageError(f"--device is 'gpu', but gpu:{i} is {why}; or --device cpu")
    return [paddle.CUDAPlace(i) for i in range(needed)]


def multiplier(product, dtype):
    """Return a function without parameters that takes a product, as often as it is taken.

    Args:
      product: a `parity.twins.training.flops.Product`; every element of its factors is one.
      dtype: "float32" or "float64".
    """
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        ones = paddle.nn.initializer.Constant(1.0)

        def factor(shape):
            return paddle.create_parameter(list(shape), dtype, default_initializer=ones)

        second = factor(product.second_shape)
        transposed = product.first_transposed, product.second_transposed
        corners = [
            paddle.matmul(factor(product.first_shape), second, *transposed)[0, 0]
            for _ in range(product.times)
        ]
        corner = paddle.add_n(corners)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    return lambda: executor.run(program, fetch_list=[corner])
