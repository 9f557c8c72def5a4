"""What "the same" means: specs, parameters, the oracle, traces and their comparison.

For a pair of your own, importable from here: `Recorder`, `Rename`, `Tolerance`, `Trace` and
`assert_match`. Each is loaded when it is first asked for; the package alone loads nothing.
"""

from typing import TYPE_CHECKING, Any

from parity.base.plugins import load_object

if TYPE_CHECKING:
    from parity.align.names import Rename
    from parity.pair.recorder import Recorder
    from parity.report.assertion import assert_match
    from parity.trace.reader import Trace
    from parity.trace.tolerances import Tolerance

__version__ = "0.1.0"

__all__ = ["Recorder", "Rename", "Tolerance", "Trace", "assert_match"]


_MODULES = {
    "Recorder": "parity.pair.recorder",
    "Rename": "parity.align.names",
    "Tolerance": "parity.trace.tolerances",
    "Trace": "parity.trace.reader",
    "assert_match": "parity.report.assertion",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return load_object(f"{_MODULES[name]}:{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
