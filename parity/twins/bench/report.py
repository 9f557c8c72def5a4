"""A benchmark as a page that opens offline and as text, of the values of bench.json alone."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from parity.report.page import ORACLE_COLOUR, Figure, colour, render
from parity.report.svg import SIZE, Line, axis_of, framed
from parity.report.table import Table, wrapped
from parity.twins.bench.history import history_lines
from parity.twins.bench.tables import peer_table, speed_table, strategy_table
from parity.twins.training.meter import WARM_UP

# Values of bench.json that the page shows as they are.
_SHOWN = ("checked_steps", "noise", "cores", "rounds", "steps", "command", "versions")


def bench_html(values: Mapping[str, Any], sizes: str) -> str:
    """Return a page that shows a benchmark.

    Args:
      values: what `parity.twins.bench.timing.bench` returns.
      sizes: what was timed, in a line.
    """
    speeds = _speeds(values)
    return render(
        "bench.html.jinja",
        title=f"Throughput: {sizes}",
        sizes=sizes,
        speeds=speeds,
        against=peer_table(values),
        strategies=strategy_table(values) if values["strategies"] else None,
        left_out=values["peers_left_out"],
        history=history_lines(values["history"]),
        machine=f"{values['processor']}, {values['machine']}",
        measured=speed_table(values),
        **{name: values[name] for name in _SHOWN},
    )


def _speeds(values: Mapping[str, Any]) -> Figure:
    cases, speeds = values["cases"], values["throughput"]
    layouts = list(dict.fromkeys(case["layout"] for case in cases.values()))
    names = list(dict.fromkeys(case["title"] for case in cases.values()))
    lines = [Line(name, (), colour(name, place), "", 8) for place, name in enumerate(names)]
    rows = sorted(
        (
            names.index(case["title"]),
            layouts.index(case["layout"]),
            speed["median"],
            *speed["spread"],
        )
        for label, case in cases.items()
        if (speed := speeds.get(label))
    )
    up = axis_of([0.0, *(fastest for *_, fastest in rows)])
    room, bars = SIZE // len(layouts), Markup("")  # for the bars of a layout
    width = room * 4 // 5 // len(names)
    for place, layout, *ends in rows:
        x = layout * room + room // 10 + place * width
        median, slowest, fastest = (SIZE - up.place(each) for each in ends)
        bars += Markup(
            '<path class="area" d="M{} {}V{}h{}V{}" fill="{}"><title>{}</title></path>'
            '<path d="M{} {}V{}" stroke="{}"/>'
        ).format(
            *(x, SIZE - up.place(0), median, width * 9 // 10, SIZE - up.place(0)),
            *(lines[place].colour, "{:,.0f}, {:,.0f} to {:,.0f}".format(*ends)),
            *(x + width * 9 // 20, slowest, fastest, ORACLE_COLOUR),
        )
    across = [((i + 0.5) * 100 / len(layouts), layout) for i, layout in enumerate(layouts)]
    of = "replicas x threads"
    drawing = framed(bars, across, up.ticks(), "real tokens per second", lines, of)
    table = [(names[place], layouts[layout], *ends) for place, layout, *ends in rows]
    headers = ["name", of, "median", "slowest", "fastest"]
    return Figure("speeds", drawing, Table(headers, table))


def bench_text(values: dict[str, Any]) -> str:
    """Return the measurements as tables for a terminal."""
    lines = [*_what_was_timed(values), ""]
    table = strategy_table(values) if values["strategies"] else speed_table(values)
    lines += [table.text(), "", *table.legend()]
    lines += [f"{peer} is not timed: {why}" for peer, why in values["peers_left_out"].items()]
    if against := peer_table(values):
        meaning = "ratio: speed divided by the peer's in the same round; median over the rounds"
        lines += ["", against.text(), "", meaning]
    if values["losses_apart"]:
        lines.append(_losses_line(values))
    if values["padding"]:
        lines.append(
            f"padding: {values['padding']['source']:.1%} of the source positions and "
            f"{values['padding']['target']:.1%} of the target positions; tokens/s counts real "
            "target tokens only"
        )
    lines += history_lines(values["history"])
    return wrapped("\n".join(lines), "  ")


def _what_was_timed(values: dict[str, Any]) -> list[str]:
    checked = values["checked_steps"]
    return [
        f"{sizes_text(values['spec'])}; {values['processor']}, {values['cores']} cores; "
        f"{values['rounds']} rounds of {values['steps']} steps",
        f"checked: {checked} steps of every configuration of both sides match the oracle, and "
        "have the same losses where they are timed; speeds are measured, not judged"
        if checked
        else "not compared with the oracle",
        values["noise"],
    ]


def _losses_line(values: dict[str, Any]) -> str:
    difference = max(values["losses_apart"].values())
    return (
        f"in the first {WARM_UP} steps the peers' losses differ from the sides' by at most "
        f"{difference:.1g} of them"
    )


def sizes_text(spec: dict[str, Any]) -> str:
    """Return the network and the sizes that were timed, in one line."""
    model, training = spec["model"], spec["training"]
    words = [f"{spec['network']}: hidden {model['hidden_size']}"]
    if "cell" in model:
        words.append(model["cell"])
    if "attention" in model:
        feeding = " with input feeding" if model["input_feeding"] else ""
        words.append(f"{model['attention']} attention{feeding}")
    if "time" in spec["text"]:
        words.append(f"time {spec['text']['time']}")
    sizes = [f"{size:,}" for name, size in model.items() if name.endswith("vocabulary_size")]
    words.append(f"vocabular{'y' if len(sizes) == 1 else 'ies'} {' and '.join(sizes)}")
    words += [f"batch {training['batch_size']}", f"{model['num_layers']} layers"]
    return ", ".join([*words, training["dtype"]])
