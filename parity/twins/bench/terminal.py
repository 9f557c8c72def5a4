"""Formats the measurements of a benchmark as tables for a terminal."""

import textwrap
from typing import Any

from tabulate import tabulate

from parity.twins.bench.history import history_lines
from parity.twins.bench.layouts import layout_lines
from parity.twins.bench.strategy_table import table_columns, table_rows
from parity.twins.training.meter import WARM_UP

# The headers of the table of strategies that are broken into two lines.
_BROKEN = {"replicas x threads": "replicas\nx threads", "tokens/s": "tokens/s\nmedian"}


def rates_text(rates: dict[str, float]) -> str:
    """Return the rates of large matrix products in words, given in FLOP/s by library."""
    return ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in rates.items())


def bench_text(values: dict[str, Any]) -> str:
    """Return the measurements as tables for a terminal."""
    lines = [*_what_was_timed(values), ""]
    lines += _strategy_lines(values) if values["strategies"] else _speed_lines(values)
    if values["against"]:
        lines += ["", *_peer_lines(values)]
    lines += [textwrap.fill(line, 96) for line in layout_lines(values["layouts"])]
    if values["padding"]:
        lines.append(
            f"padding: {values['padding']['source']:.1%} of the source positions and "
            f"{values['padding']['target']:.1%} of the target positions; tokens/s counts real "
            "target tokens only"
        )
    lines += [textwrap.fill(line, 96) for line in history_lines(values["history"])]
    return "\n".join(lines)


def _what_was_timed(values: dict[str, Any]) -> list[str]:
    checked = values["checked_steps"]
    return [
        f"{sizes_text(values['spec'])}; {values['processor']}, {values['cores']} cores; "
        f"{values['rounds']} rounds of {values['steps']} steps",
        f"checked: {checked} steps of every configuration of both sides match the oracle"
        if checked
        else "not compared with the oracle",
    ]


def _strategy_lines(values: dict[str, Any]) -> list[str]:
    """Return the table of strategies, and what its columns mean."""
    columns = table_columns(values)
    headers = [_BROKEN.get(name, name) for name in columns]
    rows = [["-" if cell is None else cell for cell in row] for row in table_rows(values)]
    lines = [tabulate(rows, headers, tablefmt="simple", disable_numparse=True), ""]
    lines += [
        textwrap.fill(f"{name}: {meaning}", 96, subsequent_indent="  ", break_on_hyphens=False)
        for name, meaning in columns.items()
    ]
    lines += [f"{peer} is not timed: {why}" for peer, why in values["peers_left_out"].items()]
    if values["losses_apart"]:
        lines.append(_losses_line(values))
    return lines


def _losses_line(values: dict[str, Any]) -> str:
    difference = max(values["losses_apart"].values())
    return (
        f"in the first {WARM_UP} steps the peers' losses differ from the sides' by at most "
        f"{difference:.1g} of them"
    )


def _speed_lines(values: dict[str, Any]) -> list[str]:
    """Return the table of all measurements, and what its columns mean."""
    rows = []
    for label, speed in values["throughput"].items():
        case = values["cases"][label]
        low, high = speed["spread"]
        gain = values["scaling"].get(case["title"], {}).get(str(case["replicas"]))
        memory = sum(values["peak_memory"][label]) / 1e6
        rows.append(
            [
                case["title"],
                case["layout"],
                f"{speed['median']:,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                _ratio(gain if case["threads"] == values["threads"] else None),
                f"{values['share_of_limit'][label]:.0%}",
                f"{values['share_of_step_products'][label]:.0%}",
                f"{values['waiting_share'][label]:.1%}",
                f"{values['seconds_to_first_step'][label]:.1f}",
                f"{memory:,.0f}",
            ]
        )
    headers = [
        "side",
        "replicas\nx threads",
        "tokens/s\nmedian",
        "spread",
        "gain",
        "share\nof limit",
        "share of\nproducts",
        "waiting\nfor data",
        "seconds to\nfirst step",
        "peak\nMB",
    ]
    return [
        tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
        "",
        "gain: speed divided by the speed with the first number of replicas in the same round; "
        "median over the rounds",
        "limit: the speed if a step were only its matrix products, at "
        f"{values['product_limit'] / 1e9:,.0f} GFLOP/s, the highest rate seen for large ones "
        f"({rates_text(values['product_rates'])})",
        "products: those of a step's own shapes, each as fast as any library takes it on all "
        f"cores at once: {values['step_product_rate'] / 1e9:,.0f} GFLOP/s",
    ]


def _peer_lines(values: dict[str, Any]) -> list[str]:
    """Return the table of each side's speed relative to the peers."""
    ratios_by_side = values["against"]
    peers = list(next(iter(ratios_by_side.values())))

    def heading(label: str) -> str:
        case = values["cases"].get(label)
        return f"{case['title']}\n{case['layout']}" if case else "best\npeer"

    rows = [
        [heading(side).replace("\n", " "), *(_ratio(ratios[peer]) for peer in peers)]
        for side, ratios in ratios_by_side.items()
    ]
    headers = ["times as fast as", *map(heading, peers)]
    return [
        tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
        "",
        "ratio: speed divided by the peer's speed in the same round; median over the rounds",
        _losses_line(values),
    ]


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


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
