"""How a difference develops after the first wrong step: a sentence and a table."""

from typing import Any

from parity.compare.growth import (
    BETWEEN,
    FREE_RUN,
    GROWS,
    SHRINKS,
    STAYS,
    STEP_ALONE,
    VANISHES,
)

# Kind of comparison -> the column, and the line of the chart, that shows it.
TITLES = {
    BETWEEN: "between sides",
    FREE_RUN: "from oracle",
    STEP_ALONE: "one step to oracle",
}

_VERBS = {
    GROWS: "grows",
    STAYS: "stays about the same",
    SHRINKS: "shrinks",
    VANISHES: "vanishes",
}


def growth_sentence(growth: dict[str, Any] | None) -> str:
    """Say how the difference develops; empty where that cannot be said.

    Args:
      growth: what `Growth.to_json` returned, if anything.
    """
    if growth is None:
        return ""
    parts = []
    if growth["trend"] is not None:
        known = [
            (step, value)
            for step, value in zip(growth["steps"], growth["series"], strict=True)
            if value is not None
        ]
        (first, before), (last, after) = known[0], known[-1]
        parts.append(
            f"the difference {_VERBS[growth['trend']]}: {before:.2g} in step {first}, "
            f"{after:.2g} in step {last}"
        )
    if growth["ended"] is not None:
        parts.append(
            f"nothing was measured after step {growth['steps'][-1]}: {growth['ended']}"
        )
    return "; ".join(parts)


def growth_table(growth: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of the steps after a mismatch.

    The distances of a rung are those from the oracle's own training, or between the sides of a
    pair that has no oracle.
    """
    columns = {
        title: growth["of_tensor"][kind]
        for kind, title in TITLES.items()
        if any(value is not None for value in growth["of_tensor"][kind])
    }
    for rung, series in differing_rungs(growth).items():
        columns[f"rung\n{rung}"] = series
    rows = [
        [str(step), *(_number(series[place]) for series in columns.values())]
        for place, step in enumerate(growth["steps"])
    ]
    return rows, ["step", *columns]


def differing_rungs(growth: dict[str, Any]) -> dict[str, list[float | None]]:
    """Return rung -> its distance by step, for the rungs on which anything differs."""
    found = {}
    for rung, kinds in growth["of_rungs"].items():
        known = any(value is not None for value in kinds[FREE_RUN])
        series = kinds[FREE_RUN if known else BETWEEN]
        if any(series):
            found[rung] = series
    return found


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.1e}"
