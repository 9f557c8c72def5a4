"""The untraced rung: a training that records nothing has the losses of the recorded one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.tensors import Mismatch, Place
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.spec.worker_rows import joined_losses
from parity.twins.trace.side import TrainedSide

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


class RecordedSteps:
    """Collects what losses.csv should say of the recorded steps of one side.

    An asynchronous side records each update of a worker as a step; what it says of a step in
    losses.csv is there once all its workers have applied theirs.

    Args:
      side: the side.
      loss_per: "token" or "row", what the recorded losses were divided by.

    Attributes:
      steps: the steps so far.
    """

    def __init__(self, side: TrainedSide, loss_per: str):
        self._side, self._loss_per = side, loss_per
        self._updates: dict[int, dict[int, Tensors]] = {}  # step -> worker -> tensors
        self.steps: list[RecordedStep] = []

    def add(self, step: int, tensors: Tensors) -> None:
        """Add a recorded step."""
        update = RecordedUpdate.of(tensors)
        if update is None:
            self.steps.append(recorded_step(step, tensors, self._loss_per))
            return
        found = self._updates.setdefault(update.step, {})
        found[update.worker] = {
            name: tensors[name] for name in ("batch/lengths", "loss/replicas")
        }
        if len(found) < self._side.replicas:
            return
        del self._updates[update.step]
        workers = [found[worker] for worker in sorted(found)]
        parts = [
            StepInputs({"lengths": each["batch/lengths"]}, loss_per=self._loss_per)
            for each in workers
        ]
        losses = joined_losses([each["loss/replicas"] for each in workers], parts)
        whole = {
            "batch/lengths": np.concatenate([each["batch/lengths"] for each in workers]),
            "loss/global": losses.sum(),
        }
        self.steps.append(recorded_step(update.step, whole, self._loss_per))


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
