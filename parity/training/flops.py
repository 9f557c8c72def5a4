"""The matrix products of a training step, and how fast a machine can take such products."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from parity.spec.networks import NETWORKS
from parity.spec.spec import Spec

_SIZE = 2048  # of the square matrices that the limit is measured with
_TIMES = 5


def product_flops(spec: Spec, batch: Mapping[str, np.ndarray]) -> int:
    """Return the floating-point operations of a training step's matrix products.

    Of real tokens alone, forward and twice that backward: a product's gradient is one product
    for each of its factors. An addition and a multiplication are two operations.

    Args:
      batch: the network's arrays, with the lengths.
    """
    target = int(batch["lengths"].sum())
    source = int(batch.get("source_lengths", np.zeros(1)).sum())
    forward = 0
    for parameter in NETWORKS[spec.network].parameters(spec.model):
        name, shape = parameter.name, parameter.shape
        if name.endswith("kernel") and len(shape) == 2:
            of_source = name.startswith("encoder/") or name == "attention/memory_kernel"
            forward += 2 * shape[0] * shape[1] * (source if of_source else target)
    if "source_lengths" in batch:  # each target step's scores, and its context
        pairs = int((batch["lengths"] * batch["source_lengths"]).sum())
        forward += 4 * pairs * int(spec.model.hidden_size)
    return 3 * forward


def product_limit(dtype: str, cores: int) -> float:
    """Return the best rate of large matrix products seen here, on all cores, in FLOP/s.

    Each core takes products of its own; `python -m parity` has NumPy use one thread.
    """
    draw = np.random.Generator(np.random.PCG64(1))
    pairs = [draw.random((2, _SIZE, _SIZE)).astype(dtype) for _ in range(cores)]
    best = 0.0
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(_TIMES):
            started = time.perf_counter()
            list(pool.map(lambda pair: np.matmul(*pair), pairs))
            best = max(best, cores * 2 * _SIZE**3 / (time.perf_counter() - started))
    return best
