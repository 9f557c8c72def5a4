"""Which layer the operations of a network belong to, for strategies that place layers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_begin: ContextVar[Callable[[str], None] | None] = ContextVar("begin", default=None)


def begin_layer(name: str) -> None:
    """Declare that whatever a network builds from here on belongs to a layer.

    It lasts until the next call. A strategy that spreads layers over devices uses it; for any
    other it does nothing.

    Args:
      name: the layer's name, as in parity/twins/spec/stages.py.
    """
    begin = _begin.get()
    if begin is not None:
        begin(name)


@contextmanager
def placing_layers(begin: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of each layer that begins within this context."""
    token = _begin.set(begin)
    try:
        yield
    finally:
        _begin.reset(token)
