"""Independent pieces of NumPy work on all cores at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from parity.base.machine import usable_cores

Result = TypeVar("Result")

# Each call may hold the weights, gradients and logits of a large network in float64.
_MOST = 4


def run_parallel(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """Call each function in a thread of its own, as many at a time as there are cores, up to 4.

    Where that would leave cores idle at the end, as with three on two cores, all run at a time.
    NumPy releases the interpreter's lock while it computes. Linear algebra itself should use
    one thread. Each call sees the context variables of the caller.

    Returns:
      The results, in order.

    Raises:
      Exception: the first one, in order, that a function raised.
    """
    calls = list(calls)
    threads = usable_cores()
    if threads > 1 and len(calls) % threads:
        threads = len(calls)
    with ThreadPoolExecutor(min(threads, _MOST)) as pool:
        return [
            future.result()
            for future in [pool.submit(copy_context().run, call) for call in calls]
        ]
