"""A verdict as people read it, and as programs do."""

import math
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tabulate import tabulate

from parity.compare.ladder import ONE_STEP, ORACLE, Verdict, rungs
from parity.compare.outcome import Outcome
from parity.compare.signatures import Cause, likely_causes, signature
from parity.compare.tensors import Distance, Mismatch
from parity.trace.side import Side, title_of

_MOST_CAUSES = 3  # of one topic that are told in full
# What the sides of one framework may differ by, and the column of their distances.
_WITHIN = {
    "strategy": "strategies",
    "kernels": "kernels",
    "processes": "processes",
    "replicas": "replica\ncounts",
}


def describe_mismatch(mismatch: Mismatch, oracle: Any, dtype: str) -> str:
    """Tell the whole story of the first tensor that differs.

    Args:
      oracle: the oracle's tensors of that step.
      dtype: precision of the sides, for the unit in the last place.
    """
    a, b = mismatch.sides
    place = mismatch.place
    lines = [f"{mismatch.rung}: {a} and {b} differ in {place.tensor}, step {place.step}"]
    if mismatch.problem:
        return f"{lines[0]}: {mismatch.problem}"
    share = mismatch.count / mismatch.size
    lines[0] += f": {mismatch.count:,} of {mismatch.size:,} elements ({share:.1%})"
    values = dict(mismatch.values)
    if place.tensor in oracle and ORACLE not in values:
        expected = np.asarray(oracle[place.tensor])
        if len(place.index) == expected.ndim:
            values[ORACLE] = float(expected[place.index])
    lines.append(f"  farthest beyond what is allowed at [{', '.join(map(str, place.index))}]")
    width = max(map(len, values))
    lines += [f"    {side:<{width}}  {value!r}" for side, value in values.items()]
    difference = abs(values[a] - values[b])
    ulps = difference / float(
        np.spacing(np.dtype(dtype).type(max(abs(values[a]), abs(values[b]))))
    )
    lines.append(
        f"  difference {difference:.3g}, {ulps:.3g} units in the last place of {dtype}; "
        f"allowed {mismatch.allowed:.3g}"
    )
    return "\n".join(lines)


def blame(verdict: Verdict) -> str:
    """Say which side departs from the oracle in the first tensor that differs."""
    if verdict.matches:
        return ""
    departing = verdict.departing()
    if departing:
        return f"departing from the oracle in it: {', '.join(departing)}"
    if verdict.mismatches[0].rung == "batch":
        return "the sides did not read the same batch; the oracle has no text of its own"
    return "neither side departs from the oracle in it by more than is allowed"


def nearest_to_loss(verdict: Verdict) -> str:
    """Return which wrong gradient the backward pass computes first; empty without any.

    Gradients are computed from the loss down. The first mismatch is the lowest of them, which
    all wrong ones above it may have spoilt.
    """
    if verdict.matches or not verdict.mismatches[0].place.tensor.startswith("gradient/"):
        return ""
    wrong = [
        name
        for evidence in verdict.evidence.values()
        for name in evidence.wrong
        if name.startswith("gradient/")
    ]
    return wrong[-1] if wrong else ""


def likely(verdict: Verdict) -> list[Cause]:
    """Return the faults of the catalogue that look like the first mismatch, likeliest first."""
    best: dict[str, Cause] = {}
    for evidence in verdict.evidence.values():
        for cause in likely_causes(signature(evidence), evidence.network):
            if cause.fault not in best or cause.fit > best[cause.fault].fit:
                best[cause.fault] = cause
    return sorted(best.values(), key=lambda cause: -cause.fit)


def rung_values(verdict: Verdict) -> dict[str, dict[str, Any]]:
    """Return rung -> its worst distance between the frameworks, and every pair's.

    `worst_absolute`, `worst_relative` and `where` are those between the frameworks. `allowed`
    and `used` are of what is judged: each rung of each side against what the oracle makes of
    the rung below, and in float64 every pair.
    """
    found = {}
    for rung in rungs():
        pairs = {pair: d[rung] for pair, d in verdict.pairs.items() if rung in d}
        across, judged = Distance(), Distance()
        for (a, b), distance in pairs.items():
            if rung == "replicas" or _crosses(verdict.sides, a, b):
                across.add(distance)
            if distance.used is not None:
                judged.add(distance)
        if not pairs:
            continue
        if across.where is None and len(pairs):
            for distance in pairs.values():
                across.add(distance)
        found[rung] = across.to_json() | {
            "used": judged.to_json()["used"],
            "allowed": verdict.allowed(rung),
            "pairs": [
                {"a": a, "b": b, **distance.to_json()} for (a, b), distance in pairs.items()
            ],
        }
    return found


