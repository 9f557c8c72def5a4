"""The tables of a report: rungs, steps after, coverage, staleness, trainings."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parity.base.text import decimal
from parity.compare.coverage import Fact
from parity.compare.growth import BETWEEN, FREE_RUN, STEP_ALONE
from parity.compare.tensors import ONE_STEP, ORACLE
from parity.report.frameworks import short_of
from parity.report.table import Column, Table, table_of

Rung = tuple[dict[str, Any], str, dict[str, Any]]  # a run, a rung, and what was found there

# What the sides of one framework may differ by -> the column of their distances.
_WITHIN = {
    "strategy": (
        "strategies",
        "The distance between two ways of running the replicas, in one framework.",
    ),
    "kernels": (
        "kernels",
        "The distance between the textbook's layers and the faster ones that replace them, in "
        "one framework.",
    ),
    "processes": (
        "processes",
        "The distance between replicas in one process and in several, in one framework.",
    ),
    "replicas": (
        "replica counts",
        "The distance between trainings that share each batch among different numbers of "
        "replicas, in one framework.",
    ),
}

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
    across = "" if pair else _across(values)
    columns = [
        Column(
            "precision", "The floating-point type that both sides trained in.", _of_run("dtype")
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
        *([] if pair else _columns_of_sides(values["sides"])),
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
    return table_of(columns, _rungs(values), keys=2, whole=False)


def _columns_of_sides(sides: Mapping[str, Any]) -> list[Column]:
    """Return the columns of distances from the oracle and within each framework."""
    frameworks = dict.fromkeys(side["framework"] for side in sides.values())
    return [
        *(
            Column(
                f"{short_of(framework)}-oracle",
                "The distance of that framework from the oracle: the same network in float64 "
                "NumPy, trained by itself from the same initial weights.",
                _worst(_from_oracle(sides, framework)),
            )
            for framework in frameworks
        ),
        *(Column(*said, _worst(_within(sides, name))) for name, said in _WITHIN.items()),
        Column(
            "one step to oracle",
            "The distance from what the oracle computes for this step alone, from the weights "
            "that the side had before it; clipping, optimizer and weight each from what the "
            "side itself computed just before. Errors of earlier steps do not count.",
            _worst(lambda a, b: b == ONE_STEP),
        ),
    ]


def training_table(values: Mapping[str, Any]) -> Table:
    """Return the table of what each side did, trained alone."""

    def of_speed(shown: Callable[[dict[str, Any]], str]) -> Callable[[Any], str | None]:
        return lambda row: shown(row[1]) if row[1]["tokens_per_second"] else None

    columns = [
        Column(
            "trained alone",
            "A side, trained without a trace and without the other side running.",
            lambda row: row[0],
        ),
        Column(
            "precision",
            "The floating-point type that both sides trained in.",
            lambda row: row[1]["dtype"],
        ),
        Column("steps", "How many steps it trained.", lambda row: row[1]["steps"]),
        Column(
            "tokens/s median",
            "The median speed, in real tokens (not padding) per second.",
            of_speed(lambda summary: "{median:,.0f}".format(**summary["tokens_per_second"])),
        ),
        Column(
            "tokens/s spread",
            "The speeds of the slowest and the fastest half second.",
            of_speed(
                lambda summary: "{low:,.0f} to {high:,.0f}".format(
                    **summary["tokens_per_second"]
                )
            ),
        ),
        Column(
            "waiting for data",
            "The share of the time in which a step waited for its batch.",
            of_speed(lambda summary: f"{summary['waiting_share']:.1%}"),
        ),
        Column(
            "test perplexity",
            "The perplexity on the test text, which is e to the loss per token.",
            lambda row: _perplexity(row[1]["test_perplexity"]),
        ),
        Column(
            "lowest possible",
            "The perplexity of a model that knew how the text was generated.",
            lambda row: _perplexity(row[1]["best_perplexity"]["test"]),
        ),
        Column(
            "test BLEU",
            "How much the decoded test sentences resemble their references, of 100.",
            lambda row: number((row[1].get("bleu") or {}).get("score"), "{:.1f}"),
        ),
        Column(
            "exact answers",
            "The share of decoded test sentences that equal their references.",
            lambda row: number(row[1].get("exact_answers"), "{:.1%}"),
        ),
    ]
    return table_of(columns, values["trainings"].items(), whole=False)


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


def staleness_table(values: Mapping[str, Any]) -> Table:
    """Return how many updates had each staleness; no rows without an asynchronous side."""
    columns = [
        Column(
            "asynchronous side",
            "The side; each of its replicas updates the weights by itself.",
            lambda row: row[0],
        ),
        Column(
            "precision",
            "The floating-point type that both sides trained in.",
            lambda row: row[1],
        ),
        Column(
            "updates",
            "The number of updates that were recorded.",
            lambda row: sum(row[2].values()),
        ),
        Column(
            "mean staleness",
            "The mean number of other updates between a replica's reading of the weights and "
            "its own update.",
            lambda row: f"{sum(k * n for k, n in row[2].items()) / sum(row[2].values()):.2f}",
        ),
        Column(
            "updates by staleness",
            "Each staleness, and the number of updates that had it.",
            lambda row: ", ".join(f"{stale}: {count}" for stale, count in row[2].items()),
        ),
    ]
    counts = [
        (side, run["dtype"], {int(stale): count for stale, count in found.items()})
        for run in values["runs"]
        for side, found in run.get("staleness", {}).items()
    ]
    return table_of(columns, counts, keys=2)


def growth_table(growth: Mapping[str, Any]) -> Table:
    """Return the table of the steps after a mismatch.

    The distances of a rung are those from the oracle's own training, or between the sides of a
    pair that has no oracle.
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


