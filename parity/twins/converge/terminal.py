"""Formats a comparison of whole trainings as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from parity.report.frameworks import short_of
from parity.twins.spec.strategies import StrategySettings

_PEERS = {"pytorch": "PyTorch"}
_HUGE = 1e9  # as of a training that diverges; it is written with an exponent


def side_title(side: str) -> str:
    """Return the name of a side or a peer as people write it, such as "TF asynchronous"."""
    framework, *strategy = side.split()
    return " ".join([_PEERS.get(framework) or short_of(framework), *strategy])


def converge_text(values: Mapping[str, Any]) -> str:
    """Return the comparison as tables for a terminal, the verdict last."""
    rows, headers = results_table(values)
    tests, columns = tests_table(values)
    lines = [
        summary_line(values),
        "",
        tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
        "",
        tabulate(tests, columns, tablefmt="simple", disable_numparse=True),
        "",
        test_note(values),
    ]
    published = published_line(values)
    if published:
        lines.append(published)
    reused = sum(s["reused"] for runs in values["runs"].values() for s in runs.values())
    if reused:
        lines.append(f"{reused} trainings were already in --out, of the same text and code")
    return "\n".join([*lines, f"verdict: {verdict_text(values)}"])


def verdict_text(values: Mapping[str, Any]) -> str:
    """Return the verdict in words."""
    return values["verdict"] or "none, for no two sides are meant to train in the same way"


def summary_line(values: Mapping[str, Any]) -> str:
    """Return in a line what was trained."""
    seeds = list(next(iter(values["runs"].values())))
    training = values["spec"]["training"]
    text = values["data"] or "the built-in text"
    line = (
        f"{values['network']} {values['preset']} on {text}: {training['epochs']} epochs, "
        f"{values['steps']:,} steps, {training['dtype']}, seeds {seeds[0]} to {seeds[-1]}"
    )
    settings = StrategySettings(**values["settings"]).text
    return f"{line}; {settings}" if settings else line


def results_table(values: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of results, a row per quantity and side."""
    seeds = list(next(iter(values["runs"].values())))
    rows = []
    for name, each in values["quantities"].items():
        for side, found in each["sides"].items():
            form = each["form"]
            numbers = [found["mean"], found["deviation"], *found["values"]]
            shown = [form.format(n) if abs(n) < _HUGE else f"{n:.3g}" for n in numbers]
            rows.append([name, side_title(side), *shown])
    return rows, ["result", "side", "mean", "deviation", *(f"seed {seed}" for seed in seeds)]


def tests_table(values: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of tests, a row per quantity and pair."""
    rows = []
    for name, each in values["quantities"].items():
        for pair in each["pairs"]:
            form = "{:+.2%}" if each["relative"] else "{:+.3f}"
            low, high = form.format(pair["low"]), form.format(pair["high"])
            margin = f"{each['margin']:.2%}" if each["relative"] else f"{each['margin']:g}"
            rows.append(
                [
                    name,
                    f"{side_title(pair['a'])} - {side_title(pair['b'])}",
                    form.format(pair["difference"]),
                    f"{low} to {high}",
                    f"± {margin}",
                    f"{pair['p']:.1e}" if pair["p"] < 0.001 else f"{pair['p']:.3f}",
                    _judgement(pair),
                    _seeds_needed(pair),
                ]
            )
    columns = ["difference of", "sides", "mean", "90 % interval", "margin", "p", "", "seeds"]
    return rows, columns


def _judgement(pair: Mapping[str, Any]) -> str:
    if not pair["same_training"]:
        return "another training"
    return "equivalent" if pair["shown"] else "not shown"


def _seeds_needed(pair: Mapping[str, Any]) -> str:
    return (
        f"{pair['seeds_needed']:,}" if pair["same_training"] and pair["seeds_needed"] else "-"
    )


def test_note(values: Mapping[str, Any]) -> str:
    """Return how the table of tests is to be read."""
    return (
        "equivalent: two one-sided t tests, paired by seed, exclude a difference of the margin "
        f"at level {values['level']:g}; not shown: they do not; another training: the sides "
        "are not meant to train in the same way, and the verdict leaves them out.\n"
        "seeds: as many, with a spread like this, show it with a probability of "
        f"{values['power']:.0%} for sides that do not differ"
    )


def published_line(values: Mapping[str, Any]) -> str | None:
    """Return how the published result compares; None where the preset has none."""
    found = values["published"]
    if found is None:
        return None
    line = (
        f"published: test perplexity {found['test_perplexity']:g} on {found['corpus']} "
        f"({found['source']})"
    )
    if found["not_comparable"]:
        return f"{line}; not comparable: {found['not_comparable']}"
    apart = ", ".join(
        f"{side_title(side)} {ratio - 1:+.1%}" for side, ratio in found["ratio"].items()
    )
    return f"{line}; ours: {apart}"
