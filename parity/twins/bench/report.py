"""A benchmark as a page that opens offline and as text, of the values of bench.json alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from parity.report.page import ORACLE_COLOUR, Figure, colour, empty_figure, render
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
        [speeds],
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
    drawing = empty_figure("real tokens per second")
    cases = values["cases"]
    layouts = list(dict.fromkeys(case["layout"] for case in cases.values()))
    rows = []
    for place, name in enumerate(dict.fromkeys(case["title"] for case in cases.values())):
        mine = {case["layout"]: label for label, case in cases.items() if case["title"] == name}
        speeds = [values["throughput"].get(mine.get(layout)) for layout in layouts]
        drawing.add_bar(
            x=layouts,
            name=name,
            marker={"color": colour(name, place)},
            hovertemplate="%{y:,.0f}, %{customdata[0]:,.0f} to %{customdata[1]:,.0f}",
            **_bars(
                [speed and speed["median"] for speed in speeds],
                [speed["spread"] if speed else (None, None) for speed in speeds],
            ),
        )
        rows += [
            (name, layout, speed["median"], *speed["spread"])
            for layout, speed in zip(layouts, speeds, strict=True)
            if speed
        ]
    drawing.update_layout(barmode="group")
    drawing.update_yaxes(rangemode="tozero")
    headers = ["name", "replicas x threads", "median", "slowest", "fastest"]
    return Figure("speeds", drawing, Table(headers, rows))


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
        "have the same losses where they are timed"
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


def _bars(
    medians: Sequence[float | None], spreads: Sequence[tuple[float | None, float | None]]
) -> dict[str, Any]:
    """Return plotly's arguments for bars with whiskers; None leaves a bar out.

    Args:
      medians: the heights of the bars.
      spreads: the ends of each bar's whisker, lower one first.
    """
    known = list(zip(medians, spreads, strict=True))
    return {
        "y": list(medians),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_less(high, median) for median, (_, high) in known],
            "arrayminus": [_less(median, low) for median, (low, _) in known],
            "color": ORACLE_COLOUR,
        },
        "customdata": [list(spread) for spread in spreads],
    }


def _less(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other
