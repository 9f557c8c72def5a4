"""Random numbers and bounds by which rows are ordered and cut into batches.

The random numbers are raw 64-bit draws of PCG64, whose stream NumPy promises never to change
(unlike that of `Generator.permutation`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def random_keys(seed: int, epoch: int, stream: int, count: int) -> NDArray[np.uint64]:
    """Return random numbers to sort by; stream 0 is for rows, 1 for batches."""
    return np.random.PCG64(np.random.SeedSequence([seed, epoch, stream])).random_raw(count)


def even_bounds(total: int, parts: int) -> NDArray[np.int64]:
    """Return parts + 1 bounds of 0 .. total; earlier parts may be larger by one."""
    size, larger = divmod(total, parts)
    part = np.arange(parts + 1, dtype=np.int64)
    bounds: NDArray[np.int64] = part * size + np.minimum(part, larger)
    return bounds
