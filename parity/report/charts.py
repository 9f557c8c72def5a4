"""The figures of a report's page, drawn from the values of report.json alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from parity.report.frameworks import LOOKS
from parity.report.page import ORACLE_COLOUR, Figure, colour
from parity.report.svg import Axis, Line, Values, axis_of, line_chart
from parity.report.table import Table
from parity.report.verdict_tables import GROWTH, differing_rungs, growth_table

SMALLEST = 0.1  # units in the last place; smaller differences are drawn there

# of lines that lie on each other, as SVG's stroke-dasharray
DASHES = ("", "2 4", "8 4", "8 4 2 4", "14 5", "14 5 2 5")

# --loss-per -> what a loss is divided by, in words
PER = {"token": "real token", "row": "row"}


def losses(
    dtype: str, history: dict[str, Any], frameworks: Mapping[str, str], loss_per: str | None
) -> Figure:
    """Draw the loss of every step, those after a mismatch too, the sides' over the oracle's.

    Args:
      dtype: the precision, for the figure's name.
      history: one precision's, of report.json.
      frameworks: side -> its framework.
      loss_per: what the loss is divided by, a key of `PER`; None of a recorded pair.
    """
    after = history.get("after", {"steps": [], "loss": {}})  # of a mismatch
    steps = history["steps"] + after["steps"]
    loss = {side: each + after["loss"].get(side, []) for side, each in history["loss"].items()}
    oracle, sides = loss.get("oracle"), [side for side in loss if side != "oracle"]
    lines = [] if oracle is None else [Line("oracle", oracle, f"{ORACLE_COLOUR}59", "", 8)]
    lines += [
        Line(side, loss[side], colour(frameworks[side], i), DASHES[i % len(DASHES)])
        for i, side in enumerate(sides)
    ]
    up = axis_of(value for line in lines for value in line.values)
    drawing = line_chart(steps, lines, up, _unit(loss_per))
    return Figure(f"loss-{dtype}", drawing, _by_step(steps, loss))


def _unit(loss_per: str | None) -> str:
    return f"nats per {PER[loss_per]}" if loss_per else "loss"


def difference(dtype: str, history: dict[str, Any]) -> Figure:
    """Draw how far the losses of the compared pair are apart, and how far from the oracle.

    Args:
      dtype: the precision, for the figure's name.
      history: one precision's, of report.json.
    """
    steps, (a, b) = history["steps"], history["pair"]
    apart, from_oracle = history["difference"], history["from_oracle"]
    columns = {f"{a} from {b}": apart}
    columns |= {f"{side} from oracle": from_oracle[side] for side in (a, b) if from_oracle}
    lines = [Line(f"{a} from {b}", apart, colour(next(iter(LOOKS)), 0))]
    if from_oracle:
        band = [_largest(both) for both in zip(from_oracle[a], from_oracle[b], strict=True)]
        name = "farther side from the oracle"
        lines.insert(0, Line(name, band, f"{ORACLE_COLOUR}80", "", 1, filled=True))
    most = _largest([value for line in lines for value in line.values]) or 1.0
    up = Axis(SMALLEST, 2 * max(most, 10.0), log=True)
    drawing = line_chart(steps, lines, up, "units in the last place")
    return Figure(f"difference-{dtype}", drawing, _by_step(steps, columns))


def growth_chart(dtype: str, growth: dict[str, Any]) -> Figure:
    """Draw the distances of the first wrong step and of those after it.

    Args:
      dtype: the precision, for the figure's name.
      growth: one precision's, of report.json.
    """
    lines = [
        Line(f"{growth['tensor']}, {title}", growth["of_tensor"][kind], colour("", 0), dash, 3)
        for (kind, title), dash in zip(GROWTH.items(), ("", "8 4", "2 4"), strict=True)
    ] + [
        Line(f"rung {rung}", series, colour("", place), "", 1)
        for place, (rung, series) in enumerate(differing_rungs(growth).items(), start=1)
    ]
    lines = [line for line in lines if any(value is not None for value in line.values)]
    up = axis_of((value for line in lines for value in line.values), log=True)
    drawing = line_chart(growth["steps"], lines, up, "relative distance")
    return Figure(f"growth-{dtype}", drawing, growth_table(growth))


def _by_step(steps: Sequence[int], columns: Mapping[str, Values]) -> Table:
    return Table(["step", *columns], list(zip(steps, *columns.values(), strict=True)))


def _largest(values: Values) -> float | None:
    return max((value for value in values if value is not None), default=None)
