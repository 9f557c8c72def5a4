"""Functions that can be replaced, for a while, by others.

A side's layers are replaced by kernels that do the same faster, and the oracle's functions by
ones that make a mistake, to see whether a side made it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable)

_replacements: ContextVar[Mapping[Callable, Callable]] = ContextVar(
    "replacements",
    default={},  # noqa: B039 - never changed
)


def replaceable(function: Function) -> Function:
    """Let `replacing` put another function in place of this one, wherever it is called."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return _replacements.get().get(call, function)(*arguments, **named)

    call.is_replaceable = True  # type: ignore[attr-defined]
    return cast(Function, call)


def original(function: Function) -> Function:
    """Return a replaceable function as it was declared, for use inside its replacement."""
    return cast(Function, function.__wrapped__)  # type: ignore[attr-defined]


@contextmanager
def replacing(
    replacements: Mapping[Callable, Callable], *, add: bool = False
) -> Iterator[None]:
    """Call other functions in place of replaceable ones within this context.

    Args:
      replacements: replaceable function -> what is called in its place.
      add: whether other functions keep the replacements of the outer context, if there is one.

    Raises:
      ValueError: if a function is not replaceable, or its replacement has other parameters.
    """
    for function, replacement in replacements.items():
        if not getattr(function, "is_replaceable", False):
            raise ValueError(f"{function.__name__} is not declared replaceable")
        wanted, found = inspect.signature(function), inspect.signature(replacement)
        if wanted != found:
            raise ValueError(f"{function.__name__}{wanted} has a replacement with {found}")
    token = _replacements.set({**(_replacements.get() if add else {}), **replacements})
    try:
        yield
    finally:
        _replacements.reset(token)
