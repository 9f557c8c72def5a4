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
                lines.append(_overlap_line(found, scaling))
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
            if "network, two ranks" not in row[1]["readings"]:
                return "not measured"
            seconds = row[1]["engine"][name]
            return f"{seconds * 1e9:.3g} ns" if name == "per_byte" else milliseconds(seconds)

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
        f"hierarchical ring: {settings['per_host']} ranks a host; "
        f"servers: {settings['servers']}",
        "speed-up: rows per second as a multiple of one rank's with the preset's batch; -: not "
        "possible",
        "The model knows no stragglers, no shared switch, no congestion, and no ranks that "
        "share a machine's memory; see docs/scaling.md.",
    ]


def _overlap_line(found: Mapping[str, Any], scaling: str) -> str:
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


def _some(ranks: Sequence[int]) -> list[int]:
    """Return the numbers of ranks that a terminal has room for, the last among them."""
    every = max(1, -(-(len(ranks) - 1) // (_SHOWN - 1)))
    return [count for i, count in enumerate(ranks) if (len(ranks) - 1 - i) % every == 0]


def _link(values: Mapping[str, Any], name: str) -> str:
    return link_text(Link(**values["links"][name]))
