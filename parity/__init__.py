"""What "the same" means: specs, parameters, the oracle, traces and their comparison.

For a pair of your own, importable from here: `Recorder`, `Rename`, `Tolerance`, `Trace` and
`assert_match`. Each is loaded when it is first asked for; the package alone loads nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.pair.assertion import assert_match
    from parity.trace.names import Rename
    from parity.trace.tolerances import Tolerance
    from parity.trace.trace import Recorder, Trace

__version__ = "0.1.0"

__all__ = ["Recorder", "Rename", "Tolerance", "Trace", "assert_match"]


def __getattr__(name: str) -> Any:
    if name == "assert_match":
        from parity.pair.assertion import assert_match

        return assert_match
    if name == "Rename":
        from parity.trace.names import Rename

        return Rename
    if name == "Tolerance":
        from parity.trace.tolerances import Tolerance

        return Tolerance
    if name in __all__:
        from parity.trace import trace

        return getattr(trace, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
