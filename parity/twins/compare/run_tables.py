"""What the report of a run says beside that of a pair: how each side trains, and its oracle."""

from collections.abc import Callable, Mapping
from typing import Any

from parity.base.text import decimal
from parity.compare.tensors import ONE_STEP, ORACLE
from parity.report.frameworks import short_of
from parity.report.table import Column, Table, table_of
from parity.report.terminal import USED
from parity.report.verdict_tables import Rung, each_rung, number, where
from parity.trace.rungs import WITNESS
from parity.twins.compare.whole_runs import REPEATED_STEPS

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

_STALENESS = (
    "In an asynchronous run each step is one update by one replica, and its staleness is the "
    "number of other updates that were applied after the replica had read the weights. The "
    "oracle computes each gradient from the weights that were read, and each update from the "
    "weights just before it."
)


# What the sides and the oracle share, and the tests that stand for it.
WITNESSES = (
    "text",
    "masks",
    "schedule",
    "initial_values",
    "search",
    "scores",
    "pytorch",
)
UNSEEN = (
    "The oracle does not see a mistake that it shares with the sides: batches, targets and "
    "<eos>, when the state is reset, dropout's masks and scale, the schedule of the learning "
    "rate, initial values, the length penalty. Tests stand for these: tests/test_witness_*.py, "
    f"of {', '.join(WITNESSES)}; docs/witnesses.md says how."
)
_ADDS = "--witness pytorch trains the same steps in PyTorch as well, which does not share most."
_ADDED = (
    "On the rung witness, PyTorch trained the same steps, and shares of these only initial "
    "values, the order of an epoch and which units are dropped."
)


def tables(values: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables that a run has beside those of a pair."""
    return {"trainings": training_table(values), "stale": staleness_table(values)}


def columns_of_sides(sides: Mapping[str, Any]) -> list[Column]:
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
    """Return the table of what each side did where it trained without a trace."""

    def of_speed(shown: Callable[[dict[str, Any]], str]) -> Callable[[Any], str | None]:
        return lambda row: shown(row[1]) if row[1]["tokens_per_second"] else None

    columns = [
        Column(
            "untraced training",
            "A side, trained without a trace. Its speed is told if nothing else ran beside it.",
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


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return how to read the table of rungs of a run, and what is special about it."""
    lines = [
        'The column "one step" is judged as well. There the oracle computes forward, loss '
        "and gradient from the weights that the side had before the step, so that one "
        "wrong layer shows in all three; and clipping, optimizer and weight each from what "
        "the side itself computed just before. A tensor may differ by the rounding bound "
        "times its rounding error, which is measured on the oracle."
    ]
    lines += [_steps_unmeasured(r) for r in values["runs"] if "rounding_not_measured" in r]
    if any(run["dtype"] == "float32" for run in values["runs"]):
        lines.append(
            "In float32 the distances between the sides, and any from the oracle's own "
            'training, are reported and not judged; "one step" is, and what must be exact.'
        )
    lines.append(USED)
    if any("staleness" in run for run in values["runs"]):
        lines.append(_STALENESS)
    for run in values["runs"]:
        if "amplified" in run:
            a, b = run["amplified"]["sides"]
            lines.append(
                f"{run['dtype']}: this training amplifies rounding so much that {a} and {b} "
                f"first exceed the bound in {where(run['amplified'])}, although every rung of "
                "every step is right; from there on it is judged like float32."
            )
    for run in values["runs"]:
        lines += [f"{run['dtype']}: {tie['story']}" for tie in run.get("ties", [])]
        known = run.get("known_differences", [])
        lines += [f"{run['dtype']}: {each['story']}." for each in known]
    if any(
        "repeat" in run["rungs"] and run["steps"] > REPEATED_STEPS for run in values["runs"]
    ):
        lines.append(f"On the rung repeat, the first {REPEATED_STEPS} steps were run again.")
    lines += _unchecked(values["runs"])
    if values["trainings"]:
        lines.append(
            "Untraced trainings: where untraced, answers and counting were checked, they judge "
            "losses, the later ones by what rounding alone does to them, perplexities, BLEU, "
            "exact answers, checkpoints and the tokens that speeds rest on; losses beyond step "
            "60, but for two at the end, and seconds are reported, not judged."
        )
    witnessed = any(WITNESS in run["rungs"] for run in values["runs"])
    return [*lines, f"{UNSEEN} {_ADDED if witnessed else _ADDS}"]


def _steps_unmeasured(run: dict[str, Any]) -> str:
    """Say in how many steps rounding was not measured, and what their shares mean."""
    return (
        f"{run['dtype']}: in {len(run['rounding_not_measured'])} of {run['steps']} steps "
        "rounding was not measured: no difference would exceed its bound even if rounding "
        "were 2.5 (forward), 6 (attention) or 4 times (loss, gradient) smaller than in the "
        "steps before. "
        "Their shares are those of the bounds measured before."
    )


def _unchecked(runs: list[dict[str, Any]]) -> list[str]:
    """Return a line for each reason for which rungs of whole runs were not checked."""
    reached = {rung for run in runs for rung in run["rungs"]}
    checks: dict[str, dict[str, None]] = {}
    for run in runs:
        for check, reason in run.get("unchecked", {}).items():
            if check not in reached:
                checks.setdefault(reason, {})[check] = None
    return [f"Not checked: {', '.join(names)}: {reason}." for reason, names in checks.items()]


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


def frameworks_compared(values: Mapping[str, Any]) -> str:
    """Return what names the comparison of frameworks; empty if no two were compared."""
    framework = {label: side["framework"] for label, side in values["sides"].items()}
    compared = any(
        framework[pair["a"]] != framework.get(pair["b"], framework[pair["a"]])
        for _, _, found in each_rung(values)
        for pair in found["pairs"]
        if pair["a"] in framework
    )  # not so of asynchronous sides that run freely
    titles = list(dict.fromkeys(map(short_of, framework.values())))
    return ("-".join(titles) if len(titles) == 2 else "frameworks") if compared else ""


def _perplexity(value: float | None) -> str | None:
    return None if value is None else decimal(value, 3)
