"""Fields of specs and options, declared once for range checks and command lines."""

import dataclasses
import math
import types
import typing
from reprlib import repr as shortened
from typing import Any

from parity.base.errors import UsageError


def option(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] | None = None,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a field of a spec: its default, its meaning, and the values allowed.

    Command lines and range checks are derived from this declaration.
    """
    bounds = {"above": above, "at_least": at_least, "at_most": at_most, "below": below}
    return dataclasses.field(
        default=default, metadata={"help": text, "choices": choices, "bounds": bounds}
    )


_BOUNDS = {
    "above": ("> {}", lambda value, bound: value > bound),
    "at_least": (">= {}", lambda value, bound: value >= bound),
    "at_most": ("<= {}", lambda value, bound: value <= bound),
    "below": ("< {}", lambda value, bound: value < bound),
}


def check_fields(spec: Any) -> None:
    """Check each field of a spec against its declared choices and bounds.

    Raises:
      UsageError: for the first field out of range, naming field, value and what is allowed.
    """
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None:
                _check(flag(field.name), each, field.metadata)
        if isinstance(value, tuple) and len(set(value)) < len(value):
            typed = ",".join(map(str, value))
            raise UsageError(f"{flag(field.name)} is {typed}; allowed: each value once")


def check_types(cls: type, values: Any) -> None:
    """Check the types of a spec's fields that come from a file.

    Args:
      cls: the class of the spec.
      values: field name -> value.

    Raises:
      UsageError: for the first field of another type, or a number that is too large for one.
    """
    for name, kind in typing.get_type_hints(cls).items():
        if name not in values or kind not in _KINDS:
            continue
        value, kinds = values[name], (int, float) if kind is float else (kind,)
        if type(value) not in kinds:
            raise UsageError(f"{flag(name)} is {shortened(value)}; allowed: {in_words(kind)}")
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise UsageError(
                f"{flag(name)} is {shortened(value)}; allowed: less than 2**{_BITS}"
            )


_BITS = 63  # of a whole number, as NumPy and the frameworks have them
_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def in_words(kind: Any) -> str:
    """Return the type of a field in words, such as "a whole number"."""
    if isinstance(kind, types.UnionType):
        return " or ".join(map(in_words, typing.get_args(kind)))
    return "null" if kind is type(None) else _KINDS.get(kind, "a list")


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def _check(name: str, value: Any, declared: Any) -> None:
    choices = declared.get("choices")
    if choices and value not in choices:
        raise UsageError(f"{name} is {value!r}; allowed: {', '.join(choices)}")
    bounds = {k: v for k, v in declared.get("bounds", {}).items() if v is not None}
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise UsageError(f"{name} is {shortened(value)}; allowed: less than 2**{_BITS}")
    # an integer may be too large for a float
    number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if bounds and (not number or isinstance(value, bool)):
        raise UsageError(f"{name} is {value!r}; allowed: a finite number")
    for kind, bound in bounds.items():
        if not _BOUNDS[kind][1](value, bound):
            allowed = " and ".join(_BOUNDS[k][0].format(b) for k, b in bounds.items())
            raise UsageError(f"{name} is {value!r}; allowed: {allowed}")
