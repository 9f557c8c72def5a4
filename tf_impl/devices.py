"""The devices that replicas run on, and matrix products alone, to time them."""

import tensorflow as tf

from parity.base.errors import UsageError
from parity.twins.spec.gpus import check_gpus

tf1 = tf.compat.v1


def replica_devices(device: str, replicas: int, stages: int = 1) -> list:
    """Return a device name per replica: CPUs, or the first GPUs in the framework's numbering.

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
        return [f"/cpu:{i}" for i in range(needed)]
    if not tf.test.is_built_with_cuda():
        raise UsageError(
            "--device is 'gpu', but this tensorflow is a CPU build; "
            "allowed: cpu, or install tensorflow[and-cuda]"
        )
    check_gpus(replicas, stages, len(tf.config.list_physical_devices("GPU")))
    return [f"/gpu:{i}" for i in range(needed)]


def multiplier(product, dtype):
    """Return a function without parameters that takes a product, as often as it is taken.

    Args:
      product: a `parity.twins.training.flops.Product`; every element of its factors is one.
      dtype: "float32" or "float64".
    """
    with tf.Graph().as_default():

        def factor(shape):
            # a variable, because the product of two constants is taken only once
            return tf.Variable(tf.ones(shape, dtype))

        second = factor(product.second_shape)
        transposed = product.first_transposed, product.second_transposed
        corners = [
            tf.matmul(factor(product.first_shape), second, *transposed)[0, 0]
            for _ in range(product.times)
        ]
        corner = tf.add_n(corners)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
    return lambda: session.run(corner)
