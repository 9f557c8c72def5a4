"""A verdict as a page: one file that opens offline, made of the values of report.json alone."""

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from parity.report.page import COLOURS, ORACLE_COLOUR, Page, colour, empty_figure, label, table
from parity.report.values import (
    cause_lines,
    headline,
    in_order,
    mismatch_story,
    notes,
    rung_table,
    training_table,
    wrong_table,
)

_DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot")
_SMALLEST = 0.1  # units in the last place; what is less is drawn there
_ROW_HEIGHT = 15  # of the heat map, in pixels


def report_html(values: dict[str, Any]) -> str:
    """Return a page that shows a report, with its figures and all that draws them.

    Args:
      values: of `parity.report.values.report_values`.
    """
    page = Page()
    history = values["history"]
    body = [_verdict(values)]
    # what went wrong first
    runs = sorted(values["runs"], key=lambda run: run["verdict"] == "match")
    for run in runs:
        body += _run_section(page, run, history[run["dtype"]], values["sides"])
    body += [_rungs(values), *_speed(page, values), _environment(values)]
    title = f"{values['verdict']}: {headline(values)}"
    return page.whole(title, body)


def _verdict(values: dict[str, Any]) -> str:
    verdict = values["verdict"]
    precisions = ", ".join(f"{run['dtype']} {run['verdict']}" for run in values["runs"])
    lines = [
        f"<header class='{verdict}'><h1 id='verdict'>{escape(verdict)}</h1>",
        f"<p>{escape(headline(values))} ({escape(precisions)})</p>",
    ]
    for run in values["runs"]:
        used = [(rung["used"], name) for name, rung in run["rungs"].items() if rung["used"]]
        if run["verdict"] == "match" and used:
            most, name = max(used)
            lines.append(
                f"<p>{run['dtype']}: at most {most:.1%} of what is allowed was used, in "
                f"{name}.</p>"
            )
    first = values["first_mismatch"]
    if first:
        lines.append(
            f"<section id='mismatch' aria-label='first mismatch'>"
            f"<p>first wrong tensor: <strong id='tensor'>{escape(first['tensor'])}</strong>, "
            f"step <span id='step'>{first['step']}</span>, rung {escape(first['rung'])}</p>"
            f"<pre>{escape(mismatch_story(first))}</pre>"
        )
        if first["likely_causes"]:
            lines += [
                "<p>Likely causes, by what planted faults look like:</p>",
                "<ol id='causes'>",
                *(f"<li>{escape(line)}</li>" for line in cause_lines(first["likely_causes"])),
                "</ol>",
            ]
        lines.append("</section>")
    return "\n".join([*lines, "</header>"])


def _run_section(
    page: Page, run: dict[str, Any], history: dict[str, Any], sides: dict[str, Any]
) -> list[str]:
    dtype = run["dtype"]
    spans = history["span"]
    every = f" Each point stands for {spans} steps, the last named." if spans > 1 else ""
    parts = [f"<section><h2>{dtype}: {escape(run['verdict'])}, {run['steps']} steps</h2>"]
    if "isolated" in run and run["isolated"]["wrong"]:
        rows, headers = wrong_table(run)
        parts += [
            f"<div id='wrong-{dtype}'>{table(headers, rows)}</div>",
            f"<p>{escape(in_order(run))}</p>",
        ]
    if history["steps"]:
        if history["loss"]:
            parts.append(_losses(page, dtype, history, sides, every))
        if "pair" in history:
            if history["loss"]:
                parts.append(_differences(page, dtype, history, every))
            parts.append(_heat_map(page, run, history, every))
        if history["replica_loss"]:
            parts.append(_replicas(page, dtype, history, sides, every))
    return [*parts, "</section>"]


