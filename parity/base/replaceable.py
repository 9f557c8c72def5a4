"""Functions that can be replaced, for a while, by others that do the same faster."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

_replacements: ContextVar[Mapping[Callable, Callable]] = ContextVar(
    "replacements",
    default={},  # noqa: B039 - never changed
)


def replaceable(function: Callable) -> Callable:
    """Let `replacing` put another function in place of this one, wherever it is called."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return _replacements.get().get(call, function)(*arguments, **named)

    call.is_replaceable = True  # type: ignore[attr-defined]
    return call


@contextmanager
def replacing(replacements: Mapping[Callable, Callable]) -> Iterator[None]:
    """Call other functions in place of replaceable ones within this context.

    Args:
      replacements: replaceable function -> what is called in its place.

    Raises:
      ValueError: if a function is not replaceable, or its replacement has other parameters.
    """
    for function, replacement in replacements.items():
        if not getattr(function, "is_replaceable", False):
            raise ValueError(f"{function.__name__} is not declared replaceable")
        wanted, found = inspect.signature(function), inspect.signature(replacement)
        if wanted != found:
            raise ValueError(f"{function.__name__}{wanted} has a replacement with {found}")
    token = _replacements.set(replacements)
    try:
        yield
    finally:
        _replacements.reset(token)
