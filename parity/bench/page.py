"""A benchmark as a page that opens offline, made of the values of bench.json alone."""

from collections.abc import Mapping
from html import escape
from typing import Any

from parity.report.page import ORACLE_COLOUR, Page, colour, empty_figure, table


def bench_html(values: Mapping[str, Any], sizes: str) -> str:
    """Return a page that shows a benchmark.

    Args:
      values: of `parity.bench.bench.bench`.
      sizes: what was timed, in a line.
    """
    page, checked = Page(), values["checked_steps"]
    told = "not checked against the oracle"
    if checked:
        told = f"{checked} steps of each side's configurations match the oracle"
    body = [
        f"<header class='{'match' if checked else 'unchecked'}'><h1>Throughput</h1>",
        f"<p>{escape(sizes)}; {values['cores']} cores; {values['rounds']} rounds of "
        f"{values['steps']} steps; {told}.</p></header>",
        "<section><h2>Real tokens per second</h2>",
        _speeds(page, values),
        "</section>",
    ]
    if values["against"]:
        body += ["<section><h2>Beside the peers</h2>", _against(values), "</section>"]
    body += ["<section><h2>All that was measured</h2>", _measured(values), "</section>"]
    body += [_environment(values)]
    return page.whole(f"Throughput: {sizes}", body)


def _speeds(page: Page, values: Mapping[str, Any]) -> str:
    figure = empty_figure("real tokens per second")
    cases = values["cases"]
    layouts = list(dict.fromkeys(_layout(case) for case in cases.values()))
    rows = []
    for place, name in enumerate(dict.fromkeys(case["name"] for case in cases.values())):
        mine = {_layout(case): label for label, case in cases.items() if case["name"] == name}
        speeds = [
            values["throughput"][mine[layout]] if layout in mine else None for layout in layouts
        ]
        known = [speed or {"median": None, "spread": [None, None]} for speed in speeds]
        figure.add_bar(
            x=layouts,
            y=[speed["median"] for speed in known],
            name=name,
            marker={"color": colour(name, place)},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [speed and speed["spread"][1] - speed["median"] for speed in speeds],
                "arrayminus": [
                    speed and speed["median"] - speed["spread"][0] for speed in speeds
                ],
                "color": ORACLE_COLOUR,
            },
            customdata=[speed["spread"] for speed in known],
            hovertemplate="%{y:,.0f}, %{customdata[0]:,.0f} to %{customdata[1]:,.0f}",
        )
        rows += [
            (name, layout, speed["median"], *speed["spread"])
            for layout, speed in zip(layouts, speeds, strict=True)
            if speed
        ]
    figure.update_layout(barmode="group")
    figure.update_yaxes(rangemode="tozero")
    return page.figure(
        "speeds",
        "Real tokens per second, by replicas x threads of each",
        "Median of runs taken in turn, each alone on the machine; the whiskers reach from the "
        "slowest run to the fastest.",
        figure,
        table(["name", "replicas x threads", "median", "low", "high"], rows),
        "speeds as a table",
    )


def _against(values: Mapping[str, Any]) -> str:
    peers = list(next(iter(values["against"].values())))
    rows = [
        (side, *(f"{ratios[peer]:.2f}" for peer in peers))
        for side, ratios in values["against"].items()
    ]
    return (
        "<p>How many times as fast as each: the median over rounds of the ratio of two runs of "
        "the same round; best is the fastest of the peers.</p>"
        f"<div id='against'>{table(['times as fast as', *peers], rows)}</div>"
    )


def _measured(values: Mapping[str, Any]) -> str:
    rows = []
    for label, case in values["cases"].items():
        gain = values["scaling"].get(case["name"], {}).get(str(case["replicas"]))
        if case["threads"] != values["threads"]:
            gain = None
        rows.append(
            (
                case["name"],
                _layout(case),
                f"{values['throughput'][label]['median']:,.0f}",
                None if gain is None else f"{gain:.2f}",
                f"{values['share_of_limit'][label]:.0%}",
                f"{values['waiting_share'][label]:.1%}",
                f"{values['seconds_to_first_step'][label]:.1f}",
                f"{sum(values['peak_memory'][label]) / 1e6:,.0f}",
            )
        )
    headers = ["name", "replicas x threads", "tokens/s", "gain", "of the limit"]
    headers += ["waiting for data", "seconds to first step", "peak MB"]
    limit = values["product_limit"] / 1e9
    return (
        f"<div id='measured'>{table(headers, rows)}</div>"
        "<p>Gain: over the first replica count, round by round. Limit: matrix products alone, "
        f"at {limit:,.0f} GFLOP/s, the best rate seen of large ones on all cores. Peak: of all "
        "processes of a run.</p>"
    )


def _environment(values: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    return (
        "<section id='environment'><h2>Environment</h2>"
        f"<dl><dt>command</dt><dd><code id='command'>{escape(values['command'])}</code></dd>"
        f"<dt>machine</dt><dd>{escape(values['machine'])}</dd>"
        f"<dt>versions</dt><dd>{escape(versions)}</dd></dl></section>"
    )


def _layout(case: Mapping[str, Any]) -> str:
    return f"{case['replicas']} x {case['threads']}"
