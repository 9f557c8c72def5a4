"""What a trace's header must hold before anything is computed from it."""

from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Any

from parity.base.errors import UsageError
from parity.base.laboratory import of_laboratory
from parity.trace.folder import DTYPES, FORMATS
from parity.trace.side import Side

_RECORDERS: dict[str, type] = {
    **dict.fromkeys(("framework", "dtype"), str),
    **dict.fromkeys(("run", "tolerances", "versions"), dict),
}
_OPTIONAL: dict[str, type] = {"first_step": int, "steps": int, "facts": dict, "sources": dict}
_WORDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object"}
_LEAST = {"first_step": 0, "steps": 0}
_LONGEST_SOURCE = 1000


def check_sources(sources: Mapping[str, Any]) -> None:
    """Check the lines of code that made tensors: a report prints them.

    Raises:
      UsageError: for what is no text, has control characters or is too long.
    """
    for name, source in sources.items():
        text = isinstance(source, str) and source.isprintable()
        if not text or len(source) > _LONGEST_SOURCE:
            raise UsageError(
                f"source of {shortened(name)} is {shortened(source)}; allowed: printable text "
                f"of up to {_LONGEST_SOURCE} characters"
            )


def check_header(header: Any) -> Side:
    """Check the values of trace.json, and return the side that recorded it.

    Raises:
      UsageError: for a format, a key or a value that is not allowed.
    """
    if not isinstance(header, dict) or header.get("format") not in FORMATS:
        seen = header.get("format") if isinstance(header, dict) else header
        raise UsageError(
            f"format is {shortened(seen)}; allowed: {', '.join(map(str, FORMATS))}"
        )
    check_types(header, {}, _OPTIONAL)
    check_least(header, _LEAST)
    check_sources(header.get("sources", {}))
    if "spec" in header and "run" not in header:
        check_trained = of_laboratory("trace.side:check_trained")
        if check_trained is None:
            raise UsageError("is of a train.py, whose oracle only a checkout of parity has")
        side: Side = check_trained(header)
        return side
    check_types(header, _RECORDERS)
    check_versions(header["versions"])
    if header["dtype"] not in DTYPES:
        seen = shortened(header["dtype"])
        raise UsageError(f"dtype is {seen}; allowed: {', '.join(DTYPES)}")
    return Side(header["framework"])


def check_types(
    header: Mapping[str, Any],
    types: Mapping[str, type],
    optional: Mapping[str, type] | None = None,
) -> None:
    """Check that a header holds some keys, and the types of their values.

    Raises:
      UsageError: for a key that is missing, or a value of another type.
    """
    if lacking := [name for name in types if name not in header]:
        raise UsageError(f"lacks {', '.join(lacking)}")
    for name, kind in {**types, **(optional or {})}.items():
        if name in header and type(header[name]) is not kind:
            raise UsageError(f"{name} is {shortened(header[name])}; allowed: {_WORDS[kind]}")


def check_least(header: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Check that numbers of a header are as large as they must be.

    Raises:
      UsageError: for the first one that is smaller.
    """
    for name, bound in least.items():
        if name in header and header[name] < bound:
            raise UsageError(f"{name} is {header[name]}; allowed: at least {bound}")


def check_versions(versions: Mapping[str, Any]) -> None:
    """Check that versions are text.

    Raises:
      UsageError: for the first one that is not.
    """
    for name, version in versions.items():
        if not isinstance(version, str):
            raise UsageError(f"version of {name!r} is {shortened(version)}; allowed: text")