def verdict_values(verdict: Verdict) -> dict[str, Any]:
    """Return one precision's verdict as plain values."""
    values: dict[str, Any] = {
        "verdict": "match" if verdict.matches else "mismatch",
        "dtype": verdict.dtype,
        "steps": verdict.steps,
        "rungs": rung_values(verdict),
    }
    if verdict.isolated:
        values["isolated"] = isolated_values(verdict)
    if verdict.ties:
        values["ties"] = [tie.to_json() | {"story": str(tie)} for tie in verdict.ties]
    if verdict.amplified is not None:
        values["amplified"] = {
            "sides": list(verdict.amplified.sides),
            **verdict.amplified.place.to_json(),
        }
    if not verdict.matches:
        first = verdict.mismatches[0]
        values["first_mismatch"] = {
            "rung": first.rung,
            "sides": list(first.sides),
            "within": first.within or None,
            **first.place.to_json(),
            "values": first.values,
            "allowed": first.allowed,
            "problem": first.problem or None,
            "elements": [first.count, first.size],
            "blame": blame(verdict),
            "nearest_to_loss": nearest_to_loss(verdict) or None,
            "likely_causes": [cause.to_json() for cause in likely(verdict)],
            "story": describe_mismatch(first, verdict.oracle, verdict.dtype),
        }
    return values


def isolated_values(verdict: Verdict) -> dict[str, Any]:
    """Return what an isolated run found wrong in its last step, tensor by tensor.

    `compared` counts the tensors of that step, and `in_order` those of them that no side has
    wrong; `wrong` holds the others in the order of computation, each with what is wrong on
    which side.
    """
    wrong: dict[str, dict[str, Any]] = {}
    for mismatch in verdict.mismatches:
        name = mismatch.place.tensor
        found = wrong.setdefault(name, {"tensor": name, "rung": mismatch.rung, "pairs": []})
        a, b = mismatch.sides
        found["pairs"].append(
            {
                "a": a,
                "b": b,
                "index": list(mismatch.place.index),
                "values": mismatch.values,
                "allowed": mismatch.allowed,
                "elements": [mismatch.count, mismatch.size],
                "problem": mismatch.problem or None,
            }
        )
    return {
        "step": verdict.steps - 1,
        "compared": verdict.compared,
        "in_order": verdict.compared - len(wrong),
        "wrong": list(wrong.values()),
    }


