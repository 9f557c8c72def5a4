"""Formats predictions of steps as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from parity.report.frameworks import short_of
from parity.twins.scale.model import SOFTWARE, Link
from parity.twins.scale.quantities import link_text, megabytes, milliseconds

SCALINGS = {
    "weak": "each rank with the preset's batch",
    "strong": "the preset's batch shared by all ranks",
}
_SHOWN = 6  # numbers of ranks in a table of a terminal


def scale_text(values: Mapping[str, Any]) -> str:
    """Return the predictions as tables for a terminal."""
    lines = [
        f"{values['network']} {values['preset']}: {gradients_text(values['gradients'])}",
        "",
        _simple(*measured_table(values)),
    ]
    for side, by_link in values["predictions"].items():
        for link, found in by_link.items():
            for scaling, meaning in SCALINGS.items():
                title = f"{short_of(side)}, link {link} ({_link(values, link)}), {meaning}"
                lines += ["", title, "", _simple(*_speeds(found, scaling))]
                lines += fastest_lines(found["fastest"][scaling], values)
                lines.append(overlap_line(found, scaling))
    return "\n".join([*lines, "", *notes(values)])


def gradients_text(found: Mapping[str, float]) -> str:
    """Describe the size of the gradients in one line."""
    dense, sparse = found["dense"], found["sparse"]
    touched = sparse - (dense - found["embeddings"])
    return (
        f"gradients {megabytes(dense)}, of which embeddings {megabytes(found['embeddings'])}; "
        f"as touched rows {megabytes(touched)}, which makes {megabytes(sparse)} in all"
    )


def measured_table(values: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of what the predictions rest on."""
    rows = []
    for side, found in values["sides"].items():
        compute, engine, hidden = found["compute"], found["engine"], found["hidden"]
        software = [
            "not measured"
            if hidden.get(name) == []
            else _at_most(_software(name, engine[name]), name in hidden)
            for name in SOFTWARE
        ]
        rows.append(
            [
                short_of(side),
                milliseconds(compute["fixed"]),
                milliseconds(compute["per_row"]),
                "asked for" if engine["segment"] else "sent",
                *software,
            ]
        )
    headers = ["side", "fixed", "per row", "chunks are"]
    return rows, [*headers, "per all-reduce", "per message", "per byte"]


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines that say what the tables show, and where they stop being true."""
    settings = values["settings"]
    return [
        *_hidden_lines(values),
        f"hierarchical ring: {settings['per_host']} ranks a host; "
        f"servers: {settings['servers']}; "
        f"hybrid: {settings['stages']} stages; {settings['micro_batches']} micro-batches",
        "speed-up: rows per second as a multiple of one rank's with the preset's batch; -: not "
        "possible",
        "The model knows no stragglers, no shared switch, no congestion, and no ranks that "
        "share a machine's memory; see docs/scaling.md.",
    ]


def _hidden_lines(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each cost that could not be measured."""
    lines = []
    for side, found in values["sides"].items():
        for name, repetitions in found["hidden"].items():
            if not repetitions:
                lines.append(
                    f"{short_of(side)}: what the software takes was not measured, which needs "
                    "two cores, two rows and no --compute; the predictions leave it out."
                )
                break
            low, high = (_software(name, each(repetitions)) for each in (min, max))
            lines.append(
                f"{short_of(side)}: noise hides the time {name.replace('_', ' ')}: {low} to "
                f"{high} in {len(repetitions)} repetitions; the predictions take the most that "
                "it may be. Measure on a machine that does nothing else, or with more --steps."
            )
    return lines


def fastest_lines(
    found: Mapping[str, Sequence[Mapping[str, Any]]], values: Mapping[str, Any]
) -> list[str]:
    """Return a line for each kind of servers that says where they or the ring are faster."""
    return [
        f"faster of ring and {_name(other, values)}, by ranks: {_ranges(ranges, values)}"
        for other, ranges in found.items()
    ]


def _ranges(ranges: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
    parts = [
        f"{_name(each['strategy'], values)} "
        + (
            f"at {each['first']}"
            if each["first"] == each["last"]
            else f"from {each['first']} to {each['last']}"
        )
        for each in ranges[:6]
    ]
    if len(ranges) > len(parts):
        parts.append("…")
    return "; ".join(parts) or "-"


def overlap_line(found: Mapping[str, Any], scaling: str) -> str:
    """Return in a line what overlapping a ring with the backward pass would gain at best."""
    curve = found[scaling]["ring"]
    gains = [
        f"{seconds / best:.2f} at {ranks}"
        for ranks, seconds, best in zip(
            found["ranks"], curve["seconds"], curve["overlapped"], strict=True
        )
        if seconds is not None and ranks in _some(found["ranks"])
    ]
    return (
        f"overlap of the ring with the backward pass, at best: {', '.join(gains)} times as fast"
    )


def _speeds(found: Mapping[str, Any], scaling: str) -> tuple[list[list[str]], list[str]]:
    shown = _some(found["ranks"])
    rows = []
    for strategy, curve in found[scaling].items():
        cells = [
            "-" if seconds is None else f"{milliseconds(seconds)}, {speed_up:.3g}x"
            for ranks, seconds, speed_up in zip(
                found["ranks"], curve["seconds"], curve["speed_up"], strict=True
            )
            if ranks in shown
        ]
        rows.append([strategy, *cells])
    return rows, ["step, speed-up", *map(str, shown)]


def _software(name: str, seconds: float) -> str:
    return f"{seconds * 1e9:.3g} ns" if name == "per_byte" else milliseconds(seconds)


def _at_most(text: str, hidden: bool) -> str:
    return f"at most {text}" if hidden else text


def _some(ranks: Sequence[int]) -> list[int]:
    """Return the numbers of ranks that a terminal has room for, the last among them."""
    every = max(1, -(-(len(ranks) - 1) // (_SHOWN - 1)))
    return [count for i, count in enumerate(ranks) if (len(ranks) - 1 - i) % every == 0]


def _name(strategy: str, values: Mapping[str, Any]) -> str:
    names = {"servers": f"{values['settings']['servers']} servers"}
    return names.get(strategy, strategy)


def _link(values: Mapping[str, Any], name: str) -> str:
    return link_text(Link(**values["links"][name]))


def _simple(rows: list[list[str]], headers: list[str]) -> str:
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
