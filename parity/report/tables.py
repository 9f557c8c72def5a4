"""The tables of a report: rungs, wrong tensors of isolated runs, trainings."""

import math
from collections.abc import Callable
from typing import Any

from parity.base.text import decimal
from parity.compare.tensors import ONE_STEP, ORACLE
from parity.report.frameworks import short_of

# What the sides of one framework may differ by, and the column of their distances.
_WITHIN = {
    "strategy": "strategies",
    "kernels": "kernels",
    "processes": "processes",
    "replicas": "replica\ncounts",
}

# The columns of what is allowed: shares of three magnitudes, and multiples of rounding.
FIRST_BOUND = "element\nbound"
_BOUNDS = (FIRST_BOUND, "tensor\nbound", "step\nbound", "rounding\nbound")


def wrong_table(run: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of what an isolated run found wrong."""
    rows = []
    for each in run["isolated"]["wrong"]:
        for found in each["pairs"]:
            a, b = found["a"], found["b"]
            side = a if b == ONE_STEP else f"{a} | {b}"
            count, size = found["elements"]
            values = list(found["values"].values())
            difference = number(abs(values[0] - values[1])) if values else "-"
            elements = f"{count:,} of {size:,}" if size else found["problem"]
            allowed = number(found["allowed"]) if size else "-"
            rows.append([each["tensor"], each["rung"], side, elements, difference, allowed])
    return rows, ["wrong tensor", "rung", "side", "elements", "difference", "allowed"]


def rung_table(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of rungs, a row per precision and rung."""
    if "pair" in values:
        return _rung_table_of_pair(values)
    rows: list[list[str]] = []
    sides = values["sides"]
    frameworks = list(dict.fromkeys(side["framework"] for side in sides.values()))
    for run in values["runs"]:
        for rung, found in run["rungs"].items():
            rows.append(
                [
                    run["dtype"],
                    rung,
                    number(found["worst_absolute"]),
                    number(found["worst_relative"]),
                    *(
                        number(_worst(found, _from_oracle(sides, framework)))
                        for framework in frameworks
                    ),
                    *(number(_worst(found, _within(sides, name))) for name in _WITHIN),
                    number(_worst(found, lambda a, b: b == ONE_STEP)),
                    _share(found["used"]),
                    *_bounds(found["allowed"]),
                    where(found["where"]),
                ]
            )
    titles = [short_of(framework) for framework in frameworks]
    between = {0: "", 1: "", 2: "-".join(titles)}.get(len(titles), "frameworks")
    if not _any_across(values):  # as of asynchronous sides that run freely
        between = ""
    headers = [
        "precision",
        "rung",
        f"{between}\nabsolute".strip(),
        f"{between}\nrelative".strip(),
        *(f"{title}-\noracle" for title in titles),
        *_WITHIN.values(),
        "one step\nto oracle",
        "used",
        *_BOUNDS,
        f"where {between}\nrelative is worst" if between else "where relative is worst",
    ]
    _drop_blank_columns(rows, headers)
    return rows, headers


def _any_across(values: dict[str, Any]) -> bool:
    """Return whether any two sides of different frameworks were compared with each other."""
    framework = {label: side["framework"] for label, side in values["sides"].items()}
    return any(
        framework[pair["a"]] != framework.get(pair["b"], framework[pair["a"]])
        for run in values["runs"]
        for found in run["rungs"].values()
        for pair in found["pairs"]
        if pair["a"] in framework
    )


def _rung_table_of_pair(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the same for two recorded trainings, for which there is no oracle."""
    rows = [
        [
            run["dtype"],
            rung,
            number(found["worst_absolute"]),
            number(found["worst_relative"]),
            _share(found["used"]),
            *_bounds_of_pair(found["allowed"]),
            where(found["where"]),
        ]
        for run in values["runs"]
        for rung, found in run["rungs"].items()
    ]
    headers = ["precision", "rung", "absolute", "relative", "used", *_BOUNDS, "where worst"]
    _drop_blank_columns(rows, headers)
    return rows, headers


def training_table(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of what each side did, trained alone."""
    rows = []
    for label, summary in values["trainings"].items():
        speed, best = summary["tokens_per_second"], summary["best_perplexity"]["test"]
        rows.append(
            [
                label,
                summary["dtype"],
                summary["steps"],
                f"{speed['median']:,.0f}" if speed else "-",
                f"{speed['low']:,.0f} to {speed['high']:,.0f}" if speed else "-",
                f"{summary['waiting_share']:.1%}" if speed else "-",
                _perplexity(summary["test_perplexity"]),
                _perplexity(best),
                number((summary.get("bleu") or {}).get("score"), "{:.1f}"),
                _percent(summary.get("exact_answers")),
            ]
        )
    headers = [
        "trained alone",
        "precision",
        "steps",
        "tokens/s\nmedian",
        "tokens/s\nspread",
        "waiting\nfor data",
        "test\nperplexity",
        "lowest\npossible",
        "test\nBLEU",
        "exact\nanswers",
    ]
    _drop_blank_columns(rows, headers)
    return rows, headers


def _worst(found: dict[str, Any], chosen: Callable[[str, str], bool]) -> float | None:
    """Return the worst relative distance of the pairs that are chosen by their labels."""
    seen = [pair["worst_relative"] for pair in found["pairs"] if chosen(pair["a"], pair["b"])]
    return max(seen) if seen else None


def _from_oracle(sides: dict[str, Any], framework: str) -> Callable[[str, str], bool]:
    return lambda a, b: b == ORACLE and sides[a]["framework"] == framework


def _within(sides: dict[str, Any], name: str) -> Callable[[str, str], bool]:
    """Choose pairs of one framework that differ in this, and in nothing named before it."""

    def chosen(a: str, b: str) -> bool:
        if a not in sides or b not in sides:
            return False
        one, other = sides[a], sides[b]
        differing = [each for each in _WITHIN if one[each] != other[each]]
        first = differing[0] if differing else next(reversed(_WITHIN))
        return one["framework"] == other["framework"] and first == name

    return chosen


def number(value: float | None, form: str = "{:.1e}") -> str:
    """Return a number for a table; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return "0" if value == 0 else form.format(value)


def _perplexity(value: float | None) -> str:
    return "-" if value is None else decimal(value, 3)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _drop_blank_columns(rows: list[list[Any]], headers: list[str]) -> None:
    """Remove the columns in which every row has a dash."""
    blank = [i for i in range(len(headers)) if all(row[i] == "-" for row in rows)]
    for i in reversed(blank):
        for row in [*rows, headers]:
            row.pop(i)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value < 10 else f"{value:.1e} x bound"


def where(place: dict[str, Any] | None) -> str:
    """Return tensor, index and step of a place, for a table."""
    if place is None:
        return "-"
    return f"{place['tensor']}[{','.join(map(str, place['index']))}] step {place['step']}"


def _bounds(allowed: dict[str, Any]) -> list[str]:
    """Return what `_BOUNDS` shows of a rung."""
    free, times = allowed["free_run"], allowed["one_step"]
    return [*_tolerance(free), "-" if times is None else f"{times:g} x"]


def _bounds_of_pair(allowed: list[dict[str, Any]]) -> list[str]:
    """Return the same for a pair, whose tensors may have several bounds on one rung."""
    columns = zip(*map(_tolerance, allowed), strict=True)
    return [*("; ".join(dict.fromkeys(column)) for column in columns), "-"]


def _tolerance(tolerance: dict[str, Any] | None) -> list[str]:
    if tolerance is None:
        return ["-", "-", "-"]
    relative, floor, step = (tolerance[name] for name in ("relative", "floor", "step"))
    grows = " a step" if tolerance.get("grows") else ""
    if not (relative or floor or step):
        return ["exact", "-", "-"]
    return [f"{each:g}{grows}" if each else "-" for each in (relative, floor, step)]
