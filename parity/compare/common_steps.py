"""Which steps of several traces are compared: all, or the common ones where a trace was cut."""

from collections.abc import Mapping

from parity.base.errors import UsageError
from parity.trace.reader import Trace


def common_steps(traces: Mapping[str, Trace]) -> tuple[list[int], dict[str, str]]:
    """Return the numbers of the steps that all traces hold, and which traces were cut.

    Args:
      traces: label -> trace.

    Returns:
      The numbers in the order recorded; and label -> where the trace was cut, as `Trace.cut`
      says it.

    Raises:
      UsageError: if they hold other steps, or a trace that was not cut holds fewer, or none.
    """
    numbers = {label: trace.numbers() for label, trace in traces.items()}
    cut = {label: where for label, trace in traces.items() if (where := trace.cut())}
    counts = ", ".join(
        f"{label} has {len(found)}" + (f", {cut[label]}" if label in cut else "")
        for label, found in numbers.items()
    )
    if not all(numbers.values()):
        raise UsageError(f"the traces hold different numbers of steps, or none: {counts}")
    most, longest = max(numbers.items(), key=lambda each: len(each[1]))
    for label, found in numbers.items():
        if found == longest[: len(found)] and (len(found) == len(longest) or label in cut):
            continue
        only = min(set(longest) ^ set(found), default=None)
        where = f"only {label if only in found else most} has step {only}"
        raise UsageError(
            f"the traces hold different steps: {counts}; "
            f"{'in another order' if only is None else where}"
        )
    return min(numbers.values(), key=len), cut
