"""Formats the measurements of a benchmark as tables for a terminal."""

from typing import Any

from parity.report.table import wrapped
from parity.twins.bench.history import history_lines
from parity.twins.bench.speed_table import peer_table, speed_table
from parity.twins.bench.strategy_table import strategy_table
from parity.twins.training.meter import WARM_UP


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
        f"checked: {checked} steps of every configuration of both sides match the oracle"
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
