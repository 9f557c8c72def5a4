"""Independent pieces of NumPy work on all cores at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from parity.base.cores import usable_cores

Result = TypeVar("Result")

# Each may hold the weights, gradients and logits of a large network, in float64.
_MOST = 4


def at_once(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """Call each in a thread of its own, as many at a time as there are cores, at most 4.

    NumPy lets other threads run while it computes. Linear algebra itself is to have one thread.

    Returns:
      What each returned, in order.

    Raises:
      Exception: the first, in order, that one of them raised.
    """
    with ThreadPoolExecutor(min(usable_cores(), _MOST)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
