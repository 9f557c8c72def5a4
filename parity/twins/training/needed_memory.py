"""Whether a training fits into memory at all, before anything is built."""

import math

import numpy as np

from parity.base.errors import UsageError
from parity.base.machine import memory_limit, too_large
from parity.twins.spec.parameters import parameters, snapshot_shapes
from parity.twins.spec.spec import Spec

_COPIES = 3


def check_memory(spec: Spec) -> None:
    """Check that weights and optimizer state fit, as often as every training holds them.

    That is in the framework, as a copy for a checkpoint, and as that checkpoint's bytes. Short
    of them, libraries end the process instead of raising an error. Gradients and activations
    come on top; what of those does not fit fails where it is asked for.

    Raises:
      UsageError: naming the size and the limit, if they can never fit.
    """
    size = np.dtype(spec.training.dtype).itemsize
    values = sum(math.prod(shape) for shape in snapshot_shapes(spec).values())
    needed = _COPIES * values * size
    limit = memory_limit()
    if needed > limit[0]:
        count = sum(math.prod(each.shape) for each in parameters(spec))
        what = f"{count:,} weights with optimizer state and checkpoint take"
        raise UsageError(too_large(what, needed, limit))
