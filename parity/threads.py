"""Independent pieces of NumPy work on all cores at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from parity.machine import usable_cores

Result = TypeVar("Result")


def at_once(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """Call each in a thread of its own, as many at a time as there are cores.

    NumPy lets other threads run while it computes. Linear algebra itself is to have one thread.

    Returns:
      What each returned, in order.

    Raises:
      Exception: the first, in order, that one of them raised.
    """
    with ThreadPoolExecutor(usable_cores()) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