def _losses(
    page: Page, dtype: str, history: dict[str, Any], sides: dict[str, Any], every: str
) -> str:
    steps, loss = history["steps"], history["loss"]
    caption = f"Loss of each step, {dtype}."
    figure = empty_figure("nats per token" if "oracle" in loss else "loss", steps)
    if "oracle" in loss:
        caption = (
            f"Global loss of each step's batch in nats per token, {dtype}; the broad line is "
            "the oracle."
        )
        _add_oracle(figure, steps, loss["oracle"], "oracle")
    for i, side in enumerate(side for side in loss if side != "oracle"):
        _add_side(figure, steps, loss[side], sides[side]["framework"], side, i)
    return page.figure(
        f"loss-{dtype}",
        "Loss of all sides over each other",
        f"{caption}{every} Where only one thin line is to be seen, the others lie under it.",
        figure,
        table(["step", *loss], zip(steps, *loss.values(), strict=True)),
        f"losses of {len(steps)} points as a table",
    )


def _differences(page: Page, dtype: str, history: dict[str, Any], every: str) -> str:
    steps, (a, b) = history["steps"], history["pair"]
    from_oracle = history["from_oracle"]
    columns = [from_oracle[side] for side in (a, b) if from_oracle]
    band = [
        max((value for value in both if value is not None), default=None)
        for both in zip(*columns, strict=True)
    ]
    figure = empty_figure("units in the last place", steps)
    figure.add_scatter(
        x=steps,
        y=[_SMALLEST] * len(steps),
        mode="lines",
        line={"width": 0},
        showlegend=False,
        hoverinfo="skip",
    )
    lines: list[tuple[list[float | None], str, dict[str, Any]]] = [
        (
            history["difference"],
            f"{a} from {b}",
            {"mode": _mode(steps), "line": {"width": 2, "color": COLOURS["paddle"]}},
        ),
    ]
    told = ""
    if from_oracle:
        told = (
            "; the band reaches up to the distance of the farther of the two from the oracle, "
            "which trains freely from the same weights"
        )
        look = {
            "mode": "lines",
            "line": {"width": 1, "color": ORACLE_COLOUR},
            "fill": "tonexty",
            "fillcolor": "rgba(128,128,128,0.3)",
        }
        lines.insert(0, (band, "farther side from the oracle", look))
    for values, name, look in lines:
        figure.add_scatter(
            x=steps,
            y=[None if v is None else max(v, _SMALLEST) for v in values],
            customdata=values,
            name=label(name),
            hovertemplate="%{customdata:.6~g}",
            **look,
        )
    largest = max((v for v in [*band, *history["difference"]] if v), default=1.0)
    exponents = range(round(math.log10(_SMALLEST)), math.ceil(math.log10(max(largest, 10))) + 1)
    exponents = exponents[:: max(1, len(exponents) // 8)]
    figure.update_yaxes(
        type="log",
        range=[math.log10(_SMALLEST) - 0.1, math.log10(max(largest, 10)) + 0.2],
        tickvals=[10.0**e for e in exponents],
        ticktext=[_power(e) if i else "0" for i, e in enumerate(exponents)],
    )
    return page.figure(
        f"difference-{dtype}",
        f"Difference of the losses of {a} and {b}",
        f"In units in the last place of {dtype}, on a logarithmic axis whose foot is anything "
        f"up to {_SMALLEST}{told}.{every}",
        figure,
        table(
            [
                "step",
                f"{a} from {b}",
                *(f"{side} from oracle" for side in (a, b) if from_oracle),
            ],
            zip(steps, history["difference"], *columns, strict=True),
        ),
        f"differences of {len(steps)} points as a table",
    )


def _heat_map(page: Page, run: dict[str, Any], history: dict[str, Any], every: str) -> str:
    dtype, steps, relative = run["dtype"], history["steps"], history["relative"]
    a, b = history["pair"]
    tensors = list(relative)
    largest = max((v for row in relative.values() for v in row if v), default=0.0)
    lowest = math.floor(math.log10(np.finfo(dtype).eps)) - 1
    highest = max(lowest + 3, math.ceil(math.log10(largest)) if largest else lowest)
    # downwards, so that nothing stands close to the label of what is equal
    labelled = range(highest, lowest, -max(1, (highest - lowest) // 4))
    figure = empty_figure("", steps)
    share = 1 / (highest - lowest + 1)
    viridis = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
    figure.add_heatmap(
        x=steps,
        y=list(range(len(tensors))),
        customdata=list(relative.values()),  # from which the script takes the logarithms
        meta={"tensors": tensors, "lowest": lowest},
        zmin=lowest - 1,
        zmax=highest,
        xgap=0,
        ygap=1,
        colorscale=[
            [0, "#9a9a9a"],
            [share, "#9a9a9a"],
            *([share + (1 - share) * i / 4, colour] for i, colour in enumerate(viridis)),
        ],
        colorbar={
            "tickvals": [lowest - 0.5, *labelled],
            "ticktext": ["equal", *map(_power, labelled)],
            "tickangle": 0,
            "orientation": "h",
            "thickness": 12,
            "y": 1,
            "yanchor": "bottom",
            "title": {"text": ""},
        },
        hovertemplate="%{text}<extra></extra>",
    )
    first, marked = run.get("first_mismatch"), ""
    if first and first["tensor"] in relative:
        marked = first["tensor"]
        row, half = tensors.index(marked), max(0.5, history["span"] / 2)
        figure.add_shape(
            type="rect",
            x0=steps[-1] - half,
            x1=steps[-1] + half,
            y0=row - 0.5,
            y1=row + 0.5,
            line={"color": "#e02020", "width": 2},
        )
    height = 110 + _ROW_HEIGHT * len(tensors)
    figure.update_layout(height=height, hovermode="closest", showlegend=False)
    figure.update_yaxes(
        range=[len(tensors) - 0.5, -0.5],
        showgrid=False,
        tickvals=list(range(len(tensors))),
        ticktext=[f"<b>► {name}</b>" if name == marked else name for name in tensors],
        tickfont={"size": 10},
    )
    rows = [
        (name, max((v for v in row if v is not None), default=None), _worst_step(steps, row))
        for name, row in relative.items()
    ]
    return page.figure(
        f"heat-{dtype}",
        f"Relative error of every tensor at every step, {a} and {b}",
        "Largest |a - b| over the tensor's largest magnitude, in the order of computation: "
        f"what is wrong first stands highest.{every}"
        + (f" Framed: {marked}, the first wrong tensor." if marked else ""),
        figure,
        table(["tensor", "worst relative", "at step"], rows),
        f"worst of each of {len(tensors)} tensors as a table",
    )


def _replicas(
    page: Page, dtype: str, history: dict[str, Any], sides: dict[str, Any], every: str
) -> str:
    steps, shares = history["steps"], history["replica_loss"]
    most = max(len(each["side"]) for each in shares.values())
    shown = {side: each for side, each in shares.items() if len(each["side"]) == most}
    figure = empty_figure("nats per token", steps)
    columns: dict[str, list[float | None]] = {}
    for replica, values in enumerate(next(iter(shown.values()))["oracle"]):
        name = f"oracle, rows of replica {replica}"
        columns[name] = values
        _add_oracle(figure, steps, values, name)
    for i, (side, each) in enumerate(shown.items()):
        for replica, values in enumerate(each["side"]):
            name = f"{side}, replica {replica}"
            columns[name] = values
            _add_side(figure, steps, values, sides[side]["framework"], name, i)
    figure.update_layout(height=300 + 20 * len(columns))  # the legend grows with them
    return page.figure(
        f"replicas-{dtype}",
        f"Loss by replica, {most} {'replica' if most == 1 else 'replicas'} a side",
        "Each replica's share: summed loss of its rows over the real tokens of the whole "
        f"batch; together they are the global loss.{every}",
        figure,
        table(["step", *columns], zip(steps, *columns.values(), strict=True)),
        f"losses by replica of {len(steps)} points as a table",
    )


def _rungs(values: dict[str, Any]) -> str:
    rows, headers = rung_table(values)
    told = "".join(f"<p>{escape(note)}</p>" for note in notes(values))
    return (
        "<section><h2>Rung by rung</h2><div id='rungs'>"
        + table(headers, rows)
        + f"</div>{told}</section>"
    )


def _speed(page: Page, values: dict[str, Any]) -> list[str]:
    trainings = values["trainings"]
    parts = ["<section><h2>Throughput</h2>"]
    timed = {
        name: summary for name, summary in trainings.items() if summary["tokens_per_second"]
    }
    if timed:
        parts.append(_bars(page, timed))
    else:
        parts.append("<p>Not measured: only sides that were trained for it have speeds.</p>")
    if trainings:
        rows, headers = training_table(values)
        parts.append(f"<div id='trainings'>{table(headers, rows)}</div>")
    return [*parts, "</section>"]


def _bars(page: Page, timed: dict[str, dict[str, Any]]) -> str:
    frameworks = list(dict.fromkeys(summary["framework"] for summary in timed.values()))
    figure = empty_figure("real tokens per second")
    rows = []
    for i, framework in enumerate(frameworks):
        mine = sorted(
            (each for each in timed.values() if each["framework"] == framework),
            key=lambda each: each["replicas"],
        )
        speeds = [each["tokens_per_second"] for each in mine]
        scaling = [speed["median"] / speeds[0]["median"] for speed in speeds]
        figure.add_bar(
            x=[_count(each["replicas"]) for each in mine],
            y=[speed["median"] for speed in speeds],
            name=framework,
            marker={"color": colour(framework, i)},
            text=[f"×{gain:.2f}" for gain in scaling],
            textposition="inside",
            insidetextanchor="start",
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [speed["high"] - speed["median"] for speed in speeds],
                "arrayminus": [speed["median"] - speed["low"] for speed in speeds],
                "color": ORACLE_COLOUR,
            },
            customdata=[[speed["low"], speed["high"]] for speed in speeds],
            hovertemplate="%{y:,.0f} tokens/s, %{customdata[0]:,.0f} to %{customdata[1]:,.0f}, "
            "%{text}",
        )
        rows += [
            (framework, each["replicas"], speed["median"], speed["low"], speed["high"], gain)
            for each, speed, gain in zip(mine, speeds, scaling, strict=True)
        ]
    figure.update_layout(barmode="group")
    figure.update_yaxes(rangemode="tozero")
    return page.figure(
        "throughput",
        "Real tokens per second, and what more replicas gain",
        "Median of each side trained alone on this machine, its spread as whiskers; in the "
        "bar, how many times the speed of that framework's fewest replicas.",
        figure,
        table(["framework", "replicas", "median", "low", "high", "times fewest"], rows),
        "speeds as a table",
    )


def _environment(values: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    spec = json.dumps(values["spec"], indent=1, ensure_ascii=False)
    return (
        "<section id='environment'><h2>Environment</h2>"
        f"<dl><dt>command</dt><dd><code id='command'>{escape(values['command'])}</code></dd>"
        f"<dt>machine</dt><dd>{escape(values['machine'])}</dd>"
        f"<dt>versions</dt><dd>{escape(versions)}</dd></dl>"
        f"<details><summary>{'run' if 'pair' in values else 'spec'}</summary>"
        f"<pre>{escape(spec)}</pre></details></section>"
    )


def _add_side(
    figure: go.Figure,
    steps: Sequence[int],
    values: Sequence[float | None],
    framework: str,
    name: str,
    place: int,
) -> None:
    """Draw a side's thin line, each one's dashes leaving the others to be seen through."""
    figure.add_scatter(
        x=steps,
        y=values,
        name=label(name),
        mode=_mode(steps),
        line={
            "color": colour(framework, place),
            "dash": _DASHES[place % len(_DASHES)],
            "width": 2,
        },
        hovertemplate="%{y:.9g}",
    )


def _add_oracle(
    figure: go.Figure, steps: Sequence[int], values: Sequence[float | None], name: str
) -> None:
    """Draw the oracle's broad line, which is to lie under the sides'."""
    figure.add_scatter(
        x=steps,
        y=values,
        name=label(name),
        mode="lines",
        line={"color": ORACLE_COLOUR, "width": 8},
        opacity=0.35,
        hovertemplate="%{y:.9g}",
    )


def _mode(steps: Sequence[int]) -> str:
    return "lines+markers" if len(steps) <= 30 else "lines"


def _count(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _power(exponent: int) -> str:
    return f"{10**exponent:g}" if 0 <= exponent < 4 else f"1e{exponent}"


def _worst_step(steps: Sequence[int], row: Sequence[float | None]) -> int | None:
    known = [
        (value, -step) for step, value in zip(steps, row, strict=True) if value is not None
    ]
    return -max(known)[1] if known else None