def wrong_table(run: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of what an isolated run found wrong."""
    rows = []
    for each in run["isolated"]["wrong"]:
        for found in each["pairs"]:
            a, b = found["a"], found["b"]
            side = a if b == ONE_STEP else f"{a} | {b}"
            count, size = found["elements"]
            values = list(found["values"].values())
            difference = _number(abs(values[0] - values[1])) if values else "-"
            elements = f"{count:,} of {size:,}" if size else found["problem"]
            allowed = _number(found["allowed"]) if size else "-"
            rows.append([each["tensor"], each["rung"], side, elements, difference, allowed])
    return rows, ["wrong tensor", "rung", "side", "elements", "difference", "allowed"]


def in_order(run: dict[str, Any]) -> str:
    """Say of an isolated run how much else was compared in the step with what is wrong."""
    found = run["isolated"]
    return (
        f"Isolated, {run['dtype']}, step {found['step']}: {len(found['wrong'])} of "
        f"{found['compared']} tensors are wrong, each by itself; the other "
        f"{found['in_order']} are in order on all sides."
    )


def report_values(outcome: Outcome, preset: str, command: str) -> dict[str, Any]:
    """Return the whole report as plain values, as written to report.json.

    Where one run covers several precisions or replica counts, `dtype` and `replicas` are lists
    and `rungs` is that of the strictest precision; `runs` holds each precision's own, and
    `history` by precision what was seen at every step.
    """
    runs = [verdict_values(verdict) for verdict in outcome.verdicts]
    strictest = next((run for run in runs if run["verdict"] == "mismatch"), runs[0])
    replicas = sorted({side.replicas for side in outcome.sides.values()})
    return {
        "verdict": "match" if outcome.matches else "mismatch",
        "network": outcome.spec.network,
        "preset": preset,
        "dtype": _one_or_all([run["dtype"] for run in runs]),
        "replicas": _one_or_all(replicas),
        "steps": strictest["steps"],
        "sides": {label: side.to_json() for label, side in outcome.sides.items()},
        "versions": {"python": platform.python_version()} | outcome.versions,
        "rungs": strictest["rungs"],
        "throughput": throughput(outcome.trainings),
        "first_mismatch": strictest.get("first_mismatch"),
        "runs": runs,
        "history": {each.dtype: each.history.to_json() for each in outcome.verdicts},
        "trainings": outcome.trainings,
        "spec": outcome.spec.to_json(),
        "command": command,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def rung_table(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of rungs, a row per precision and rung."""
    if "pair" in values:
        return _rung_table_of_pair(values)
    rows = []
    sides = values["sides"]
    frameworks = list(dict.fromkeys(side["framework"] for side in sides.values()))
    for run in values["runs"]:
        for rung, found in run["rungs"].items():
            rows.append(
                [
                    run["dtype"],
                    rung,
                    _number(found["worst_absolute"]),
                    _number(found["worst_relative"]),
                    *(
                        _number(_worst(found, _from_oracle(sides, framework)))
                        for framework in frameworks
                    ),
                    *(_number(_worst(found, _within(sides, name))) for name in _WITHIN),
                    _number(_worst(found, lambda a, b: b == ONE_STEP)),
                    found["allowed"],
                    _share(found["used"]),
                    _where(found["where"]),
                ]
            )
    titles = [title_of(framework) for framework in frameworks]
    between = {0: "", 1: "", 2: "-".join(titles)}.get(len(titles), "frameworks")
    headers = [
        "precision",
        "rung",
        f"{between}\nabsolute".strip(),
        f"{between}\nrelative".strip(),
        *(f"{title}-\noracle" for title in titles),
        *_WITHIN.values(),
        "one step\nto oracle",
        "allowed",
        "used",
        f"where {between} is worst" if between else "where worst",
    ]
    _drop_blank_columns(rows, headers)
    return rows, headers


def _rung_table_of_pair(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the same for two sides that are not ours, and have no oracle."""
    rows = [
        [
            run["dtype"],
            rung,
            _number(found["worst_absolute"]),
            _number(found["worst_relative"]),
            found["allowed"],
            _share(found["used"]),
            _where(found["where"]),
        ]
        for run in values["runs"]
        for rung, found in run["rungs"].items()
    ]
    headers = ["precision", "rung", "absolute", "relative", "allowed", "used", "where worst"]
    return rows, headers


def headline(values: dict[str, Any]) -> str:
    """Return in a few words what was compared."""
    if "pair" in values:
        a, b = values["pair"]
        return f"{a} and {b}, {values['steps']} steps, {values['tensors']} tensors"
    return (
        f"{values['network']}, preset {values['preset']}, {values['steps']} steps, "
        f"replicas {_listed(values['replicas'])}"
    )


def notes(values: dict[str, Any]) -> list[str]:
    """Return how to read the table of rungs, and what else there is to say of this run."""
    lines = [
        "Distances are worst |a - b| over the tensor's largest magnitude; the first column is "
        "|a - b|.",
        "Judged is each element: |a - b| <= allowed * (|x| + largest |x| of the tensor); used: "
        "how much of that.",
    ]
    if "pair" in values:
        return [*lines, *_declarations(values["runs"][0]["bounds"])]
    isolated = any("isolated" in run for run in values["runs"])
    if isolated:
        lines.append(
            "Isolated: every layer of both sides read the oracle's inputs, got the oracle's "
            "gradient, and started each step from the oracle's weights; judged by the column "
            '"one step". What one step hands to the next is so not judged.'
        )
    else:
        lines.append(
            'Each step is judged by the column "one step", too: the oracle computes each rung '
            "from what the side itself recorded below it, and allowed is a multiple of what "
            "rounding alone does to that tensor of that step, measured on the oracle."
        )
    if not isolated and any(run["dtype"] == "float32" for run in values["runs"]):
        lines.append("float32 is judged by that alone.")
    for run in values["runs"]:
        if "amplified" in run:
            a, b = run["amplified"]["sides"]
            lines.append(
                f"{run['dtype']}: this training amplifies rounding so much that the free runs "
                f"of {a} and {b} exceed the bound first in {_where(run['amplified'])}, every "
                "rung being in order; from there on it is judged like float32."
            )
    for run in values["runs"]:
        lines += [f"{run['dtype']}: {tie['story']}" for tie in run.get("ties", [])]
    return lines


def _declarations(bounds: list[dict[str, Any]]) -> list[str]:
    """Tell who allowed the bounds of two sides that are not ours, and why: a line each."""
    told: dict[tuple[str, str], list[str]] = {}
    for bound in bounds:
        found = told.setdefault((bound["declared"], bound["reason"]), [])
        found.append(f"{bound['applies']} {bound['allowed']} ({bound['tensors']})")
    return [
        f"{'Not declared' if who == 'nobody' else f'Declared by {who}'}: "
        f"{', '.join(found)}: {reason.strip().rstrip('.')}."
        for (who, reason), found in told.items()
    ]


def report_text(values: dict[str, Any], *, story: bool = True) -> str:
    """Return the report for a terminal: one table, the speeds, the verdict.

    Args:
      story: whether to tell of the first mismatch.
    """
    lines = [headline(values), "", _tabulated(*rung_table(values)), "", *notes(values), ""]
    if values["trainings"]:
        lines += [_tabulated(*training_table(values)), ""]
    first = values["first_mismatch"]
    for run in values["runs"]:
        if first and "isolated" in run and run["isolated"]["wrong"]:
            lines += [_tabulated(*wrong_table(run)), "", in_order(run), ""]
    if first and story:
        lines += [mismatch_text(first), ""]
    lines.append(f"verdict: {values['verdict']}")
    return "\n".join(lines)


def mismatch_story(first: dict[str, Any]) -> str:
    """Return the whole story of the first mismatch but for its likely causes."""
    lines = [first["story"], f"  {first['blame']}"]
    if first.get("nearest_to_loss") not in (None, first["tensor"]):
        lines.append(
            "  the backward pass comes down from the loss: the first it gets wrong is "
            f"{first['nearest_to_loss']}"
        )
    return "\n".join(lines)


def mismatch_text(first: dict[str, Any]) -> str:
    """Return what a report says of the first mismatch, given as plain values."""
    return "\n".join([mismatch_story(first), *_causes(first["likely_causes"])])


def cause_lines(causes: list[dict[str, Any]]) -> list[str]:
    """Return a line for each topic of the likely causes, the likeliest first."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for cause in causes:
        topics.setdefault(cause["topic"], []).append(cause)
    lines = []
    for topic, mine in topics.items():
        shown = [f"{cause['cause']} ({cause['fault']})" for cause in mine[:_MOST_CAUSES]]
        if len(mine) > len(shown):
            others = ", ".join(cause["fault"] for cause in mine[len(shown) :])
            shown.append(f"or, just as well, {others}")
        lines.append(f"{topic}, {mine[0]['fit']:.0%}: {'; '.join(shown)}")
    return lines


def _causes(causes: list[dict[str, Any]]) -> list[str]:
    lines = [f"    {line}" for line in cause_lines(causes)]
    return ["  likely causes, by what planted faults look like:", *lines] if lines else []


def training_table(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of what each side does untraced."""
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
                _number(summary["test_perplexity"], "{:.3f}"),
                _number(best, "{:.3f}"),
                _number((summary.get("bleu") or {}).get("score"), "{:.1f}"),
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


def _tabulated(rows: list[list[str]], headers: list[str]) -> str:
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)


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


def _crosses(sides: Mapping[str, Side], a: str, b: str) -> bool:
    return b in sides and sides[a].framework != sides[b].framework


def throughput(trainings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return framework -> median and spread of real tokens/s, at its largest replica count."""
    found: dict[str, dict[str, Any]] = {}
    for summary in sorted(trainings.values(), key=lambda summary: summary["replicas"]):
        speed = summary["tokens_per_second"]
        if speed:
            found[summary["framework"]] = {
                "median": speed["median"],
                "spread": [speed["low"], speed["high"]],
                "replicas": summary["replicas"],
                "dtype": summary["dtype"],
            }
    return found


def _number(value: float | None, form: str = "{:.1e}") -> str:
    if value is None or math.isnan(value):
        return "-"
    return "0" if value == 0 else form.format(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _drop_blank_columns(rows: list[list[Any]], headers: list[str]) -> None:
    """Leave out columns in which no row has anything."""
    blank = [i for i in range(len(headers)) if all(row[i] == "-" for row in rows)]
    for i in reversed(blank):
        for row in [*rows, headers]:
            row.pop(i)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value < 10 else f"{value:.1e} times"


def _where(place: dict[str, Any] | None) -> str:
    if place is None:
        return "-"
    return f"{place['tensor']}[{','.join(map(str, place['index']))}] step {place['step']}"


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
