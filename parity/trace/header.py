"""What a trace's header must hold before anything is computed from it."""

from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Any

from parity.base.errors import UsageError
from parity.spec.spec import Spec
from parity.trace.folder import DTYPES, FORMAT
from parity.trace.side import Side

# What a reader needs of trace.json: from a training of this project, and from a `Recorder`.
_OURS: dict[str, type] = {
    **dict.fromkeys(("framework", "strategy", "kernels", "corpus"), str),
    **dict.fromkeys(("replicas", "processes", "batches_per_epoch"), int),
    **dict.fromkeys(("settings", "spec", "versions"), dict),
    "synchronous": bool,
}
_RECORDERS: dict[str, type] = {
    **dict.fromkeys(("framework", "dtype"), str),
    **dict.fromkeys(("run", "tolerances", "versions"), dict),
}
_OPTIONAL: dict[str, type] = {"first_step": int, "steps": int, "preset": str, "isolated": bool}
_WORDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object"}
_LEAST = {"replicas": 1, "processes": 1, "batches_per_epoch": 1, "first_step": 0, "steps": 0}


def check_header(header: Any) -> Side:
    """Check the values of trace.json, and return the side that recorded it.

    Raises:
      UsageError: for a format, a key or a value that is not allowed.
    """
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        seen = header.get("format") if isinstance(header, dict) else header
        raise UsageError(f"format is {shortened(seen)}; allowed: {FORMAT}")
    recorders = "run" in header
    types = _RECORDERS if recorders else _OURS
    if lacking := [name for name in types if name not in header]:
        raise UsageError(f"lacks {', '.join(lacking)}")
    for name, kind in (types | _OPTIONAL).items():
        if name in header and type(header[name]) is not kind:
            raise UsageError(f"{name} is {shortened(header[name])}; allowed: {_WORDS[kind]}")
    for name, least in _LEAST.items():
        if name in header and name in types | _OPTIONAL and header[name] < least:
            raise UsageError(f"{name} is {header[name]}; allowed: at least {least}")
    _check_versions(header["versions"])
    if recorders:
        if header["dtype"] not in DTYPES:
            seen = shortened(header["dtype"])
            raise UsageError(f"dtype is {seen}; allowed: {', '.join(DTYPES)}")
    else:
        Spec.from_json(header["spec"])
    return Side.from_header(header)


def _check_versions(versions: Mapping[str, Any]) -> None:
    for name, version in versions.items():
        if not isinstance(version, str):
            raise UsageError(f"version of {name!r} is {shortened(version)}; allowed: text")
