"""The untraced rung: a training that records nothing has the losses of the recorded one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.tensors import Mismatch, Place
from parity.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]
Row = tuple[int, float, int]  # of losses.csv: step, loss per real token, real tokens


@dataclass(frozen=True)
class RecordedStep:
    """What losses.csv should say of a recorded step.

    Attributes:
      step: the number of the step.
      loss: the loss that the side recorded, in nats per real token.
      tokens: the number of real tokens that the recorded batch holds.
    """

    step: int
    loss: float
    tokens: int


def recorded_step(step: int, tensors: Tensors, loss_per: str) -> RecordedStep:
    """Return what losses.csv should say of a recorded step.

    Args:
      loss_per: "token" or "row", what the recorded loss was divided by.
    """
    lengths = tensors["batch/lengths"]
    inputs = StepInputs({"lengths": lengths}, loss_per=loss_per)
    loss = inputs.per_token(float(tensors["loss/global"]))
    return RecordedStep(step, loss, int(lengths.sum()))


def compare_untraced(
    side: str, recorded: Sequence[RecordedStep], rows: Sequence[Row]
) -> Mismatch | None:
    """Compare the losses of an untraced training with the recorded ones, as far as both go.

    Args:
      side: the label of the side.
      recorded: the recorded steps, in the same precision.
      rows: the rows of the untraced training's losses.csv.
    """
    sides = side, f"{side} untraced"
    note = (
        f"{side} computes something else when it records nothing; everything above was "
        "compared in a recorded run"
    )
    for step, (expected, row) in enumerate(zip(recorded, rows, strict=False)):
        place = Place(step, "loss/global", ())
        if row[0] != expected.step:
            problem = f"losses.csv has step {row[0]} in the place of step {expected.step}"
            return Mismatch(
                sides, place, problem=problem, within=side, check="untraced", note=note
            )
        if row[1] != expected.loss:
            values = dict(zip(sides, (expected.loss, row[1]), strict=True))
            return Mismatch(
                sides, place, values, 0.0, 1, 1, within=side, check="untraced", note=note
            )
    return None
