"""Formats predictions of steps as tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parity.report.frameworks import short_of
from parity.report.table import Column, Table, table_of, wrapped
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
        measured_table(values).text(),
    ]
    for side, by_link in values["predictions"].items():
        for link, found in by_link.items():
            for scaling, meaning in SCALINGS.items():
                title = f"{short_of(side)}, link {link} ({_link(values, link)}), {meaning}"
                lines += ["", title, "", _speeds(found, scaling).text()]
                lines += fastest_lines(found["fastest"][scaling], values)
                lines.append(overlap_line(found, scaling))
    return wrapped("\n".join([*lines, "", *notes(values)]), "  ")


def gradients_text(found: Mapping[str, float]) -> str:
    """Describe the size of the gradients in one line."""
    dense, sparse = found["dense"], found["sparse"]
    touched = sparse - (dense - found["embeddings"])
    return (
        f"gradients {megabytes(dense)}, of which embeddings {megabytes(found['embeddings'])}; "
        f"as touched rows {megabytes(touched)}, which makes {megabytes(sparse)} in all"
    )


def measured_table(values: Mapping[str, Any]) -> Table:
    """Return the table of what the predictions rest on."""

    def software(name: str) -> Callable[[Any], str]:
        def shown(row: Any) -> str:
            engine, hidden = row[1]["engine"], row[1]["hidden"]
            if hidden.get(name) == []:
                return "not measured"
            return "at most " * (name in hidden) + _software(name, engine[name])

        return shown

    columns = [
        Column("side", "", lambda row: short_of(row[0])),
        Column("fixed", "", lambda row: milliseconds(row[1]["compute"]["fixed"])),
        Column("per row", "", lambda row: milliseconds(row[1]["compute"]["per_row"])),
        Column(
            "chunks are",
            "",
            lambda row: "asked for" if row[1]["engine"]["segment"] else "sent",
        ),
        *(
            Column(header, "", software(name))
            for header, name in zip(
                ("per all-reduce", "per message", "per byte"), SOFTWARE, strict=True
            )
        ),
    ]
    return table_of(columns, values["sides"].items())


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


def _speeds(found: Mapping[str, Any], scaling: str) -> Table:
    shown = _some(found["ranks"])
    rows = []
    for strategy, curve in found[scaling].items():
        cells = [
            None if seconds is None else f"{milliseconds(seconds)}, {speed_up:.3g}x"
            for ranks, seconds, speed_up in zip(
                found["ranks"], curve["seconds"], curve["speed_up"], strict=True
            )
            if ranks in shown
        ]
        rows.append([strategy, *cells])
    return Table(["step, speed-up", *map(str, shown)], rows)


def _software(name: str, seconds: float) -> str:
    return f"{seconds * 1e9:.3g} ns" if name == "per_byte" else milliseconds(seconds)


def _some(ranks: Sequence[int]) -> list[int]:
    """Return the numbers of ranks that a terminal has room for, the last among them."""
    every = max(1, -(-(len(ranks) - 1) // (_SHOWN - 1)))
    return [count for i, count in enumerate(ranks) if (len(ranks) - 1 - i) % every == 0]


def _name(strategy: str, values: Mapping[str, Any]) -> str:
    names = {"servers": f"{values['settings']['servers']} servers"}
    return names.get(strategy, strategy)


def _link(values: Mapping[str, Any], name: str) -> str:
    return link_text(Link(**values["links"][name]))
