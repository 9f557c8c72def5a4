"""The tables of a report: rungs, coverage, steps after a mismatch."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parity.base.laboratory import of_laboratory
from parity.compare.coverage import Fact
from parity.compare.growth import BETWEEN, FREE_RUN, STEP_ALONE
from parity.report.table import Column, Table, table_of

Rung = tuple[dict[str, Any], str, dict[str, Any]]  # a run, a rung, and what was found there

_BOUNDS = {
    "relative": (
        "element bound",
        "How much an element may differ, as a share of its own magnitude.",
    ),
    "floor": (
        "tensor bound",
        "How much more it may differ, as a share of the largest magnitude in its tensor: the "
        "rounding of a sum is that of its largest terms.",
    ),
    "step": (
        "step bound",
        "How much more it may differ, as a share of the largest magnitude in all tensors of "
        "its kind at that step, such as all gradients.",
    ),
}

# Kind of comparison -> the column, and the line of the chart, that shows how it develops.
GROWTH = {
    BETWEEN: "between sides",
    FREE_RUN: "from oracle",
    STEP_ALONE: "one step to oracle",
}


def rung_table(values: Mapping[str, Any]) -> Table:
    """Return the table of rungs, a row per precision and rung.

    Args:
      values: of report.json, as for all tables here.
    """
    pair = "pair" in values  # for which there is no oracle
    across = "" if pair else part_of_run("frameworks_compared", values)
    columns = [
        Column(
            "precision",
            "The floating-point type that both sides trained in.",
            _of_run("dtype"),
        ),
        Column("rung", "The stage of a training step.", lambda row: row[1]),
        Column(
            f"{across} absolute".strip(),
            "The largest |a - b| of any element, a and b being "
            + ("the two sides." if pair else "two sides that differ only in the framework."),
            _of_rung("worst_absolute", number),
        ),
        Column(
            f"{across} relative".strip(),
            "The same, divided by the largest magnitude in the element's tensor. All columns "
            "of distances from here on are relative in this way.",
            _of_rung("worst_relative", number),
        ),
        *([] if pair else part_of_run("columns_of_sides", values["sides"])),
        Column(
            "used",
            "The largest share of its bound that any element used; above 100% is a mismatch.",
            _of_rung("used", share),
        ),
        *(Column(*said, _bound(name)) for name, said in _BOUNDS.items()),
        Column(
            "rounding bound",
            "How much one step may differ from the oracle's, as a multiple of the rounding "
            "error of that tensor at that step, which is measured on the oracle.",
            lambda row: None if pair else _times(row[2]["allowed"]["one_step"]),
        ),
        Column(
            "where worst" if pair else f"where {across} relative is worst".replace("  ", " "),
            "The element with the largest relative distance, and its step.",
            _of_rung("where", where),
        ),
    ]
    return table_of(columns, each_rung(values), keys=2, whole=False)


def coverage_table(values: Mapping[str, Any], *, explained: bool = False) -> Table:
    """Return the table of coverage, a row per case.

    There is one column of counts, or one per precision where they differ: training may stop
    early in one of them. A case that cannot occur with these settings is left out.

    Args:
      explained: whether a last column says what each case is.
    """
    facts = {
        run["dtype"]: {each["name"]: Fact(**each) for each in run["coverage"]}
        for run in values["runs"]
        if "coverage" in run
    }
    meanings = case_meanings(values)
    amounts = {
        dtype: [mine[name].amount if name in mine else None for name in meanings]
        for dtype, mine in facts.items()
    }
    alike = len(set(map(tuple, amounts.values()))) == 1
    shown = {"": next(iter(amounts.values()))} if alike else amounts
    headers = ["case", *(f"covered, {dtype}" if dtype else "covered" for dtype in shown)]
    columns = [list(meanings), *shown.values()]
    if explained:
        headers, columns = [*headers, "meaning"], [*columns, list(meanings.values())]
    return Table(headers, list(zip(*columns, strict=True)))


def case_meanings(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what each case that can occur is: name -> a sentence."""
    facts = [Fact(**each) for run in values["runs"] for each in run.get("coverage", ())]
    return {fact.name: fact.meaning for fact in facts if fact.applies or fact.count > 0}


def tables_of_run(values: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of "trainings" and of "stale" updates, of which a pair has none."""
    if "pair" in values:
        return dict.fromkeys(("trainings", "stale"), Table((), ()))
    tables: dict[str, Table] = part_of_run("tables", values)
    return tables


def part_of_run(name: str, values: Mapping[str, Any]) -> Any:
    """Return what the laboratory adds to the report of a run."""
    found = of_laboratory(f"compare.run_tables:{name}")
    assert found is not None  # or nobody could have compared a run
    return found(values)


def growth_table(growth: Mapping[str, Any]) -> Table:
    """Return the table of the steps after a mismatch.

    The distances of a rung are those from the oracle's own training, or between the sides where
    no oracle trains by itself.
    """
    columns = {
        title: growth["of_tensor"][kind]
        for kind, title in GROWTH.items()
        if any(value is not None for value in growth["of_tensor"][kind])
    } | {f"rung {rung}": series for rung, series in differing_rungs(growth).items()}
    rows = zip(growth["steps"], *(map(number, each) for each in columns.values()), strict=True)
    return Table(["step", *columns], list(rows))


def differing_rungs(growth: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return rung -> its distance by step, for the rungs on which anything differs."""
    found = {}
    for rung, kinds in growth["of_rungs"].items():
        known = any(value is not None for value in kinds[FREE_RUN])
        series = kinds[FREE_RUN if known else BETWEEN]
        if any(series):
            found[rung] = series
    return found


def number(value: float | None, form: str = "{:.1e}") -> str | None:
    """Return a number for a table; None where there is none."""
    if value is None or math.isnan(value):
        return None
    return "0" if value == 0 else form.format(value)


def where(place: Mapping[str, Any] | None) -> str | None:
    """Return tensor, index and step of a place, for a table."""
    if place is None:
        return None
    return f"{place['tensor']}[{','.join(map(str, place['index']))}] step {place['step']}"


def each_rung(values: Mapping[str, Any]) -> Iterator[Rung]:
    for run in values["runs"]:
        for rung, found in run["rungs"].items():
            yield run, rung, found


def _of_run(name: str) -> Callable[[Rung], Any]:
    return lambda row: row[0][name]


def _of_rung(name: str, shown: Callable[[Any], Any]) -> Callable[[Rung], Any]:
    return lambda row: shown(row[2][name])


def _bound(name: str) -> Callable[[Rung], str | None]:
    """Show a bound of a rung; the tensors of a pair may have several."""

    def shown(row: Rung) -> str | None:
        allowed = row[2]["allowed"]
        several = allowed if isinstance(allowed, list) else [allowed["free_run"]]
        texts = dict.fromkeys(_tolerance(each, name) for each in several)
        return "; ".join(text or "-" for text in texts) if any(texts) else None

    return shown


def _tolerance(tolerance: Mapping[str, Any] | None, name: str) -> str | None:
    if tolerance is None:
        return None
    if not any(tolerance[each] for each in _BOUNDS):
        return "exact" if name == "relative" else None
    grows = " a step" if tolerance.get("grows") else ""
    return f"{tolerance[name]:g}{grows}" if tolerance[name] else None


def _times(value: float | None) -> str | None:
    return None if value is None else f"{value:g} x"


def share(value: float | None) -> str | None:
    """Return a share of a bound for a table; None where there is none."""
    if value is None:
        return None
    return f"{value:.0%}" if value < 10 else f"{value:.1e} x bound"
