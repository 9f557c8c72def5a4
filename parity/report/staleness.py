"""How stale the updates of asynchronous sides were, as a table."""

from typing import Any

_MOST_COLUMNS = 12  # of staleness; what is staler shares the last one

NOTE = (
    "In an asynchronous run each step is one update by one replica, and its staleness is the "
    "number of other updates that were applied after the replica had read the weights. The "
    "oracle computes each gradient from the weights that were read, and each update from the "
    "weights just before it."
)


def staleness_table(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of staleness; no rows without such a side.

    There is a row for each asynchronous side and precision, and a column for each staleness.

    Args:
      values: the values of report.json.
    """
    counts = staleness_counts(values)
    largest = max((stale for _, _, found in counts for stale in found), default=0)
    last = min(largest, _MOST_COLUMNS - 1)
    names = [str(stale) for stale in range(last)]
    names.append(f"{last} or more" if largest > last else str(last))
    rows = []
    for side, dtype, found in counts:
        shown = [0] * (last + 1)
        for stale, count in found.items():
            shown[min(stale, last)] += count
        number = sum(shown)
        mean = sum(stale * count for stale, count in found.items()) / number
        rows.append([side, dtype, str(number), f"{mean:.2f}", *map(str, shown)])
    headers = ["asynchronous\nside", "precision", "updates", "mean\nstaleness"]
    return rows, [*headers, *(f"staleness\n{name}" for name in names)]


def staleness_counts(values: dict[str, Any]) -> list[tuple[str, str, dict[int, int]]]:
    """Return (side, precision, staleness -> number of updates) of all asynchronous sides."""
    return [
        (side, run["dtype"], {int(stale): count for stale, count in found.items()})
        for run in values["runs"]
        for side, found in run.get("staleness", {}).items()
    ]
