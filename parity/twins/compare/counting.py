"""The counting rung: tokens per second rests on the tokens that the batches hold.

Nothing here measures time. What can be checked is that the tokens, steps and seconds behind a
reported speed are those of the steps that it is about: after the warm-up, each batch's own real
tokens, and a mean that lies between the lowest and the highest reading.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from parity.compare.tensors import Mismatch, Place
from parity.twins.compare.untraced import RecordedStep, Row

_RELATIVE = 1e-9  # the mean and the readings are sums and quotients of the same numbers


def compare_counts(
    side: str,
    recorded: Sequence[RecordedStep],
    rows: Sequence[Row],
    summary: Mapping[str, Any],
    seconds: float,
    warm_up: int,
) -> Mismatch | None:
    """Compare what a side counted while it trained with what its batches hold.

    Args:
      side: the label of the side.
      recorded: the recorded steps, with the tokens that their batches hold.
      rows: the rows of the untraced training's losses.csv.
      summary: the content of its summary.json.
      seconds: how long its process ran.
      warm_up: the number of steps that a side leaves out before it measures its speed.
    """
    for expected, row in zip(recorded, rows, strict=False):
        if row[2] != expected.tokens:
            return _other(side, expected.step, "losses.csv/tokens", row[2], expected.tokens)
    if summary["steps"] != len(rows):
        return _other(side, 0, "summary.json/steps", summary["steps"], len(rows))
    speed, measured = summary["tokens_per_second"], summary["measured"]
    if not speed:
        return None  # no step after the warm-up
    first, steps = measured["first_step"], measured["steps"]
    if first != rows[0][0] + warm_up:
        return _other(
            side, first, "summary.json/measured_first_step", first, rows[0][0] + warm_up
        )
    after = len(rows) - warm_up
    if measured["of_steps"] != after:
        name = "summary.json/measured_of_steps"
        return _other(side, first, name, measured["of_steps"], after)
    tokens = sum(row[2] for row in rows if first <= row[0] < first + steps)
    if not 0 < steps <= after or measured["tokens"] != tokens:
        return _other(side, first, "summary.json/measured_tokens", measured["tokens"], tokens)
    if not 0 < measured["seconds"] <= seconds:
        return _other(
            side, first, "summary.json/measured_seconds", measured["seconds"], seconds
        )
    mean, slack = tokens / measured["seconds"], 1 + _RELATIVE
    for seen, possible in (
        (speed["low"], speed["low"] <= mean * slack),
        (speed["high"], mean <= speed["high"] * slack),
        (speed["median"], speed["low"] <= speed["median"] <= speed["high"]),
    ):
        if not possible:
            return _other(side, first, "summary.json/tokens_per_second", seen, mean)
    return None


def _other(side: str, step: int, name: str, seen: float, expected: float) -> Mismatch:
    sides = side, f"{side} counted anew"
    values = dict(zip(sides, (float(seen), float(expected)), strict=True))
    note = f"the speed of {side} rests on numbers that are not those of its batches"
    place = Place(step, name, ())
    return Mismatch(sides, place, values, 0.0, 1, 1, within=side, check="counting", note=note)