def _rungs(values: Mapping[str, Any]) -> Iterator[Rung]:
    for run in values["runs"]:
        for rung, found in run["rungs"].items():
            yield run, rung, found


def _of_run(name: str) -> Callable[[Rung], Any]:
    return lambda row: row[0][name]


def _of_rung(name: str, shown: Callable[[Any], Any]) -> Callable[[Rung], Any]:
    return lambda row: shown(row[2][name])


def _worst(chosen: Callable[[str, str], bool]) -> Callable[[Rung], str | None]:
    """Show the worst relative distance of the pairs that are chosen by their labels."""
    return lambda row: number(
        max(
            (
                pair["worst_relative"]
                for pair in row[2]["pairs"]
                if chosen(pair["a"], pair["b"])
            ),
            default=None,
        )
    )


def _from_oracle(sides: Mapping[str, Any], framework: str) -> Callable[[str, str], bool]:
    return lambda a, b: b == ORACLE and sides[a]["framework"] == framework


def _within(sides: Mapping[str, Any], name: str) -> Callable[[str, str], bool]:
    """Choose pairs of one framework that differ in this, and in nothing named before it."""

    def chosen(a: str, b: str) -> bool:
        if a not in sides or b not in sides:
            return False
        one, other = sides[a], sides[b]
        differing = [each for each in _WITHIN if one[each] != other[each]]
        first = differing[0] if differing else next(reversed(_WITHIN))
        return one["framework"] == other["framework"] and first == name

    return chosen


def _across(values: Mapping[str, Any]) -> str:
    """Return what names the comparison of frameworks; empty if no two were compared."""
    framework = {label: side["framework"] for label, side in values["sides"].items()}
    compared = any(
        framework[pair["a"]] != framework.get(pair["b"], framework[pair["a"]])
        for _, _, found in _rungs(values)
        for pair in found["pairs"]
        if pair["a"] in framework
    )  # not so of asynchronous sides that run freely
    titles = list(dict.fromkeys(map(short_of, framework.values())))
    return ("-".join(titles) if len(titles) == 2 else "frameworks") if compared else ""


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


def _perplexity(value: float | None) -> str | None:
    return None if value is None else decimal(value, 3)
